/* The products of attention.h.
 *
 *   scores_product    A = q or dout (m = t, k = hs), B = keys' or values' transpose (k = hs, n = t2)
 *   sum_over_past     A = scores (m = t, k = t2), B = values or keys (k = t2, n = hs)
 *   sum_over_future   A = scores' transpose (m = t2, k = t), B = dout or q (k = t, n = hs)
 *
 *   loop 1: for t or t2 by MR       in scores_product and sum_over_past the caller's
 *   loop 4:   for k by KC           from or to the causal edge; the MR steps that it cuts are a triangle
 *   loop 2:     for n by NR         micro-kernel
 *
 * B is one head's and is packed whole by the caller. */
#include "kernels/simd/attention.h"

#include "kernels/simd/blocking.h"
#include "kernels/simd/packing.h"

void SIMD_NAME(scores_product)(float *scores, const float *a, size_t lda, const float *packed,
                               const struct score_rows *rows)
{
    const size_t T = rows->T, hs = rows->hs, KC = SIMD_NAME(blocking_attention_KC)();
    struct product tile = {.ldc = T, .rs_a = lda, .cs_a = 1, .m = rows->rows};
    for (size_t pc = 0; pc < hs; pc += KC) {
        tile.k = smaller(KC, hs - pc);
        tile.a = a + rows->t * lda + pc;
        tile.initial = pc == 0 ? SIMD_NAME(zeros) : NULL;
        for (size_t t2 = 0; t2 < rows->t + rows->rows; t2 += NR) {
            tile.n = smaller(NR, rows->count - t2);
            tile.ldb = rounded_up(tile.n, LANES);
            tile.b = packed + t2 * hs + pc * tile.ldb;
            tile.c = scores + rows->t * T + t2;
            SIMD_NAME(microkernel)(&tile);
        }
    }
}

void SIMD_NAME(sum_over_past)(float *c, size_t ldc, const float *scores, const float *packed, float scale,
                              const struct score_rows *rows)
{
    const size_t t = rows->t, T = rows->T, hs = rows->hs, KC = SIMD_NAME(blocking_attention_KC)();
    struct product tile = {.ldc = ldc, .rs_a = T, .cs_a = 1, .m = rows->rows};
    for (size_t t2 = 0; t2 < t; t2 += KC) {
        tile.k = smaller(KC, t - t2);
        tile.a = scores + t * T + t2;
        tile.initial = t2 == 0 ? SIMD_NAME(zeros) : NULL;
        for (size_t i = 0; i < hs; i += NR) {
            tile.n = smaller(NR, hs - i);
            tile.ldb = rounded_up(tile.n, LANES);
            tile.b = packed + i * rows->count + t2 * tile.ldb;
            tile.c = c + t * ldc + i;
            SIMD_NAME(microkernel_scaled)(&tile, scale);
        }
    }
    tile.a = scores + t * T + t;
    tile.initial = t == 0 ? SIMD_NAME(zeros) : NULL;
    for (size_t i = 0; i < hs; i += NR) {
        tile.n = smaller(NR, hs - i);
        tile.b = packed + i * rows->count + t * rounded_up(tile.n, LANES);
        tile.c = c + t * ldc + i;
        SIMD_NAME(microkernel_triangular)(&tile, UP_TO_ROW, scale);
    }
}

void SIMD_NAME(sum_over_future)(float *c, size_t ldc, const float *scores, const float *packed_b, float *packed_a,
                                float scale, size_t T, size_t hs)
{
    const size_t KC = SIMD_NAME(blocking_attention_KC)();
    for (size_t t2 = 0; t2 < T; t2 += MR) {
        struct product tile = {.ldc = ldc,
                               .initial = SIMD_NAME(zeros),
                               .a = scores + t2 * T + t2,
                               .rs_a = 1,
                               .cs_a = T,
                               .m = smaller(MR, T - t2)};
        for (size_t i = 0; i < hs; i += NR) {
            tile.n = smaller(NR, hs - i);
            tile.b = packed_b + i * T + t2 * rounded_up(tile.n, LANES);
            tile.c = c + t2 * ldc + i;
            SIMD_NAME(microkernel_triangular)(&tile, FROM_ROW, scale);
        }
        tile.initial = NULL;
        tile.a = packed_a;
        tile.cs_a = MR;
        for (size_t t = t2 + tile.m; t < T; t += KC) {
            tile.k = smaller(KC, T - t);
            SIMD_NAME(pack_a_transposed)(packed_a, scores + t * T + t2, T, tile.k, tile.m);
            for (size_t i = 0; i < hs; i += NR) {
                tile.n = smaller(NR, hs - i);
                tile.ldb = rounded_up(tile.n, LANES);
                tile.b = packed_b + i * T + t * tile.ldb;
                tile.c = c + t2 * ldc + i;
                SIMD_NAME(microkernel_scaled)(&tile, scale);
            }
        }
    }
}

size_t SIMD_NAME(sum_over_future_room)(void)
{
    return MR * SIMD_NAME(blocking_attention_KC)();
}
