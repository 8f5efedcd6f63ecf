/* How the gradients of the matmuls' weights and biases are cut by rows. Each tile is a running sum of its own, which
 * tasks and messages of its own pass on: a later sub-batch needn't wait for the whole tensor. No bit depends on it. */
#pragma once

#include "model/tensors.h"
#include "status.h"

struct tiles {
    int counts[NUM_PARAMETERS];
    int64_t rows[NUM_PARAMETERS], row_elements[NUM_PARAMETERS];
};

/* Rows of a parameter, which are a matmul's outputs. */
struct tile {
    size_t first, rows;
};

/* Refuses a number that tiles_choose() can't serve: more than the longest tensor has rows, or more than one with a
 * reduction that has no chains. */
status tiles_check(const model_config *config, int32_t reduction, int32_t requested);

/* requested: so many a tensor, or one a row if it has fewer rows. 0: so many that no chain of sums over all sub-batches
 * is long beside a step on so many workers of all ranks; one for a reduction that has no chains. */
struct tiles tiles_choose(const model_config *config, enum starpullm_reduction reduction, int sub_batches,
                          int64_t workers, int stages, int requested);

struct tile tile_of(const struct tiles *tiles, enum parameter p, int tile);
size_t tile_elements(const struct tiles *tiles, enum parameter p, int tile);
