/* Prototypes of this level's kernels, by SIMD_NAME(); kernels.h says what they mean. Only override.c lists them. */
#ifndef STARPULLM_KERNELS_SIMD_H
#define STARPULLM_KERNELS_SIMD_H

#include "kernels/kernels.h"
#include "kernels/simd/vector.h"

void SIMD_NAME(encoder_forward)(float *out, const int32_t *tokens, const float *wte, const float *wpe, size_t B,
                                size_t T, size_t C, struct team team);
void SIMD_NAME(encoder_backward)(float *dwte, float *dwpe, const float *dout, const int32_t *tokens, size_t B, size_t T,
                                 size_t C, size_t maxT, enum sum_start dwpe_start, struct team team);

void SIMD_NAME(layernorm_forward)(float *out, float *mean, float *rstd, const float *inp, const float *weight,
                                  const float *bias, size_t N, size_t C, struct team team);
void SIMD_NAME(layernorm_backward_input)(float *dinp, const float *dout, const float *inp, const float *mean,
                                         const float *rstd, const float *weight, size_t N, size_t C,
                                         enum sum_start start, struct team team);
void SIMD_NAME(layernorm_backward_weight)(float *dweight, float *dbias, const float *dout, const float *inp,
                                          const float *mean, const float *rstd, size_t N, size_t C,
                                          enum sum_start start, struct team team);

void SIMD_NAME(matmul_forward)(float *out, const float *inp, const float *weight, const float *bias, size_t N, size_t C,
                               size_t OC, struct team team);
void SIMD_NAME(matmul_backward_input)(float *dinp, const float *dout, const float *weight, size_t N, size_t C,
                                      size_t OC, enum sum_start start, struct team team);
void SIMD_NAME(matmul_backward_weight)(float *dweight, float *dbias, const float *dout, const float *inp, size_t N,
                                       size_t C, size_t OC, enum sum_start start, struct team team);

void SIMD_NAME(attention_forward)(float *out, float *preatt, float *att, const float *qkv, size_t B, size_t T, size_t C,
                                  size_t NH, struct team team);
void SIMD_NAME(attention_backward)(float *dqkv, float *dpreatt, float *datt, const float *dout, const float *qkv,
                                   const float *att, size_t B, size_t T, size_t C, size_t NH, struct team team);

void SIMD_NAME(gelu_forward)(float *out, const float *inp, size_t count, struct team team);
void SIMD_NAME(gelu_backward)(float *dinp, const float *dout, const float *inp, size_t count, enum sum_start start,
                              struct team team);

void SIMD_NAME(residual_forward)(float *out, const float *a, const float *b, size_t count, struct team team);
void SIMD_NAME(residual_backward)(float *da, float *db, const float *dout, size_t count, enum sum_start start,
                                  struct team team);

void SIMD_NAME(softmax_forward)(float *probs, const float *logits, size_t N, size_t V, size_t Vp, struct team team);
void SIMD_NAME(crossentropy_forward)(float *losses, const float *probs, const int32_t *targets, size_t N, size_t Vp,
                                     struct team team);
void SIMD_NAME(mean_loss)(float *mean, const float *losses, size_t N, float divisor, enum sum_start start,
                          struct team team);
void SIMD_NAME(crossentropy_softmax_backward)(float *dlogits, const float *dlosses, const float *probs,
                                              const int32_t *targets, size_t N, size_t V, size_t Vp,
                                              enum sum_start start, struct team team);

void SIMD_NAME(gradient_add)(float *sum, const float *term, size_t count, struct team team);

void SIMD_NAME(adamw_update)(float *params, float *m, float *v, const float *grads, size_t count,
                             const struct adamw_options *options, int64_t step, struct team team);

#endif
