/* The sum of two contributions: the portable source, whose loop the compiler vectorises as it stands, compiled for this
 * level. override.c offers it. */
#include "kernels/simd/kernels_simd.h"

#define gradient_add_ref SIMD_NAME(gradient_add)
#include "kernels/ref/gradient.c"
