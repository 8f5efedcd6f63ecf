/* Products that aren't packed: one row, in the order in which memory holds b; and the reference kernels of attention.
 */
#include "kernels/simd/kernels_simd.h"

#include <string.h>

void SIMD_NAME(unpacked_row)(float *restrict c, enum sum_start start, const float *restrict a, size_t cs_a,
                             const float *restrict b, size_t ldb, size_t n, size_t k)
{
    if (start == SUM_FROM_ZERO)
        memset(c, 0, n * sizeof(float));
    size_t p = 0;
    for (; p + 4 <= k; p += 4, b += 4 * ldb) { /* four terms, added in order, for each store of c */
        const float a0 = a[p * cs_a], a1 = a[(p + 1) * cs_a], a2 = a[(p + 2) * cs_a], a3 = a[(p + 3) * cs_a];
        for (size_t j = 0; j < n; j++) {
            const float sum = MULTIPLY_ADD(a1, b[ldb + j], MULTIPLY_ADD(a0, b[j], c[j]));
            c[j] = MULTIPLY_ADD(a3, b[3 * ldb + j], MULTIPLY_ADD(a2, b[2 * ldb + j], sum));
        }
    }
    for (; p < k; p++, b += ldb)
        for (size_t j = 0; j < n; j++)
            c[j] = MULTIPLY_ADD(a[p * cs_a], b[j], c[j]);
}

#define attention_backward_ref SIMD_NAME(attention_backward_unpacked)
#define attention_forward_ref SIMD_NAME(attention_forward_unpacked)

#include "kernels/ref/attention.c"
