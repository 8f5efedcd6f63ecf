/* Layer normalisation: forward, and the gradient of its input.
 *
 * A row's sums are chains of dependent additions, so lanes go across rows: a block of columns is transposed, then each
 * vector holds one column of LANES rows. Two vectors of rows advance together, because a processor can start the second
 * addition before the first has ended. After the sums each row is computed on its own, with lanes across its columns.
 */
#include <math.h>
#include <string.h>

#include "kernels/simd/kernels_simd.h"
#include "kernels/simd/vector.h"

enum {
    GROUPS = 2,  /* vectors of rows */
    COLUMNS = 64 /* at a time: 32 rows of them (8 KB) stay in the first-level cache */
};

/* One float of each row. */
union rows {
    vector vectors[GROUPS];
    float values[GROUPS * LANES];
};

/* columns[c][r] = x[r,c], c < count, r < rows. */
typedef float columns_of_rows[COLUMNS][GROUPS * LANES] __attribute__((aligned(SIMD_BYTES)));

/* layernorm_forward's arrays, whose shapes are in kernels.def. */
struct forward {
    float *out, *mean, *rstd;
    const float *inp, *weight, *bias;
    size_t C;
};

SIMD_INLINE void normalise_row(float *restrict out, const float *restrict inp, const float *restrict weight,
                               const float *restrict bias, float mean, float rstd, size_t C)
{
    for (size_t c = 0; c < C; c++)
        out[c] = (rstd * (inp[c] - mean)) * weight[c] + bias[c];
}

/* Rows n to n + rows; `groups` is a constant wherever this is inlined. */
SIMD_INLINE void forward_rows(struct forward all, size_t n, size_t rows, int groups)
{
    const size_t C = all.C;
    const float *inp = all.inp + n * C;
    columns_of_rows x;
    union rows sum = {0}, m = {0}, s;
    if (rows < (size_t)groups * LANES)
        memset(x, 0, sizeof x); /* unused lanes */
    for (size_t begin = 0; begin < C; begin += COLUMNS) {
        const size_t count = smaller(COLUMNS, C - begin);
        SIMD_NAME(transpose)(x[0], GROUPS * LANES, inp + begin, C, rows, count);
        for (size_t c = 0; c < count; c++)
            for (int g = 0; g < groups; g++)
                sum.vectors[g] += vector_load(x[c] + g * LANES);
    }
    for (int g = 0; g < groups; g++) {
        m.vectors[g] = sum.vectors[g] / vector_of((float)C);
        sum.vectors[g] = vector_of(0.0f);
    }
    for (size_t begin = 0; begin < C; begin += COLUMNS) {
        const size_t count = smaller(COLUMNS, C - begin);
        if (C > COLUMNS) /* else they are still there */
            SIMD_NAME(transpose)(x[0], GROUPS * LANES, inp + begin, C, rows, count);
        for (size_t c = 0; c < count; c++)
            for (int g = 0; g < groups; g++) {
                const vector d = vector_load(x[c] + g * LANES) - m.vectors[g];
                sum.vectors[g] += d * d;
            }
    }
    for (int r = 0; r < groups * LANES; r++)
        s.values[r] = 1.0f / sqrtf(sum.values[r] / (float)C + 1e-5f);
    for (size_t r = 0; r < rows; r++) {
        normalise_row(all.out + (n + r) * C, inp + r * C, all.weight, all.bias, m.values[r], s.values[r], C);
        all.mean[n + r] = m.values[r];
        all.rstd[n + r] = s.values[r];
    }
}

void SIMD_NAME(layernorm_forward)(float *out /* (N,C) */, float *mean /* (N) */, float *rstd /* (N) */,
                                  const float *inp /* (N,C) */, const float *weight /* (C) */,
                                  const float *bias /* (C) */, size_t N, size_t C, struct team team)
{
    const struct forward all = {out, mean, rstd, inp, weight, bias, C};
    const struct share part = team_share(team, N, LANES);
    size_t n = part.begin;
    for (; n + LANES < part.end; n += GROUPS * LANES)
        forward_rows(all, n, smaller(GROUPS * LANES, part.end - n), GROUPS);
    if (n < part.end)
        forward_rows(all, n, part.end - n, 1);
}

/* layernorm_backward_input's arrays. */
struct backward_input {
    float *dinp;
    const float *dout, *inp, *mean, *rstd, *weight;
    size_t C;
    enum sum_start start;
};

/* mean, rstd, a and q of docs/numerics.md. */
struct of_row {
    float m, s, a, q;
};

SIMD_INLINE void backward_input_row(float *restrict dinp, const float *restrict dout, const float *restrict inp,
                                    const float *restrict weight, struct of_row x, size_t C, enum sum_start start)
{
    for (size_t c = 0; c < C; c++) {
        const float nrm = (inp[c] - x.m) * x.s;
        const float dn = weight[c] * dout[c];
        const float term = (((0.0f + dn) - x.a) - nrm * x.q) * x.s;
        dinp[c] = (start == SUM_FROM_ZERO ? 0.0f : dinp[c]) + term;
    }
}

SIMD_INLINE void backward_input_rows(struct backward_input all, size_t n, size_t rows, int groups)
{
    const size_t C = all.C;
    const float *dout = all.dout + n * C, *inp = all.inp + n * C;
    columns_of_rows x, d;
    union rows a = {0}, q = {0}, m = {0}, s = {0};
    if (rows < (size_t)groups * LANES) {
        memset(x, 0, sizeof x);
        memset(d, 0, sizeof d);
    }
    memcpy(m.values, all.mean + n, rows * sizeof(float));
    memcpy(s.values, all.rstd + n, rows * sizeof(float));
    for (size_t begin = 0; begin < C; begin += COLUMNS) {
        const size_t count = smaller(COLUMNS, C - begin);
        SIMD_NAME(transpose)(x[0], GROUPS * LANES, inp + begin, C, rows, count);
        SIMD_NAME(transpose)(d[0], GROUPS * LANES, dout + begin, C, rows, count);
        for (size_t c = 0; c < count; c++)
            for (int g = 0; g < groups; g++) {
                const vector nrm = (vector_load(x[c] + g * LANES) - m.vectors[g]) * s.vectors[g];
                const vector dn = vector_of(all.weight[begin + c]) * vector_load(d[c] + g * LANES);
                a.vectors[g] += dn;
                q.vectors[g] += dn * nrm;
            }
    }
    for (int g = 0; g < groups; g++) {
        a.vectors[g] /= vector_of((float)C);
        q.vectors[g] /= vector_of((float)C);
    }
    for (size_t r = 0; r < rows; r++) {
        const struct of_row of_row = {m.values[r], s.values[r], a.values[r], q.values[r]};
        backward_input_row(all.dinp + (n + r) * C, dout + r * C, inp + r * C, all.weight, of_row, C, all.start);
    }
}

void SIMD_NAME(layernorm_backward_input)(float *dinp /* (N,C) */, const float *dout /* (N,C) */,
                                         const float *inp /* (N,C) */, const float *mean /* (N) */,
                                         const float *rstd /* (N) */, const float *weight /* (C) */, size_t N, size_t C,
                                         enum sum_start start, struct team team)
{
    const struct backward_input all = {dinp, dout, inp, mean, rstd, weight, C, start};
    const struct share part = team_share(team, N, LANES);
    size_t n = part.begin;
    for (; n + LANES < part.end; n += GROUPS * LANES)
        backward_input_rows(all, n, smaller(GROUPS * LANES, part.end - n), GROUPS);
    if (n < part.end)
        backward_input_rows(all, n, part.end - n, 1);
}
