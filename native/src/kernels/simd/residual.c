/* The residual stream's additions: the portable source, whose loops the compiler vectorises as they stand, compiled for
 * this level. override.c offers them. */
#include "kernels/simd/kernels_simd.h"

#define residual_forward_ref SIMD_NAME(residual_forward)
#define residual_backward_ref SIMD_NAME(residual_backward)
#include "kernels/ref/residual.c"
