/* Token and position embeddings: the portable source, whose loops the compiler vectorises as they stand, compiled for
 * this level. override.c offers them. */
#include "kernels/simd/kernels_simd.h"

#define encoder_forward_ref SIMD_NAME(encoder_forward)
#define encoder_backward_ref SIMD_NAME(encoder_backward)
#include "kernels/ref/encoder.c"
