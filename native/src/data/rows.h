/* The table of a session's data: which tensors have buffers, which share one, and which rank has which. Handles are
 * made from it. Each stage of a pipeline has the same rows, with its own layers. */
#pragma once

#include "data/data.h"
#include "data/workload.h"

enum {
    ROW_PARAMETERS, /* parameters, gradients, m and v by group and parameter */
    ROW_ACTIVATIONS = STARPULLM_ACTIVATIONS * NUM_PARAMETERS, /* and their gradients, by group and activation */
    ROW_INPUTS = ROW_ACTIVATIONS + 2 * NUM_ACTIVATIONS,
    ROW_TARGETS,
    ROW_MEAN_LOSSES,
    NUM_ROWS
};

/* A tensor's handles in a stage: one for each instance, a layer or a slot, slice, a sub-batch, a set or a pipeline,
 * and tile of rows. Layer l has instance l - base modulo their number. Pipelines have equally many of several slices,
 * each on its rank with the stage. */
struct row {
    const char *group, *tensor;                 /* the name: group, tensor, instance, tile, slice; group NULL: none */
    const char *instance_format, *slice_format; /* NULL: the name has no such number */
    int stage, number;                          /* in the stage */
    int base; /* the number of instance 0 in names: its layer, or the stage of a buffer for all of its blocks */
    int instances, slices, tiles;
    bool of_updater;        /* owned by the rank that updates the parameter */
    bool of_pipelines;      /* a slice is a pipeline's, and has its rank's number in its name */
    bool used_on_all_ranks; /* every rank has a handle */
    bool transient;
    int64_t elements; /* of all tiles */
    int first;        /* id; that of instance i, slice k and tile t is first + (i * slices + k) * tiles + t */
};

struct table {
    struct handles_options options;
    struct row *rows; /* [stage][row] */
    int64_t num_rows;
    int count; /* handles of all ranks */
};

status table_create(const struct handles_options *options, struct table *table);

int activation_number(enum starpullm_group group, enum activation a);
const struct row *table_row(const struct table *table, int stage, int number);

/* The slice of a row that a sub-batch has. */
int slice_of(const struct table *table, const struct row *row, int sub_batch);

/* Which handle of a row. */
struct position {
    int instance, slice, tile;
};

int id_of(const struct row *row, struct position at);
int64_t elements_in_row(const struct table *table, const struct row *row, int tile);
bool evictable(const struct table *table, const struct row *row, size_t bytes);
/* As every rank knows it. */
struct data describe(const struct table *table, const struct row *row, struct position at);

/* Whether this rank has it: what it owns, and what its tasks read of others. */
bool is_here(const struct table *table, const struct row *row, struct position at);
bool has_buffer(const struct table *table, const struct row *row, struct position at);
