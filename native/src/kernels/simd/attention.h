/* The matrix products of one head of one sequence, as causal attention needs them: what forward and backward share.
 *
 * t, t2 and t3 are positions, t2 <= t and t3 <= t; the scores of a head are (T,T). Micro-tiles wholly past the causal
 * edge (t2 > t) are left out; those that it cuts are computed whole or as triangles. */
#pragma once

#include "kernels/simd/microkernel.h"
#include "kernels/simd/vector.h"

/* q, k, v and their gradients are (T,hs) with rows 3C apart, out and dout are (T,hs) with rows C apart, the scores
 * (preatt, att and their gradients) are (T,T). */
struct head_sizes {
    size_t T, hs, C, NH;
    float scale;
};

/* Rows t to t + rows of a head's scores, rows <= MR. */
struct score_rows {
    size_t t, rows;
    size_t count; /* positions t2 that the packed operand has */
    size_t T, hs;
};

/* scores[t,t2] = ordered sum over i from 0 of a[t,i] * b[t2,i]; a's rows are lda apart, `packed` has b's transpose
 * (hs,count). Where the causal edge cuts a micro-tile, the caller overwrites what is past it. */
void SIMD_NAME(scores_product)(float *scores, const float *a, size_t lda, const float *packed,
                               const struct score_rows *rows);

/* c[t,i] = ordered sum over t2 <= t from 0 of (scores[t,t2] * b[t2,i]) * scale, or UNSCALED; c's rows are ldc apart,
 * `packed` has b (count,hs). */
void SIMD_NAME(sum_over_past)(float *c, size_t ldc, const float *scores, const float *packed, float scale,
                              const struct score_rows *rows);

/* c[t2,i] = ordered sum over t >= t2 from 0 of (scores[t,t2] * b[t,i]) * scale, for all t2 < T; `packed_b` has b
 * (T,hs), `packed_a` room for a micro-panel of scores. */
void SIMD_NAME(sum_over_future)(float *c, size_t ldc, const float *scores, const float *packed_b, float *packed_a,
                                float scale, size_t T, size_t hs);

/* Floats of that room. */
size_t SIMD_NAME(sum_over_future_room)(void);

/* Prefetches rows begin to end of a head's queries, keys and values (T,hs), or of their gradients, rows 3C apart. */
SIMD_INLINE void prefetch_qkv(const float *qkv, size_t begin, size_t end, size_t hs, size_t C)
{
    for (size_t t = begin; t < end; t++)
        for (size_t i = 0; i < 3; i++)
            prefetch_rows(qkv + i * C, hs, 3 * C, t, t + 1);
}
