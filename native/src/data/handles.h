/* All handles of a session: which tensors have one, and which share one (reuse). Created once by session.c and reused
 * by every step; graph/ asks for the handle of a tensor, a layer and a sub-batch by name. */
#ifndef STARPULLM_HANDLES_H
#define STARPULLM_HANDLES_H

#include <stdbool.h>

#include "data/data.h"
#include "data/placement.h"
#include "model/tensors.h"

struct handles_options {
    model_config config;
    int64_t sub_batch_size;            /* sequences in one sub-batch, B/S */
    int64_t seq_len;                   /* T */
    const struct placement *placement; /* of the S sub-batches of all ranks, and of the parameters; kept */
    enum starpullm_reduction reduction;
    int slots;             /* submissions in flight: each has tokens and a mean loss of its own */
    bool keep_activations; /* true: no activation and no activation gradient shares a buffer with another layer's */
};

struct handles;

status handles_create(const struct handles_options *options, struct handles **handles);
void handles_destroy(struct handles *handles);

/* group is one of STARPULLM_PARAMS, _M, _V; layer 0 for a tensor without layers. Parameters have a buffer on every
 * rank, m and v on their owner only. */
struct data *handles_parameter(const struct handles *handles, enum starpullm_group group, enum parameter p, int layer);

/* The index-th of a parameter's gradients: with the reduction `ordered` one per rank, with `tree` one per sub-batch,
 * with `redux` one. */
struct data *handles_gradient(const struct handles *handles, enum parameter p, int layer, int index);
int handles_gradients(const struct handles *handles);

/* (B/S, T, …) of one sub-batch, on its home. */
struct data *handles_activation(const struct handles *handles, enum activation a, int layer, int sub_batch);

/* The same for its gradient. NULL for the tensors whose gradient nothing is accumulated into (means, rstds, probs).
 * The gradient of losses is constant, 1/(B·T), and one handle for all sub-batches of a rank. */
struct data *handles_activation_grad(const struct handles *handles, enum activation a, int layer, int sub_batch);

/* Whether each layer has a buffer of its own, so that it still holds its value after the step. */
bool handles_activation_kept(const struct handles *handles, enum activation a);
bool handles_activation_grad_kept(const struct handles *handles, enum activation a);

/* int32 (B/S, T) of one sub-batch, for the submission in this slot. */
struct data *handles_inputs(const struct handles *handles, int slot, int sub_batch);
struct data *handles_targets(const struct handles *handles, int slot, int sub_batch);

/* float (1): the running, at last the mean loss, on rank 0. */
struct data *handles_mean_loss(const struct handles *handles, int slot);

int handles_count(const struct handles *handles);
struct data *handles_at(const struct handles *handles, int index);

#endif
