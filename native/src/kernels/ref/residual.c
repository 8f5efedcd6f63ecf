/* The residual stream's additions: forward and backward.
 * kernels/select.c offers them to the residual codelets. */
#include "ref.h"

void residual_forward_ref(float *restrict out /* (count) */, const float *restrict a /* (count) */,
                          const float *restrict b /* (count) */, size_t count)
{
    for (size_t i = 0; i < count; i++)
        out[i] = a[i] + b[i];
}

void residual_backward_ref(float *restrict da /* (count) */, float *restrict db /* (count) */,
                           const float *restrict dout /* (count) */, size_t count, enum sum_start start)
{
    if (start == SUM_FROM_ZERO) {
        for (size_t i = 0; i < count; i++)
            da[i] = db[i] = 0.0f + dout[i];
    } else {
        for (size_t i = 0; i < count; i++) {
            da[i] += dout[i];
            db[i] += dout[i];
        }
    }
}
