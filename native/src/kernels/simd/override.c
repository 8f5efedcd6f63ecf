/* What this level has: the entries that differ from the portable kernels. Called by kernels/select.c. */
#include "kernels/libm.h"
#include "kernels/simd/kernels_simd.h"
#include "kernels/simd/simd.h"

void SIMD_NAME(kernels_override)(struct kernels *kernels)
{
    kernels->encoder_forward = SIMD_NAME(encoder_forward);
    kernels->encoder_backward = SIMD_NAME(encoder_backward);
    kernels->layernorm_forward = SIMD_NAME(layernorm_forward);
    kernels->layernorm_backward_input = SIMD_NAME(layernorm_backward_input);
    kernels->layernorm_backward_weight = SIMD_NAME(layernorm_backward_weight);
    kernels->matmul_forward = SIMD_NAME(matmul_forward);
    kernels->matmul_backward_input = SIMD_NAME(matmul_backward_input);
    kernels->matmul_backward_weight = SIMD_NAME(matmul_backward_weight);
    kernels->attention_forward = SIMD_NAME(attention_forward);
    kernels->attention_backward = SIMD_NAME(attention_backward);
    /* The portable ones call the platform's functions. */
    if (libm_is_proven(LIBM_TANHF))
        kernels->gelu_forward = SIMD_NAME(gelu_forward);
    if (libm_is_proven(LIBM_TANHF) && libm_is_proven(LIBM_COSHF))
        kernels->gelu_backward = SIMD_NAME(gelu_backward);
    kernels->residual_forward = SIMD_NAME(residual_forward);
    kernels->residual_backward = SIMD_NAME(residual_backward);
    kernels->softmax_forward = SIMD_NAME(softmax_forward);
    kernels->crossentropy_forward = SIMD_NAME(crossentropy_forward);
    kernels->mean_loss = SIMD_NAME(mean_loss);
    kernels->crossentropy_softmax_backward = SIMD_NAME(crossentropy_softmax_backward);
    kernels->gradient_add = SIMD_NAME(gradient_add);
    kernels->adamw_update = SIMD_NAME(adamw_update);
}
