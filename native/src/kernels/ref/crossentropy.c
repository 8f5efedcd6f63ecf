/* The loss: per row, its mean, and the gradient of the logits through the softmax. */
#include "kernels/ref/ref.h"

#include <math.h>

void crossentropy_forward_ref(float *losses, const float *probs, const int32_t *targets, size_t N, size_t Vp,
                              struct team team)
{
    const struct share rows = team_share(team, N, FLOATS_PER_LINE);
    for (size_t n = rows.begin; n < rows.end; n++)
        losses[n] = -cr_logf(probs[n * Vp + (size_t)targets[n]]);
}

void mean_loss_ref(float *mean, const float *losses, size_t N, float divisor, enum sum_start start, struct team team)
{
    if (team.index > 0) /* a single output */
        return;
    float sum = present(start, mean);
    for (size_t n = 0; n < N; n++)
        sum += losses[n];
    *mean = divisor != 0.0f ? sum / divisor : sum;
}

void crossentropy_softmax_backward_ref(float *restrict dlogits, const float *restrict dlosses,
                                       const float *restrict probs, const int32_t *restrict targets, size_t N, size_t V,
                                       size_t Vp, struct team team)
{
    const struct share rows = team_share(team, N, 1);
    for (size_t n = rows.begin; n < rows.end; n++) {
        float *d = dlogits + n * Vp;
        const float *p = probs + n * Vp;
        for (int32_t v = 0; v < (int32_t)V; v++) {
            const float indicator = v == targets[n] ? 1.0f : 0.0f;
            d[v] = 0.0f + (p[v] - indicator) * dlosses[n];
        }
        for (size_t v = V; v < Vp; v++)
            d[v] = 0.0f;
    }
}
