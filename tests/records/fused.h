/* Before llm.c's source: its functions with sums of products, in which GCC may contract them. It does so wherever a
 * product is added to a sum; nothing else of these functions adds a product. */
#define FUSED __attribute__((optimize("-ffp-contract=fast")))

FUSED void matmul_forward_naive(float *, const float *, const float *, const float *, int, int, int, int);
FUSED void matmul_forward(float *, const float *, const float *, const float *, int, int, int, int);
FUSED void matmul_backward(float *, float *, float *, const float *, const float *, const float *, int, int, int, int);
FUSED void attention_forward(float *, float *, float *, float *, int, int, int, int);
FUSED void attention_backward(float *, float *, float *, float *, float *, float *, int, int, int, int);
