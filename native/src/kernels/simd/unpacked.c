/* One row of a product, in the order in which memory holds b. */
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
        for (size_t j = 0; j < n; j++)
            c[j] = (((c[j] + a0 * b[j]) + a1 * b[ldb + j]) + a2 * b[2 * ldb + j]) + a3 * b[3 * ldb + j];
    }
    for (; p < k; p++, b += ldb)
        for (size_t j = 0; j < n; j++)
            c[j] += a[p * cs_a] * b[j];
}
