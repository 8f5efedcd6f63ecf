/* Which rank has what: the home of a sub-batch and the owner of a parameter. Every rank gets the same answers. */
#pragma once

#include "model/tensors.h"

struct placement {
    int rank, ranks;
    int sub_batches; /* of all ranks; divisible by ranks */
    int layers;
    int *owners; /* (NUM_PARAMETERS, layers) */
};

status placement_create(struct placement *placement, const model_config *config, int rank, int ranks, int sub_batches);
void placement_destroy(struct placement *placement);

int sub_batches_of_rank(const struct placement *placement);

/* The rank that computes a sub-batch: rank 0 the first ones, rank 1 the next ones, and so on. */
int home_of(const struct placement *placement, int sub_batch);

/* This rank's first sub-batch. */
int first_of_rank(const struct placement *placement);

/* The rank that holds a parameter's m and v, and updates it. Each parameter, the largest first, goes to the rank with
 * the fewest elements so far. */
int owner_of(const struct placement *placement, enum parameter p, int layer);
