/* Sums without packing or micro-tiles: for products too small to gain by them, a single row, and where there is no
 * memory to pack. */
#pragma once

#include "kernels/kernels.h"
#include "kernels/simd/vector.h"

/* c[j] = ordered sum over p < k of a[p * cs_a] * b[p * ldb + j], j < n. Lanes go across c. */
void SIMD_NAME(unpacked_row)(float *c, enum sum_start start, const float *a, size_t cs_a, const float *b, size_t ldb,
                             size_t n, size_t k);
