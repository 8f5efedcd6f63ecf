/* The loss: the portable source, whose long loops the compiler vectorises as they stand, compiled for this level.
 * override.c offers them. */
#include "kernels/simd/kernels_simd.h"

#define crossentropy_forward_ref SIMD_NAME(crossentropy_forward)
#define mean_loss_ref SIMD_NAME(mean_loss)
#define crossentropy_softmax_backward_ref SIMD_NAME(crossentropy_softmax_backward)
#include "kernels/ref/crossentropy.c"
