/* The residual stream's additions: forward and backward.
 * kernels/select.c offers them to the residual codelets. */
#include "ref.h"

void residual_forward_ref(float *restrict out /* (count) */, const float *restrict a /* (count) */,
                          const float *restrict b /* (count) */, size_t count, struct team team)
{
    const struct share part = team_share(team, count, FLOATS_PER_LINE);
    for (size_t i = part.begin; i < part.end; i++)
        out[i] = a[i] + b[i];
}

void residual_backward_ref(float *restrict da /* (count) */, float *restrict db /* (count) */,
                           const float *restrict dout /* (count) */, size_t count, enum sum_start start,
                           struct team team)
{
    const struct share part = team_share(team, count, FLOATS_PER_LINE);
    if (start == SUM_FROM_ZERO) {
        for (size_t i = part.begin; i < part.end; i++)
            da[i] = db[i] = 0.0f + dout[i];
    } else {
        for (size_t i = part.begin; i < part.end; i++) {
            da[i] += dout[i];
            db[i] += dout[i];
        }
    }
}
