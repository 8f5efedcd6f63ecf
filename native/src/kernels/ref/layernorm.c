/* Layer normalisation: forward, and the gradients of its input, weight and bias.
 * kernels/select.c offers them to the layernorm codelets.
 *
 * A row's sums are chains of dependent additions, so several rows advance together: their chains overlap. Eight rows
 * take little longer than one, so no two threads share eight. */
#include "ref.h"

#include <math.h>
#include <string.h>

enum { ROWS = 8 };

/* `rows` is a constant wherever this is inlined. */
static inline void forward_rows(float *restrict out, float *restrict mean, float *restrict rstd,
                                const float *restrict inp, const float *restrict weight, const float *restrict bias,
                                size_t rows, size_t C)
{
    float sum[ROWS] = {0}, m[ROWS], s[ROWS];
    for (size_t c = 0; c < C; c++)
        for (size_t r = 0; r < rows; r++)
            sum[r] += inp[r * C + c];
    for (size_t r = 0; r < rows; r++) {
        m[r] = sum[r] / (float)C;
        sum[r] = 0.0f;
    }
    for (size_t c = 0; c < C; c++)
        for (size_t r = 0; r < rows; r++) {
            const float d = inp[r * C + c] - m[r];
            sum[r] += d * d;
        }
    for (size_t r = 0; r < rows; r++) {
        s[r] = 1.0f / sqrtf(sum[r] / (float)C + 1e-5f);
        for (size_t c = 0; c < C; c++)
            out[r * C + c] = (s[r] * (inp[r * C + c] - m[r])) * weight[c] + bias[c];
        mean[r] = m[r];
        rstd[r] = s[r];
    }
}

void layernorm_forward_ref(float *out /* (N,C) */, float *mean /* (N) */, float *rstd /* (N) */,
                           const float *inp /* (N,C) */, const float *weight /* (C) */, const float *bias /* (C) */,
                           size_t N, size_t C, struct team team)
{
    const struct share part = team_share(team, N, ROWS);
    size_t n = part.begin;
    for (; n + ROWS <= part.end; n += ROWS)
        forward_rows(out + n * C, mean + n, rstd + n, inp + n * C, weight, bias, ROWS, C);
    for (; n < part.end; n++)
        forward_rows(out + n * C, mean + n, rstd + n, inp + n * C, weight, bias, 1, C);
}

static inline void backward_input_rows(float *restrict dinp, const float *restrict dout, const float *restrict inp,
                                       const float *restrict mean, const float *restrict rstd,
                                       const float *restrict weight, size_t rows, size_t C, enum sum_start start)
{
    float a[ROWS] = {0}, q[ROWS] = {0};
    for (size_t c = 0; c < C; c++)
        for (size_t r = 0; r < rows; r++) {
            const float nrm = (inp[r * C + c] - mean[r]) * rstd[r];
            const float dn = weight[c] * dout[r * C + c];
            a[r] += dn;
            q[r] += dn * nrm;
        }
    for (size_t r = 0; r < rows; r++) {
        a[r] = a[r] / (float)C;
        q[r] = q[r] / (float)C;
        for (size_t c = 0; c < C; c++) {
            const float nrm = (inp[r * C + c] - mean[r]) * rstd[r];
            const float dn = weight[c] * dout[r * C + c];
            const float term = (((0.0f + dn) - a[r]) - nrm * q[r]) * rstd[r];
            dinp[r * C + c] = (start == SUM_FROM_ZERO ? 0.0f : dinp[r * C + c]) + term;
        }
    }
}

void layernorm_backward_input_ref(float *dinp /* (N,C) */, const float *dout /* (N,C) */, const float *inp /* (N,C) */,
                                  const float *mean /* (N) */, const float *rstd /* (N) */,
                                  const float *weight /* (C) */, size_t N, size_t C, enum sum_start start,
                                  struct team team)
{
    const struct share part = team_share(team, N, ROWS);
    size_t n = part.begin;
    for (; n + ROWS <= part.end; n += ROWS)
        backward_input_rows(dinp + n * C, dout + n * C, inp + n * C, mean + n, rstd + n, weight, ROWS, C, start);
    for (; n < part.end; n++)
        backward_input_rows(dinp + n * C, dout + n * C, inp + n * C, mean + n, rstd + n, weight, 1, C, start);
}

void layernorm_backward_weight_ref(float *restrict dweight /* (C) */, float *restrict dbias /* (C) */,
                                   const float *restrict dout /* (N,C) */, const float *restrict inp /* (N,C) */,
                                   const float *restrict mean /* (N) */, const float *restrict rstd /* (N) */, size_t N,
                                   size_t C, enum sum_start start, struct team team)
{
    const struct share columns = team_share(team, C, FLOATS_PER_LINE);
    if (start == SUM_FROM_ZERO) {
        memset(dweight + columns.begin, 0, (columns.end - columns.begin) * sizeof(float));
        memset(dbias + columns.begin, 0, (columns.end - columns.begin) * sizeof(float));
    }
    for (size_t n = 0; n < N; n++, dout += C, inp += C)
        for (size_t c = columns.begin; c < columns.end; c++) {
            const float nrm = (inp[c] - mean[n]) * rstd[n];
            dbias[c] += dout[c];
            dweight[c] += nrm * dout[c];
        }
}
