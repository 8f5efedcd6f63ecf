/* The choice of this machine's kernels: starts from the portable ones and overrides by CPU; the only CPU test.
 * codelets/ calls kernels(), api.c calls kernels_level(). */
#include "kernels/kernels.h"

#include <pthread.h>

#include "kernels/ref/ref.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct kernels chosen;
static const char *level;

static void choose(void)
{
    chosen = (struct kernels){
        .encoder_forward = encoder_forward_ref,
        .encoder_backward = encoder_backward_ref,
        .layernorm_forward = layernorm_forward_ref,
        .layernorm_backward_input = layernorm_backward_input_ref,
        .layernorm_backward_weight = layernorm_backward_weight_ref,
        .matmul_forward = matmul_forward_ref,
        .matmul_backward_input = matmul_backward_input_ref,
        .matmul_backward_weight = matmul_backward_weight_ref,
        .attention_forward = attention_forward_ref,
        .attention_backward = attention_backward_ref,
        .gelu_forward = gelu_forward_ref,
        .gelu_backward = gelu_backward_ref,
        .residual_forward = residual_forward_ref,
        .residual_backward = residual_backward_ref,
        .softmax_forward = softmax_forward_ref,
        .crossentropy_forward = crossentropy_forward_ref,
        .mean_loss = mean_loss_ref,
        .crossentropy_softmax_backward = crossentropy_softmax_backward_ref,
        .adamw_update = adamw_update_ref,
    };
    level = "ref";
}

const struct kernels *kernels(void)
{
    pthread_once(&once, choose);
    return &chosen;
}

const char *kernels_level(void)
{
    pthread_once(&once, choose);
    return level;
}
