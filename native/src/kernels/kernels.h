/* Every kernel's prototype; the operations of the arithmetic contract (docs/numerics.md), one function each.
 * codelets/ calls them through kernels(); kernels/ref/ has the portable ones; nothing here knows more than libc and
 * libm.
 *
 * Argument order: outputs, inputs, sizes. Shapes stand beside the names; arrays are dense and row-major.
 * Letters: B batch, T sequence length, C channels, NH heads, V vocabulary, Vp padded vocabulary, OC output channels,
 * N = B*T rows; row n = b*T + t.
 *
 * An output that is an accumulating ordered sum takes a `sum_start`: SUM_FROM_ZERO starts the sum at +0.0f and never
 * reads the output (it may be uninitialised); SUM_CONTINUES starts from its present value. An output without a
 * sum_start is overwritten. Outputs never overlap inputs.
 *
 * Every kernel is called by all threads of a team at the same time, with the same arguments but for the thread's own
 * number. Each output element is computed whole by one of them (kernels/team.h), so that the bits don't depend on how
 * many there are. A kernel doesn't wait for the team's other threads and needs nothing of what they compute. */
#ifndef STARPULLM_KERNELS_H
#define STARPULLM_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/team.h"

enum sum_start { SUM_FROM_ZERO, SUM_CONTINUES };

struct adamw_options {
    float learning_rate, beta1, beta2, eps, weight_decay;
};

struct kernels {
    void (*encoder_forward)(float *out /* (B,T,C) */, const int32_t *tokens /* (B,T) */, const float *wte /* (V,C) */,
                            const float *wpe /* (maxT,C) */, size_t B, size_t T, size_t C, struct team team);
    /* dwte always continues: the logits' contributions come before (the order of accumulations in wte). Rows of dwpe
     * from T on get nothing added; SUM_FROM_ZERO sets them to +0. */
    void (*encoder_backward)(float *dwte /* (V,C) */, float *dwpe /* (maxT,C) */, const float *dout /* (B,T,C) */,
                             const int32_t *tokens /* (B,T) */, size_t B, size_t T, size_t C, size_t maxT,
                             enum sum_start dwpe_start, struct team team);

    void (*layernorm_forward)(float *out /* (N,C) */, float *mean /* (N) */, float *rstd /* (N) */,
                              const float *inp /* (N,C) */, const float *weight /* (C) */, const float *bias /* (C) */,
                              size_t N, size_t C, struct team team);
    void (*layernorm_backward_input)(float *dinp /* (N,C) */, const float *dout /* (N,C) */,
                                     const float *inp /* (N,C) */, const float *mean /* (N) */,
                                     const float *rstd /* (N) */, const float *weight /* (C) */, size_t N, size_t C,
                                     enum sum_start start, struct team team);
    void (*layernorm_backward_weight)(float *dweight /* (C) */, float *dbias /* (C) */, const float *dout /* (N,C) */,
                                      const float *inp /* (N,C) */, const float *mean /* (N) */,
                                      const float *rstd /* (N) */, size_t N, size_t C, enum sum_start start,
                                      struct team team);

    /* bias is NULL where there is none. */
    void (*matmul_forward)(float *out /* (N,OC) */, const float *inp /* (N,C) */, const float *weight /* (OC,C) */,
                           const float *bias /* (OC) */, size_t N, size_t C, size_t OC, struct team team);
    void (*matmul_backward_input)(float *dinp /* (N,C) */, const float *dout /* (N,OC) */,
                                  const float *weight /* (OC,C) */, size_t N, size_t C, size_t OC, enum sum_start start,
                                  struct team team);
    /* dbias is NULL where there is none. */
    void (*matmul_backward_weight)(float *dweight /* (OC,C) */, float *dbias /* (OC) */, const float *dout /* (N,OC) */,
                                   const float *inp /* (N,C) */, size_t N, size_t C, size_t OC, enum sum_start start,
                                   struct team team);

    /* preatt[b,h,t,t2] and att[b,h,t,t2] are +0 for t2 > t. */
    void (*attention_forward)(float *out /* (B,T,C) */, float *preatt /* (B,NH,T,T) */, float *att /* (B,NH,T,T) */,
                              const float *qkv /* (B,T,3C) */, size_t B, size_t T, size_t C, size_t NH,
                              struct team team);
    /* All three sums start at +0; dpreatt and datt are +0 for t2 > t. */
    void (*attention_backward)(float *dqkv /* (B,T,3C) */, float *dpreatt /* (B,NH,T,T) */,
                               float *datt /* (B,NH,T,T) */, const float *dout /* (B,T,C) */,
                               const float *qkv /* (B,T,3C) */, const float *att /* (B,NH,T,T) */, size_t B, size_t T,
                               size_t C, size_t NH, struct team team);

    /* count: number of elements. */
    void (*gelu_forward)(float *out /* (count) */, const float *inp /* (count) */, size_t count, struct team team);
    void (*gelu_backward)(float *dinp /* (count) */, const float *dout /* (count) */, const float *inp /* (count) */,
                          size_t count, enum sum_start start, struct team team);
    void (*residual_forward)(float *out /* (count) */, const float *a /* (count) */, const float *b /* (count) */,
                             size_t count, struct team team);
    void (*residual_backward)(float *da /* (count) */, float *db /* (count) */, const float *dout /* (count) */,
                              size_t count, enum sum_start start, struct team team);

    void (*softmax_forward)(float *probs /* (N,Vp) */, const float *logits /* (N,Vp) */, size_t N, size_t V, size_t Vp,
                            struct team team);
    void (*crossentropy_forward)(float *losses /* (N) */, const float *probs /* (N,Vp) */,
                                 const int32_t *targets /* (N) */, size_t N, size_t Vp, struct team team);
    /* The mean loss as a chain over sub-batches: adds losses to the running sum; the last link divides it by divisor =
     * binary32(whole batch's tokens), the others pass divisor 0 (no division). */
    void (*mean_loss)(float *mean /* (1) */, const float *losses /* (N) */, size_t N, float divisor,
                      enum sum_start start, struct team team);
    void (*crossentropy_softmax_backward)(float *dlogits /* (N,Vp) */, const float *dlosses /* (N) */,
                                          const float *probs /* (N,Vp) */, const int32_t *targets /* (N) */, size_t N,
                                          size_t V, size_t Vp, enum sum_start start, struct team team);

    /* sum accumulates term: the contributions of two parts of the batch. */
    void (*gradient_add)(float *sum /* (count) */, const float *term /* (count) */, size_t count, struct team team);

    /* step counts from 1. */
    void (*adamw_update)(float *params /* (count) */, float *m /* (count) */, float *v /* (count) */,
                         const float *grads /* (count) */, size_t count, const struct adamw_options *options,
                         int64_t step, struct team team);
};

/* The kernels of this machine, chosen at the first call (kernels/select.c). Safe from any thread. */
const struct kernels *kernels(void);

/* From now on the matmuls are those of a CBLAS, a shared library's path or name, and no longer strict: each thread of a
 * team has its part of the outputs computed. false: the library can't serve, and `sentence` says why. Not while kernels
 * run. */
bool kernels_open_blas(char *sentence, size_t sentence_size, const char *library);

/* From now on they are strict again. */
void kernels_close_blas(void);

/* What the BLAS is; "" while matmuls are strict. */
const char *kernels_blas(void);

/* Their level: "ref", "avx2", "avx512" or "neon"; the best that this machine and build have, unless STARPULLM_SIMD in
 * the environment names another. */
const char *kernels_level(void);

/* What STARPULLM_SIMD names if there is no such level here, else NULL. */
const char *kernels_missing_level(void);

/* Name of the index-th level that this machine and build have, "ref" first and the best last; NULL past the last. */
const char *kernels_level_name(size_t index);

/* The kernels of a level; NULL if there is no such level here. */
const struct kernels *kernels_of_level(const char *name);

#endif
