/* Layer normalisation: forward, and the gradients of its input, weight and bias.
 * override.c offers them.
 *
 * A row's sums are chains of dependent additions, so lanes go across rows: a block of columns is transposed, then each
 * vector holds one column of as many rows. Two vectors of rows advance together, as an addition takes longer than the
 * wait for the next. What comes after the sums goes row by row, lanes across its columns. */
#include <math.h>
#include <string.h>

#include "kernels/simd/kernels_simd.h"
#include "kernels/simd/sizes.h"
#include "kernels/simd/transpose.h"

enum {
    GROUPS = 2,  /* vectors of rows */
    COLUMNS = 64 /* at a time: 8 KB of 32 rows stay in the first-level cache */
};

/* One float of each row. */
union rows {
    vector vectors[GROUPS];
    float values[GROUPS * LANES];
};

/* columns[c][r] = x[r,c], c < count, r < rows. */
typedef float columns_of_rows[COLUMNS][GROUPS * LANES] __attribute__((aligned(SIMD_BYTES)));

/* `groups` is a constant wherever this is inlined. */
static inline __attribute__((always_inline)) void forward_rows(float *restrict out, float *restrict mean,
                                                               float *restrict rstd, const float *restrict inp,
                                                               const float *restrict weight, const float *restrict bias,
                                                               size_t rows, int groups, size_t C)
{
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
        for (size_t c = 0; c < C; c++) {
            const float normal = s.values[r] * (inp[r * C + c] - m.values[r]);
            out[r * C + c] = normal * weight[c] + bias[c];
        }
        mean[r] = m.values[r];
        rstd[r] = s.values[r];
    }
}

void SIMD_NAME(layernorm_forward)(float *out /* (N,C) */, float *mean /* (N) */, float *rstd /* (N) */,
                                  const float *inp /* (N,C) */, const float *weight /* (C) */,
                                  const float *bias /* (C) */, size_t N, size_t C, struct team team)
{
    const struct share part = team_share(team, N, LANES);
    size_t n = part.begin;
    for (; n + LANES < part.end; n += GROUPS * LANES)
        forward_rows(out + n * C, mean + n, rstd + n, inp + n * C, weight, bias, smaller(GROUPS * LANES, part.end - n),
                     GROUPS, C);
    if (n < part.end)
        forward_rows(out + n * C, mean + n, rstd + n, inp + n * C, weight, bias, part.end - n, 1, C);
}

static inline __attribute__((always_inline)) void
backward_input_rows(float *restrict dinp, const float *restrict dout, const float *restrict inp,
                    const float *restrict mean, const float *restrict rstd, const float *restrict weight, size_t rows,
                    int groups, size_t C, enum sum_start start)
{
    columns_of_rows x, d;
    union rows a = {0}, q = {0}, m = {0}, s = {0};
    if (rows < (size_t)groups * LANES) {
        memset(x, 0, sizeof x);
        memset(d, 0, sizeof d);
    }
    memcpy(m.values, mean, rows * sizeof(float));
    memcpy(s.values, rstd, rows * sizeof(float));
    for (size_t begin = 0; begin < C; begin += COLUMNS) {
        const size_t count = smaller(COLUMNS, C - begin);
        SIMD_NAME(transpose)(x[0], GROUPS * LANES, inp + begin, C, rows, count);
        SIMD_NAME(transpose)(d[0], GROUPS * LANES, dout + begin, C, rows, count);
        for (size_t c = 0; c < count; c++)
            for (int g = 0; g < groups; g++) {
                const vector nrm = (vector_load(x[c] + g * LANES) - m.vectors[g]) * s.vectors[g];
                const vector dn = vector_of(weight[begin + c]) * vector_load(d[c] + g * LANES);
                a.vectors[g] += dn;
                q.vectors[g] += dn * nrm;
            }
    }
    for (int g = 0; g < groups; g++) {
        a.vectors[g] /= vector_of((float)C);
        q.vectors[g] /= vector_of((float)C);
    }
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < C; c++) {
            const float nrm = (inp[r * C + c] - mean[r]) * rstd[r];
            const float dn = weight[c] * dout[r * C + c];
            const float term = (((0.0f + dn) - a.values[r]) - nrm * q.values[r]) * rstd[r];
            dinp[r * C + c] = (start == SUM_FROM_ZERO ? 0.0f : dinp[r * C + c]) + term;
        }
}

void SIMD_NAME(layernorm_backward_input)(float *dinp /* (N,C) */, const float *dout /* (N,C) */,
                                         const float *inp /* (N,C) */, const float *mean /* (N) */,
                                         const float *rstd /* (N) */, const float *weight /* (C) */, size_t N, size_t C,
                                         enum sum_start start, struct team team)
{
    const struct share part = team_share(team, N, LANES);
    size_t n = part.begin;
    for (; n + LANES < part.end; n += GROUPS * LANES)
        backward_input_rows(dinp + n * C, dout + n * C, inp + n * C, mean + n, rstd + n, weight,
                            smaller(GROUPS * LANES, part.end - n), GROUPS, C, start);
    if (n < part.end)
        backward_input_rows(dinp + n * C, dout + n * C, inp + n * C, mean + n, rstd + n, weight, part.end - n, 1, C,
                            start);
}

void SIMD_NAME(layernorm_backward_weight)(float *restrict dweight /* (C) */, float *restrict dbias /* (C) */,
                                          const float *restrict dout /* (N,C) */, const float *restrict inp /* (N,C) */,
                                          const float *restrict mean /* (N) */, const float *restrict rstd /* (N) */,
                                          size_t N, size_t C, enum sum_start start, struct team team)
{
    const struct share columns = team_share(team, C, FLOATS_PER_LINE);
    if (start == SUM_FROM_ZERO) {
        memset(dweight + columns.begin, 0, (columns.end - columns.begin) * sizeof(float));
        memset(dbias + columns.begin, 0, (columns.end - columns.begin) * sizeof(float));
    }
    /* The compiler's lanes go across c; columns in registers over all rows weren't faster. */
    for (size_t n = 0; n < N; n++)
        for (size_t c = columns.begin; c < columns.end; c++) {
            const float nrm = (inp[n * C + c] - mean[n]) * rstd[n];
            dbias[c] += dout[n * C + c];
            dweight[c] += nrm * dout[n * C + c];
        }
}
