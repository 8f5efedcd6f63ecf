/* What this level has: the entries that differ from the portable kernels. Called by kernels/select.c. */
#include "kernels/simd/kernels_simd.h"
#include "kernels/simd/simd.h"

void SIMD_NAME(kernels_override)(struct kernels *kernels)
{
    kernels->matmul_forward = SIMD_NAME(matmul_forward);
    kernels->matmul_backward_input = SIMD_NAME(matmul_backward_input);
    kernels->matmul_backward_weight = SIMD_NAME(matmul_backward_weight);
}
