/* Prototypes of this level's kernels, by SIMD_NAME(); kernels.h says what they mean. Only override.c lists them. */
#ifndef STARPULLM_KERNELS_SIMD_H
#define STARPULLM_KERNELS_SIMD_H

#include "kernels/kernels.h"
#include "kernels/simd/vector.h"

void SIMD_NAME(matmul_forward)(float *out, const float *inp, const float *weight, const float *bias, size_t N, size_t C,
                               size_t OC, struct team team);
void SIMD_NAME(matmul_backward_input)(float *dinp, const float *dout, const float *weight, size_t N, size_t C,
                                      size_t OC, enum sum_start start, struct team team);
void SIMD_NAME(matmul_backward_weight)(float *dweight, float *dbias, const float *dout, const float *inp, size_t N,
                                       size_t C, size_t OC, enum sum_start start, struct team team);

#endif
