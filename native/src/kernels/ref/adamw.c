/* The parameters' update, AdamW. */
#include "kernels/ref/ref.h"

#include <math.h>

void adamw_update_ref(float *restrict params, float *restrict m, float *restrict v, const float *restrict grads,
                      size_t count, const struct adamw_options *options, int64_t step, struct team team)
{
    const struct share own = team_share(team, count, FLOATS_PER_LINE);
    const struct adamw_options o = *options;
    const float correction1 = 1.0f - cr_powf(o.beta1, (float)step);
    const float correction2 = 1.0f - cr_powf(o.beta2, (float)step);
    for (size_t i = own.begin; i < own.end; i++) {
        m[i] = o.beta1 * m[i] + (1.0f - o.beta1) * grads[i];
        v[i] = o.beta2 * v[i] + (1.0f - o.beta2) * grads[i] * grads[i];
        const float mh = m[i] / correction1;
        const float vh = v[i] / correction2;
        params[i] -= o.learning_rate * (mh / (sqrtf(vh) + o.eps) + o.weight_decay * params[i]);
    }
}
