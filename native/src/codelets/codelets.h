/* One submit_<operation>() per operation: it declares the operation's accesses and inserts one task. StarPU derives the
 * dependencies from the accesses and the order of submission.
 *
 * Arguments: the task's place in the algorithm, then in the order of the kernels outputs, inputs and sizes (letters as
 * in kernels/kernels.h). A sum_start decides between STARPU_W and STARPU_RW. */
#ifndef STARPULLM_CODELETS_H
#define STARPULLM_CODELETS_H

#include "codelets/loss_future.h"
#include "data/data.h"
#include "kernels/kernels.h"

/* A scheduler with priorities takes, of the tasks that are ready, one of the highest priority. */
enum { PRIORITY_LATER = -1, PRIORITY_DEFAULT, PRIORITY_AT_ONCE };

/* A task's place in the algorithm (-1 where there is no sub-batch or layer), the rank that runs it, its priority. */
struct task_place {
    struct iteration *iteration;
    int sub_batch, layer, rank, priority;
};

/* How a task adds to a parameter's gradient: it starts the sum, continues it, or contributes to StarPU's reduction,
 * which adds the contributions in any order. */
enum accumulation { ACCUMULATION_STARTS, ACCUMULATION_CONTINUES, ACCUMULATION_REDUCES };

status submit_encoder_forward(struct task_place place, struct data *out, struct data *tokens, struct data *wte,
                              struct data *wpe, size_t B, size_t T, size_t C);
status submit_encoder_backward(struct task_place place, struct data *dwte, struct data *dwpe, struct data *dout,
                               struct data *tokens, size_t B, size_t T, size_t C, size_t maxT,
                               enum accumulation dwte_accumulation, enum accumulation dwpe_accumulation);

status submit_layernorm_forward(struct task_place place, struct data *out, struct data *mean, struct data *rstd,
                                struct data *inp, struct data *weight, struct data *bias, size_t N, size_t C);
status submit_layernorm_backward_input(struct task_place place, struct data *dinp, struct data *dout, struct data *inp,
                                       struct data *mean, struct data *rstd, struct data *weight, size_t N, size_t C,
                                       enum sum_start start);
status submit_layernorm_backward_weight(struct task_place place, struct data *dweight, struct data *dbias,
                                        struct data *dout, struct data *inp, struct data *mean, struct data *rstd,
                                        size_t N, size_t C, enum accumulation accumulation);

/* bias and dbias: NULL where there is none. */
status submit_matmul_forward(struct task_place place, struct data *out, struct data *inp, struct data *weight,
                             struct data *bias, size_t N, size_t C, size_t OC);
status submit_matmul_backward_input(struct task_place place, struct data *dinp, struct data *dout, struct data *weight,
                                    size_t N, size_t C, size_t OC, enum sum_start start);
status submit_matmul_backward_weight(struct task_place place, struct data *dweight, struct data *dbias,
                                     struct data *dout, struct data *inp, size_t N, size_t C, size_t OC,
                                     enum accumulation accumulation);

status submit_attention_forward(struct task_place place, struct data *out, struct data *preatt, struct data *att,
                                struct data *qkv, size_t B, size_t T, size_t C, size_t NH);
status submit_attention_backward(struct task_place place, struct data *dqkv, struct data *dpreatt, struct data *datt,
                                 struct data *dout, struct data *qkv, struct data *att, size_t B, size_t T, size_t C,
                                 size_t NH);

status submit_gelu_forward(struct task_place place, struct data *out, struct data *inp, size_t count);
status submit_gelu_backward(struct task_place place, struct data *dinp, struct data *dout, struct data *inp,
                            size_t count, enum sum_start start);
status submit_residual_forward(struct task_place place, struct data *out, struct data *a, struct data *b, size_t count);
status submit_residual_backward(struct task_place place, struct data *da, struct data *db, struct data *dout,
                                size_t count, enum sum_start start);

status submit_softmax_forward(struct task_place place, struct data *probs, struct data *logits, size_t N, size_t V,
                              size_t Vp);
status submit_crossentropy_forward(struct task_place place, struct data *losses, struct data *probs,
                                   struct data *targets, size_t N, size_t Vp);
status submit_crossentropy_softmax_backward(struct task_place place, struct data *dlogits, struct data *dlosses,
                                            struct data *probs, struct data *targets, size_t N, size_t V, size_t Vp,
                                            enum sum_start start);

/* divisor: see kernels.h. */
status submit_mean_loss(struct task_place place, struct data *mean, struct data *losses, size_t N, float divisor,
                        enum sum_start start);
/* Makes `loss` ready; NULL if the task runs on another rank. */
status submit_report_loss(struct task_place place, struct data *mean, struct starpullm_loss *loss);

/* sum accumulates term, which isn't needed afterwards. */
status submit_gradient_add(struct task_place place, struct data *sum, struct data *term, size_t count);

/* Sends the value of `source` from its owner to the owner of `destination`, another rank; both have the same size. It
 * is a message and no task, but ordered among the tasks by its accesses. */
status submit_transfer(struct task_place place, struct data *destination, struct data *source);

/* ---- ACCUMULATION_REDUCES: once for each gradient, and before a step's first contribution ---- */

/* The reduction is a sum that starts at +0. */
void gradient_make_reducible(struct data *gradient);
void submit_gradient_clear(struct data *gradient);

/* Other ranks don't need grads afterwards. */
status submit_adamw_update(struct task_place place, struct data *params, struct data *m, struct data *v,
                           struct data *grads, size_t count, const struct adamw_options *options, int64_t step);

/* Name of the operation with this number in the trace; NULL past the last. */
const char *operation_name(int index);

#endif
