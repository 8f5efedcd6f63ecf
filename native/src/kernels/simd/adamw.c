/* The parameters' update: the portable source, whose loops the compiler vectorises as they stand, compiled for this
 * level. override.c offers it. */
#include "kernels/simd/kernels_simd.h"

#define adamw_update_ref SIMD_NAME(adamw_update)
#include "kernels/ref/adamw.c"
