/* Prototypes of the portable kernels, one per entry of struct kernels; kernels.h says what they mean.
 * kernels/select.c starts from them; nothing else calls them. */
#ifndef STARPULLM_KERNELS_REF_H
#define STARPULLM_KERNELS_REF_H

#include "kernels/kernels.h"
#include "kernels/peak.h"

void encoder_forward_ref(float *out, const int32_t *tokens, const float *wte, const float *wpe, size_t B, size_t T,
                         size_t C, struct team team);
void encoder_backward_ref(float *dwte, float *dwpe, const float *dout, const int32_t *tokens, size_t B, size_t T,
                          size_t C, size_t maxT, enum sum_start dwpe_start, struct team team);

void layernorm_forward_ref(float *out, float *mean, float *rstd, const float *inp, const float *weight,
                           const float *bias, size_t N, size_t C, struct team team);
void layernorm_backward_input_ref(float *dinp, const float *dout, const float *inp, const float *mean,
                                  const float *rstd, const float *weight, size_t N, size_t C, enum sum_start start,
                                  struct team team);
void layernorm_backward_weight_ref(float *dweight, float *dbias, const float *dout, const float *inp, const float *mean,
                                   const float *rstd, size_t N, size_t C, enum sum_start start, struct team team);

void matmul_forward_ref(float *out, const float *inp, const float *weight, const float *bias, size_t N, size_t C,
                        size_t OC, struct team team);
void matmul_backward_input_ref(float *dinp, const float *dout, const float *weight, size_t N, size_t C, size_t OC,
                               enum sum_start start, struct team team);
void matmul_backward_weight_ref(float *dweight, float *dbias, const float *dout, const float *inp, size_t N, size_t C,
                                size_t OC, enum sum_start start, struct team team);

void attention_forward_ref(float *out, float *preatt, float *att, const float *qkv, size_t B, size_t T, size_t C,
                           size_t NH, struct team team);
void attention_backward_ref(float *dqkv, float *dpreatt, float *datt, const float *dout, const float *qkv,
                            const float *att, size_t B, size_t T, size_t C, size_t NH, struct team team);

void gelu_forward_ref(float *out, const float *inp, size_t count, struct team team);
void gelu_backward_ref(float *dinp, const float *dout, const float *inp, size_t count, enum sum_start start,
                       struct team team);

void residual_forward_ref(float *out, const float *a, const float *b, size_t count, struct team team);
void residual_backward_ref(float *da, float *db, const float *dout, size_t count, enum sum_start start,
                           struct team team);

void softmax_forward_ref(float *probs, const float *logits, size_t N, size_t V, size_t Vp, struct team team);

void crossentropy_forward_ref(float *losses, const float *probs, const int32_t *targets, size_t N, size_t Vp,
                              struct team team);
void mean_loss_ref(float *mean, const float *losses, size_t N, float divisor, enum sum_start start, struct team team);
void crossentropy_softmax_backward_ref(float *dlogits, const float *dlosses, const float *probs, const int32_t *targets,
                                       size_t N, size_t V, size_t Vp, enum sum_start start, struct team team);

void gradient_add_ref(float *sum, const float *term, size_t count, struct team team);

void adamw_update_ref(float *params, float *m, float *v, const float *grads, size_t count,
                      const struct adamw_options *options, int64_t step, struct team team);

extern const struct peak peak_ref;

#endif
