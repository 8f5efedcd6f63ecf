/* What decides which data a session has. */
#pragma once

#include <stdbool.h>

#include "data/placement.h"
#include "data/tiles.h"
#include "model/tensors.h"

/* What every iteration of a session computes, and how that is divided. */
struct workload {
    model_config config;
    size_t B, T;                   /* of one sub-batch */
    struct placement placement;    /* of the sub-batches of all ranks, and of the parameters */
    struct starpullm_pass *passes; /* of a step, in the order of submission */
    int num_passes;
    bool weight_passes;       /* the gradients of weights have passes of their own */
    bool keep_activations;    /* no activation and no gradient of one shares a buffer with another layer's */
    bool gradients_of_blocks; /* each block has buffers of its own for what these passes read */
    int *activation_sets;     /* of each stage: buffers for the activations of so many sub-batches of a pipeline */
    enum starpullm_reduction reduction;
    struct tiles tiles; /* of the gradients */
    enum starpullm_recompute recompute;
    bool reuse_weight_gradients; /* the blocks share two gradients of each parameter; on one rank, one sub-batch */
    bool update_after_block;     /* a block's update is submitted after its last backward pass; on one rank */
};

/* Of each pipeline so many sub-batches, the last ones, have their activations after a step on all stages. */
int sub_batches_kept(const struct workload *work);

/* Whether each layer has a buffer of its own, which holds its value until the next iteration. */
bool activation_kept(const struct workload *work, enum starpullm_group group, enum activation a);
bool gradient_kept(const struct workload *work, enum parameter p);

struct handles_options {
    const struct workload *work; /* must stay */
    int slots;                   /* iterations in flight: each has tokens and a mean loss of its own */
    int64_t first_tag;           /* of transfers: a handle's id is added */
    bool on_paper;               /* all ranks' handles are here, as names alone: for a plan of tasks */
    int64_t memory_limit;        /* bytes of this rank's buffers; 0: any number */
    bool devices;                /* StarPU has the memory of what only one iteration needs: on one rank */
    bool offload;                /* all but small data, tokens and losses move to a disk: on one rank */
};
