/* Prototypes of this level's kernels and of what they share; kernels.def says what the kernels
 * mean. */
#pragma once

#include "kernels/kernels.h"
#include "kernels/simd/vector.h"

#define KERNEL(name, parameters) void SIMD_NAME(name) parameters;
#include "kernels/kernels.def"

/* The reference kernels at this level: for heads so small that packing takes longer than it saves, and where there is
 * no memory to pack. */
__typeof__(SIMD_NAME(attention_forward)) SIMD_NAME(attention_forward_unpacked);
__typeof__(SIMD_NAME(attention_backward)) SIMD_NAME(attention_backward_unpacked);

/* ---- What several kernels use ---- */

/* out[j,i] = in[i,j] of in (rows,columns), whose rows are ldin apart; out's are ldout apart. */
void SIMD_NAME(transpose)(float *out, size_t ldout, const float *in, size_t ldin, size_t rows, size_t columns);

/* e[i] = cr_expf(x[i] - mx), mx being the largest of x and -10000. Returns the ordered sum of e from 0. e and x
 * don't overlap. `next` (count), if it isn't NULL, is prefetched. */
float SIMD_NAME(softmax_exponentials)(float *e /* (count) */, const float *x /* (count) */, size_t count,
                                      const float *next);

/* For products too small to gain by packing or micro-tiles, a single row, and where there is no memory to pack:
 * c[j] = ordered sum over p < k of a[p * cs_a] * b[p * ldb + j], j < n. Lanes go across c. */
void SIMD_NAME(unpacked_row)(float *c, enum sum_start start, const float *a, size_t cs_a, const float *b, size_t ldb,
                             size_t n, size_t k);
