/* The loss: per row, its mean, and the gradient of the logits through the softmax.
 * kernels/select.c offers them to the loss codelets. */
#include "ref.h"

#include <math.h>
#include <string.h>

void crossentropy_forward_ref(float *losses /* (N) */, const float *probs /* (N,Vp) */,
                              const int32_t *targets /* (N) */, size_t N, size_t Vp, struct team team)
{
    const struct share rows = team_share(team, N, FLOATS_PER_LINE);
    for (size_t n = rows.begin; n < rows.end; n++)
        losses[n] = -logf(probs[n * Vp + (size_t)targets[n]]);
}

void mean_loss_ref(float *mean /* (1) */, const float *losses /* (N) */, size_t N, float divisor, enum sum_start start,
                   struct team team)
{
    if (team.index > 0) /* one sum */
        return;
    float sum = start == SUM_FROM_ZERO ? 0.0f : *mean;
    for (size_t n = 0; n < N; n++)
        sum += losses[n];
    *mean = divisor != 0.0f ? sum / divisor : sum;
}

/* dlogits[v] accumulates (probs[v] - indicator) * dloss. */
static void accumulate(float *restrict dlogits, const float *restrict probs, float indicator, float dloss, size_t count,
                       enum sum_start start)
{
    if (start == SUM_FROM_ZERO)
        for (size_t v = 0; v < count; v++)
            dlogits[v] = 0.0f + (probs[v] - indicator) * dloss;
    else
        for (size_t v = 0; v < count; v++)
            dlogits[v] += (probs[v] - indicator) * dloss;
}

void crossentropy_softmax_backward_ref(float *dlogits /* (N,Vp) */, const float *dlosses /* (N) */,
                                       const float *probs /* (N,Vp) */, const int32_t *targets /* (N) */, size_t N,
                                       size_t V, size_t Vp, enum sum_start start, struct team team)
{
    const struct share rows = team_share(team, N, 1);
    for (size_t n = rows.begin; n < rows.end; n++) {
        float *d = dlogits + n * Vp;
        const float *p = probs + n * Vp;
        /* Before, at and after the target, so that the long loops have no comparison in them. */
        const size_t target = (size_t)targets[n];
        const size_t after = target + 1;
        accumulate(d, p, 0.0f, dlosses[n], target, start);
        accumulate(d + target, p + target, 1.0f, dlosses[n], 1, start);
        accumulate(d + after, p + after, 0.0f, dlosses[n], V - after, start);
        if (start == SUM_FROM_ZERO)
            memset(d + V, 0, (Vp - V) * sizeof(float));
    }
}
