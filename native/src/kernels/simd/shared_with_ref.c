/* The kernels whose plain loops the compiler vectorises as they stand: the source of kernels/ref, compiled with this
 * level's instructions. test_kernels.c compares the two builds of it. */
#include "kernels/simd/kernels_simd.h"

#define adamw_update_ref SIMD_NAME(adamw_update)
#define crossentropy_forward_ref SIMD_NAME(crossentropy_forward)
#define crossentropy_softmax_backward_ref SIMD_NAME(crossentropy_softmax_backward)
#define encoder_backward_ref SIMD_NAME(encoder_backward)
#define encoder_forward_ref SIMD_NAME(encoder_forward)
#define gradient_add_ref SIMD_NAME(gradient_add)
#define layernorm_backward_weight_ref SIMD_NAME(layernorm_backward_weight)
#define mean_loss_ref SIMD_NAME(mean_loss)
#define residual_backward_ref SIMD_NAME(residual_backward)
#define residual_forward_ref SIMD_NAME(residual_forward)

#include "kernels/ref/adamw.c"
#include "kernels/ref/crossentropy.c"
#include "kernels/ref/encoder.c"
#include "kernels/ref/gradient.c"
#include "kernels/ref/layernorm_weight.c"
#include "kernels/ref/residual.c"
