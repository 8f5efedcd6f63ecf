/* The training step as a sequential task flow: the operations of forward, loss, backward, reduction and update,
 * submitted in the algorithm's order. What each is, and when it may run, is up to codelets/. */
#pragma once

#include "codelets/operation.h"
#include "data/handles.h"

/* The update at the end of a step. */
struct update {
    int64_t number; /* from 1 */
    struct adamw_options adamw;
};

/* One iteration: a step, an evaluation, or a forward pass alone. */
struct graph_context {
    const struct workload *work;
    const struct handles *handles;
    struct iteration *iteration; /* counts its tasks */
    int slot;                    /* which tokens and which mean loss it uses: see handles.h */
    const struct update *update; /* at its end; NULL: none */
    int priority;                /* of the present pass's tasks */
};

/* ---- schedule.c: the passes of a step ---- */

/* Gives each stage of a workload, whose placement has been made, as many activation sets as it needs for the pipeline's
 * list of passes, which is refused by its first mistake, such as a pass before another whose result it reads. Without a
 * list, forward passes are so many sets (0: all) ahead of backward passes. */
status schedule_create(struct workload *work, const struct starpullm_pipeline *pipeline, int64_t activation_sets);
/* Makes the list that wasn't given, once it is known that there is memory for so many sub-batches. */
status schedule_fill(struct workload *work);
/* Of the tasks of a pass. */
int pass_priority(const struct workload *work, enum starpullm_pass_kind kind, int s);
void schedule_destroy(struct workload *work);

/* ---- step.c: a whole iteration ---- */

/* Forward and loss; loss NULL: up to the probabilities. */
status graph_add_forward(const struct graph_context *context, struct starpullm_loss *loss);
/* Forward, loss, backward and update. */
status graph_add_step(const struct graph_context *context, struct starpullm_loss *loss);

/* ---- forward.c, backward.c: one sub-batch in one stage ---- */

status forward_pass(const struct graph_context *context, int s, int stage);
status loss_pass(const struct graph_context *context, int s, int stage);
status backward_pass(const struct graph_context *context, int s, int stage);
/* The gradients of weights, if the schedule has passes of their own for them. */
status weights_pass(const struct graph_context *context, int s, int stage);
/* The last operation of the backward pass. It is apart because wte takes the logits' contributions of all sub-batches
 * before the first of the encoder's. */
status encoder_backward_pass(const struct graph_context *context, int s, int stage);

/* ---- update.c ---- */

/* Every tensor's gradient is reduced over the sub-batches, and the tensor updated. */
status reduce_and_update(const struct graph_context *context);
/* Before that, with update_after_block: of one block. */
status update_block(const struct graph_context *context, int l);

/* ---- layers.c: a layer and its tensors ---- */

/* Layer l of sub-batch s; l is ENCODER before the first block and HEAD after the last. */
struct layer {
    const struct graph_context *context;
    int s, l;
};

struct data *param(const struct layer *at, enum parameter p); /* NULL of NUM_PARAMETERS */
struct data *act(const struct layer *at, enum activation a);
struct data *act_grad(const struct layer *at, enum activation a);

/* Calls `visit` for each parameter, in the order in which a forward pass needs them. */
typedef status visit_parameter(const struct graph_context *context, enum parameter p, int l);
status for_each_parameter(const struct graph_context *context, visit_parameter *visit);
status for_each_parameter_at(const struct graph_context *context, int place, visit_parameter *visit);

/* Parts of a block's forward pass: attention, and all that the block's backward pass reads. */
status attention_of_block(const struct layer *block);
status inside_of_block(const struct layer *block);

/* The residual stream that enters a block, or the head, and its gradient. */
struct data *block_input(const struct layer *block);
struct data *block_input_grad(const struct layer *block);

/* A stage's blocks: first and the one after the last. */
int first_block(const struct graph_context *context, int stage);
int end_of_blocks(const struct graph_context *context, int stage);
bool has_head(const struct graph_context *context, int stage);

/* On the rank that computes the layer for the sub-batch. */
struct task_attributes attributes_of(const struct layer *at);
struct task_attributes attributes_on_rank(const struct graph_context *context, int rank, int l);

/* The sizes of a sub-batch and of the model, by their letters; N = B*T. */
struct sizes {
    size_t B, T, N, C, NH, V, Vp, maxT;
};
struct sizes sizes_of(const struct graph_context *context);

/* The layernorms' tensors. */
struct layernorm_tensors {
    enum activation out, mean, rstd;
    enum parameter weight, bias;
};
extern const struct layernorm_tensors layernorm_1, layernorm_2, layernorm_final;
struct matmul_sizes {
    size_t C, OC;
};
struct matmul_sizes matmul_sizes_of(const struct graph_context *context, enum parameter weight);

/* ---- reduce.c: the gradients of the parameters ---- */

/* A parameter's gradient gets one contribution of each sub-batch in the first sweep over them; only wte has a second
 * sweep: the logits' contributions, then the encoder's. */
enum sweep { FIRST_SWEEP, SECOND_SWEEP };

/* Makes a tile of the gradient ready for the contribution of at's sub-batch, which has to be submitted next: where the
 * contribution goes, and how it is added. */
status prepare_contribution(const struct layer *at, enum parameter p, int tile, enum sweep sweep,
                            struct sum *contribution);
/* Makes one gradient of all contributions to a tile. */
status reduce_gradient(const struct graph_context *context, enum parameter p, int l, int tile);
/* Where the tile of the gradient of the whole batch then is. */
struct data *gradient_of_batch(const struct graph_context *context, enum parameter p, int l, int tile);
