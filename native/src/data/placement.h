/* Which rank has what: the home of a sub-batch's tasks and the owner of a parameter. Every rank gets the same answers.
 *
 * A pipeline is made of stages, each on a rank of its own: the encoder belongs to the first stage, the head to the
 * last. Each pipeline has sub-batches of its own, and a copy of the model; with one stage each rank is a pipeline. */
#pragma once

#include "model/tensors.h"

struct placement {
    int rank, ranks;
    int stages;
    int *first_blocks; /* (stages + 1): stage p has the blocks first_blocks[p] to first_blocks[p + 1] - 1 */
    int sub_batches;   /* of all pipelines; divisible by their number */
    int layers;
    int *owners; /* (NUM_PARAMETERS, layers) */
};

/* pipeline NULL: one stage. Without blocks of each stage, that with most multiplications has as few as possible. */
status placement_create(struct placement *placement, const model_config *config, int rank, int ranks, int sub_batches,
                        const struct starpullm_pipeline *pipeline);
void placement_destroy(struct placement *placement);

/* Refuses stages that placement_create() can't place on so many ranks; gives their number. */
status stages_check(const struct starpullm_pipeline *pipeline, const model_config *config, int64_t ranks, int *stages);

int parameter_place(enum parameter p, int layer);
/* A gradient that crosses to the stage below belongs to the stage that writes it. */
int activation_place(const model_config *config, enum starpullm_group group, enum activation a, int layer);

int stage_of(const struct placement *placement, int place);
int pipelines(const struct placement *placement);
int sub_batches_of_pipeline(const struct placement *placement);

/* The rank that computes a place for a sub-batch: pipeline 0 has the first sub-batches, pipeline 1 the next ones, and
 * so on. */
int home_of(const struct placement *placement, int sub_batch, int place);
int rank_of_stage(const struct placement *placement, int pipeline, int stage);
int rank_of_pass(const struct placement *placement, int sub_batch, int stage);

int first_of_rank(const struct placement *placement); /* sub-batch of its pipeline */

/* The rank that holds a parameter's m and v, and updates it: each parameter, the largest first, goes to the rank with
 * its stage that has the fewest elements so far. */
int owner_of(const struct placement *placement, enum parameter p, int layer);
/* Whether the tasks of a rank read a parameter: those of its stage, and wte also those of the head. */
bool rank_reads(const struct placement *placement, enum parameter p, int layer, int rank);
