/* Which rank has what: the home of a sub-batch and the owner of a parameter, one function each. Asked by handles.c and
 * graph/; every rank gets the same answers. */
#ifndef STARPULLM_PLACEMENT_H
#define STARPULLM_PLACEMENT_H

#include "model/tensors.h"

struct placement {
    int rank, ranks;
    int sub_batches;             /* of all ranks; divisible by ranks */
    int *owners[NUM_PARAMETERS]; /* [p][layer] */
};

status placement_create(struct placement *placement, const model_config *config, int rank, int ranks, int sub_batches);
void placement_destroy(struct placement *placement);

/* The rank that computes sub-batch s: rank 0 the first of the batch's sub-batches, and so on. */
int home_of(const struct placement *placement, int sub_batch);

/* The rank that holds a parameter's m and v and updates it. Parameters are spread by bytes, the largest first, each to
 * the rank that has least so far. */
int owner_of(const struct placement *placement, enum parameter p, int layer);

#endif
