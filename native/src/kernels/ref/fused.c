/* The plain kernels with fused sums of products (docs/numerics.md): the source of kernels/ref once more. */
#define ARITHMETIC fused
#include "kernels/ref/ref.h"

#define attention_backward_ref attention_backward_ref_fused
#define attention_forward_ref attention_forward_ref_fused
#define matmul_backward_input_ref matmul_backward_input_ref_fused
#define matmul_backward_weight_ref matmul_backward_weight_ref_fused
#define matmul_forward_ref matmul_forward_ref_fused

#include "kernels/ref/attention.c"
#include "kernels/ref/matmul.c"
