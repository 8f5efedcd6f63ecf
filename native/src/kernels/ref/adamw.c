/* The parameters' update, AdamW.
 * kernels/select.c offers it to the update codelet. */
#include "ref.h"

#include <math.h>

void adamw_update_ref(float *restrict params /* (count) */, float *restrict m /* (count) */,
                      float *restrict v /* (count) */, const float *restrict grads /* (count) */, size_t count,
                      const struct adamw_options *options, int64_t step, struct team team)
{
    const struct share part = team_share(team, count, FLOATS_PER_LINE);
    const struct adamw_options o = *options;
    const float t = (float)step;
    const float m_correction = 1.0f - powf(o.beta1, t);
    const float v_correction = 1.0f - powf(o.beta2, t);
    for (size_t i = part.begin; i < part.end; i++) {
        const float term = (1.0f - o.beta1) * grads[i];
        m[i] = o.beta1 * m[i] + term;
        v[i] = o.beta2 * v[i] + (1.0f - o.beta2) * grads[i] * grads[i];
        const float m_hat = m[i] / m_correction;
        const float v_hat = v[i] / v_correction;
        const float divisor = sqrtf(v_hat) + o.eps;
        params[i] -= o.learning_rate * (m_hat / divisor + o.weight_decay * params[i]);
    }
}
