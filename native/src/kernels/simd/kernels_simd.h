/* Prototypes of this level's kernels and of its vector functions; kernels.def says what the kernels mean. */
#pragma once

#include "kernels/kernels.h"
#include "kernels/libm.h"
#include "kernels/simd/vector.h"

#define KERNEL(name, parameters) void SIMD_NAME(name) parameters;
#include "kernels/kernels.def"

/* The reference kernels at this level: for heads so small that packing takes longer than it saves, and where there is
 * no memory to pack. */
__typeof__(SIMD_NAME(attention_forward)) SIMD_NAME(attention_forward_unpacked);
__typeof__(SIMD_NAME(attention_backward)) SIMD_NAME(attention_backward_unpacked);

/* The functions of simd/math.h over arrays. */
libm_map SIMD_NAME(map_expf), SIMD_NAME(map_tanhf), SIMD_NAME(map_coshf);
