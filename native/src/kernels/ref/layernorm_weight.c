/* The gradients of a layer normalisation's weight and bias. Vectors go over c; keeping columns in registers over all
 * rows was measured to be no faster. */
#include "kernels/ref/ref.h"

void layernorm_backward_weight_ref(float *restrict dweight, float *restrict dbias, const float *restrict dout,
                                   const float *restrict inp, const float *restrict mean, const float *restrict rstd,
                                   size_t N, size_t C, enum sum_start start, struct team team)
{
    const struct share columns = team_share(team, C, FLOATS_PER_LINE);
    for (size_t c = columns.begin; c < columns.end; c++) {
        dweight[c] = present(start, &dweight[c]);
        dbias[c] = present(start, &dbias[c]);
    }
    for (size_t n = 0; n < N; n++)
        for (size_t c = columns.begin; c < columns.end; c++) {
            const float nrm = (inp[n * C + c] - mean[n]) * rstd[n];
            dbias[c] += dout[n * C + c];
            dweight[c] += nrm * dout[n * C + c];
        }
}
