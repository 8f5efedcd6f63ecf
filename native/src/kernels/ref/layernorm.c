/* Layer normalisation: forward, and the gradient of its input. */
#include "kernels/ref/ref.h"

#include <math.h>

void layernorm_forward_ref(float *out, float *mean, float *rstd, const float *inp, const float *weight,
                           const float *bias, size_t N, size_t C, struct team team)
{
    const struct share rows = team_share(team, N, 1);
    for (size_t n = rows.begin; n < rows.end; n++) {
        const float *x = inp + n * C;
        float m = 0.0f;
        for (size_t c = 0; c < C; c++)
            m += x[c];
        m = m / (float)C;
        float v = 0.0f;
        for (size_t c = 0; c < C; c++) {
            const float d = x[c] - m;
            v += d * d;
        }
        v = v / (float)C;
        const float s = 1.0f / sqrtf(v + 1e-5f);
        for (size_t c = 0; c < C; c++)
            out[n * C + c] = (s * (x[c] - m)) * weight[c] + bias[c];
        mean[n] = m;
        rstd[n] = s;
    }
}

void layernorm_backward_input_ref(float *dinp, const float *dout, const float *inp, const float *mean,
                                  const float *rstd, const float *weight, size_t N, size_t C, enum sum_start start,
                                  struct team team)
{
    const struct share rows = team_share(team, N, 1);
    for (size_t n = rows.begin; n < rows.end; n++) {
        const float *x = inp + n * C;
        const float *d = dout + n * C;
        float a = 0.0f, q = 0.0f;
        for (size_t c = 0; c < C; c++) {
            const float nrm = (x[c] - mean[n]) * rstd[n];
            const float dn = weight[c] * d[c];
            a += dn;
            q += dn * nrm;
        }
        a = a / (float)C;
        q = q / (float)C;
        for (size_t c = 0; c < C; c++) {
            const float nrm = (x[c] - mean[n]) * rstd[n];
            const float dn = weight[c] * d[c];
            const float term = (((0.0f + dn) - a) - nrm * q) * rstd[n];
            dinp[n * C + c] = present(start, &dinp[n * C + c]) + term;
        }
    }
}
