/* The task flow of one submission: what graph/ needs to know, and its parts. session.c calls step.c; step.c calls
 * the others. Nothing here names StarPU or a kernel. */
#ifndef STARPULLM_GRAPH_H
#define STARPULLM_GRAPH_H

#include "codelets/codelets.h"
#include "data/handles.h"

struct graph_options {
    const struct handles *handles;
    model_config config;
    size_t B, T;     /* of one sub-batch */
    int sub_batches; /* of all ranks */
    const struct placement *placement;
    enum starpullm_reduction reduction;
    struct adamw_options adamw;
};

/* One submission: which of the slots of tokens and mean loss it uses, and what counts its tasks. */
struct graph_context {
    const struct graph_options *options;
    struct iteration *iteration;
    int slot;
};

/* step.c */

/* Forward up to the probabilities. */
status graph_add_forward(const struct graph_context *context);
/* Forward and loss. Takes over the task's hold on `loss`. */
status graph_add_evaluation(const struct graph_context *context, struct starpullm_loss *loss);
/* Forward, loss, backward and update number `update` (from 1). Takes over the task's hold on `loss`. */
status graph_add_step(const struct graph_context *context, struct starpullm_loss *loss, int64_t update);

/* forward.c, backward.c: one sub-batch. The encoder's backward is apart: wte takes all sub-batches' logits
 * contributions before the first of the encoder's. */
status forward_pass(const struct graph_context *context, int s);
status loss_pass(const struct graph_context *context, int s);
status backward_pass(const struct graph_context *context, int s);
status encoder_backward_pass(const struct graph_context *context, int s);

/* update.c: all parameters. */
status update_parameters(const struct graph_context *context, int64_t update);

/* reduce.c: the buffer that sub-batch s adds its contribution to a parameter's gradient to, and how. wte has two
 * passes over the sub-batches, the logits' contributions and the encoder's; the others have the first alone. */
enum pass { FIRST_PASS, SECOND_PASS };
struct contribution {
    struct data *data;
    enum accumulation accumulation;
};
status gradient_contribution(const struct graph_context *context, enum parameter p, int layer, int s, enum pass pass,
                             struct contribution *contribution);
/* Combines the contributions; the whole batch's gradient is then in gradient_of_batch(). */
status reduce_gradient(const struct graph_context *context, enum parameter p, int layer);
struct data *gradient_of_batch(const struct graph_options *graph, enum parameter p, int layer);

/* context.c */
struct task_place place_of(const struct graph_context *context, int s, int layer); /* on the sub-batch's home */
struct task_place place_on(const struct graph_context *context, int rank, int layer);
struct data *param(const struct graph_context *context, enum parameter p, int layer);
struct data *act(const struct graph_context *context, enum activation a, int layer, int s);
struct data *act_grad(const struct graph_context *context, enum activation a, int layer, int s);

#endif
