/* Which buffers a session has, which tensors share them, and which rank has which: one table of rows for each stage.
 *
 * Without keep_activations, a tensor that is needed inside one block only has one buffer for all blocks of a stage: in
 * the forward pass preatt, attproj and fcproj, which the backward pass doesn't read; in the backward pass every
 * gradient inside a block. This includes residual3's: a block has read it before that of the block below is written.
 * With gradients_of_blocks, those that the gradients of weights are computed from are the block's own.
 * What the backward pass computes again is shared too. Reused gradients of parameters are two, which serve the blocks
 * in turn.
 *
 * With fewer activation sets than sub-batches, sub-batch s of a pipeline has the buffers of set s modulo their number.
 * Only the gradient of encoded isn't in a set: the encoder's backward passes come after those of all sub-batches. */
#include "data/rows.h"

#include <stdio.h>
#include <stdlib.h>

static int sets_of(const struct workload *work, int stage)
{
    return work->activation_sets[stage];
}

int sub_batches_kept(const struct workload *work)
{
    int kept = sub_batches_of_pipeline(&work->placement);
    for (int stage = 0; stage < work->placement.stages; stage++)
        if (sets_of(work, stage) < kept)
            kept = sets_of(work, stage);
    return kept;
}

bool activation_kept(const struct workload *work, enum starpullm_group group, enum activation a)
{
    const struct tensor *tensor = &activations[a];
    if (work->keep_activations || tensor->place != BLOCK)
        return true;
    if (group == STARPULLM_ACTIVATION_GRADS)
        return work->gradients_of_blocks && tensor->gradient == READ_BY_WEIGHTS;
    switch (tensor->lifetime) {
    case FORWARD:
        return false;
    case ATTENTION:
        return work->recompute == STARPULLM_RECOMPUTE_NONE;
    case BACKWARD:
        return work->recompute != STARPULLM_RECOMPUTE_BLOCK;
    default:
        return true;
    }
}

bool gradient_kept(const struct workload *work, enum parameter p)
{
    return !work->reuse_weight_gradients || parameters[p].place != BLOCK;
}

/* ---- The rows ---- */

static struct row parameter_row(const struct workload *work, int stage, enum starpullm_group group, enum parameter p)
{
    const struct placement *placement = &work->placement;
    struct row row = {
        .group = group_names[group],
        .tensor = parameters[p].name,
        .slices = 1,
        .tiles = 1,
        .of_updater = true,
        .elements = parameter_elements(&work->config, p),
    };
    if (parameters[p].place == BLOCK) {
        row.instance_format = "[%d]";
        row.base = placement->first_blocks[stage];
        row.instances = placement->first_blocks[stage + 1] - row.base;
    } else
        row.instances = stage == stage_of(placement, parameter_place(p, 0));
    return row;
}

static struct row cut(const struct workload *work, struct row row, int slices_of_pipeline, const char *slice_format)
{
    row.slices = slices_of_pipeline * pipelines(&work->placement);
    row.of_updater = false;
    row.slice_format = slice_format;
    return row;
}

static struct row of_sub_batches(const struct workload *work, struct row row)
{
    return cut(work, row, sub_batches_of_pipeline(&work->placement), "#%d");
}

static struct row of_pipelines(const struct workload *work, struct row row)
{
    row.of_pipelines = true;
    return cut(work, row, 1, "/rank%d");
}

/* The stage with the head has a running sum of wte's too, which moves to the owner. */
static struct row gradient_row(const struct workload *work, int stage, enum parameter p)
{
    struct row row = parameter_row(work, stage, STARPULLM_GRADS, p);
    const bool two_stages = p == PARAM_WTE && work->placement.stages > 1;
    if (two_stages && stage == work->placement.stages - 1)
        row.instances = 1;
    if (!gradient_kept(work, p)) {
        row.instances = row.instances > 1 ? 2 : 1;
        row.instance_format = "~%d";
    }
    row.transient = true;
    row.tiles = work->tiles.counts[p];
    row.used_on_all_ranks = work->reduction == STARPULLM_REDUCTION_REDUX;
    if (work->reduction == STARPULLM_REDUCTION_ORDERED)
        row = of_pipelines(work, row);
    else if (work->reduction == STARPULLM_REDUCTION_TREE)
        row = of_sub_batches(work, row);
    if (row.slices == 1 && !two_stages)
        row.slice_format = NULL;
    else if (two_stages && stage > 0 && work->reduction == STARPULLM_REDUCTION_TREE)
        row.slice_format = "/head#%d";
    return row;
}

static struct row activation_row(const struct workload *work, int stage, enum starpullm_group group, enum activation a,
                                 bool kept)
{
    const struct placement *placement = &work->placement;
    struct row row = {
        .group = group_names[group],
        .tensor = activations[a].name,
        .instance_format = kept && activations[a].place == BLOCK ? "[%d]" : NULL,
        .tiles = 1,
        .transient = true,
        .elements = tensor_elements(tensor_shape(&activations[a], &work->config, (int64_t)work->B, (int64_t)work->T)),
    };
    for (int l = tensor_instances(&activations[a], &work->config) - 1; l >= 0; l--)
        if (stage_of(placement, activation_place(&work->config, group, a, l)) == stage) {
            row.base = l;
            row.instances++;
        }
    if (!kept) {
        row.base = stage;
        row.instances = row.instances > 0;
        row.instance_format = placement->stages > 1 ? "/stage%d" : NULL;
    }
    return of_sub_batches(work, row);
}

/* Of an activation, or a gradient of one, that is in a set: if there is one for each sub-batch, it is as it was. */
static struct row in_sets(const struct workload *work, int stage, struct row row)
{
    const int sets = sets_of(work, stage);
    return sets == sub_batches_of_pipeline(&work->placement) ? row : cut(work, row, sets, "~%d");
}

/* Of what each iteration in flight has for itself, in one stage. */
static struct row slots_row(const struct handles_options *o, const char *name, int64_t elements, bool in_stage)
{
    return (struct row){.tensor = name,
                        .instance_format = "@%d",
                        .instances = in_stage ? o->slots : 0,
                        .slices = 1,
                        .tiles = 1,
                        .elements = elements};
}

int activation_number(enum starpullm_group group, enum activation a)
{
    return ROW_ACTIVATIONS + (int)(group - STARPULLM_ACTIVATIONS) * NUM_ACTIVATIONS + (int)a;
}

static void fill_rows(const struct handles_options *options, int stage, struct row *rows)
{
    const struct workload *work = options->work;
    const bool has_head = stage == work->placement.stages - 1;
    for (int group = STARPULLM_PARAMS; group <= STARPULLM_V; group++)
        for (int p = 0; p < NUM_PARAMETERS; p++)
            rows[ROW_PARAMETERS + group * NUM_PARAMETERS + p] =
                group == STARPULLM_GRADS ? gradient_row(work, stage, p) : parameter_row(work, stage, group, p);
    for (int group = STARPULLM_ACTIVATIONS; group <= STARPULLM_ACTIVATION_GRADS; group++)
        for (int a = 0; a < NUM_ACTIVATIONS; a++)
            if (group == STARPULLM_ACTIVATIONS || activations[a].gradient != NO_GRADIENT)
                rows[activation_number(group, a)] =
                    in_sets(work, stage, activation_row(work, stage, group, a, activation_kept(work, group, a)));
    struct row *gradients = rows + activation_number(STARPULLM_ACTIVATION_GRADS, 0);
    gradients[ACT_ENCODED] = activation_row(work, stage, STARPULLM_ACTIVATION_GRADS, ACT_ENCODED, true);
    /* One buffer of 1/(B*T), B being the whole batch, for all sub-batches of a pipeline. */
    gradients[ACT_LOSSES] =
        of_pipelines(work, activation_row(work, stage, STARPULLM_ACTIVATION_GRADS, ACT_LOSSES, true));
    gradients[ACT_LOSSES].transient = false;

    const int64_t tokens = (int64_t)(work->B * work->T);
    rows[ROW_INPUTS] = of_sub_batches(work, slots_row(options, "inputs", tokens, stage == 0));
    rows[ROW_TARGETS] = of_sub_batches(work, slots_row(options, "targets", tokens, has_head));
    rows[ROW_MEAN_LOSSES] = slots_row(options, "mean_loss", 1, has_head);
    rows[ROW_MEAN_LOSSES].used_on_all_ranks = rows[ROW_MEAN_LOSSES].transient = true;
}

status table_create(const struct handles_options *options, struct table *table)
{
    const int stages = options->work->placement.stages;
    *table = (struct table){.options = *options, .num_rows = (int64_t)stages * NUM_ROWS};
    table->rows = calloc((size_t)table->num_rows, sizeof *table->rows);
    if (!table->rows)
        return out_of_memory("a table of the data of %d stages", stages);
    int64_t count = 0;
    for (int64_t r = 0; r < table->num_rows; r++) {
        struct row *row = &table->rows[r];
        if (r % NUM_ROWS == 0)
            fill_rows(options, (int)(r / NUM_ROWS), row);
        row->stage = (int)(r / NUM_ROWS);
        row->number = (int)(r % NUM_ROWS);
        row->first = count <= INT32_MAX ? (int)count : 0;
        int64_t of_row = (int64_t)row->instances * row->slices;
        if (__builtin_mul_overflow(of_row, row->tiles, &of_row) || __builtin_add_overflow(count, of_row, &count))
            return out_of_memory("a table of more handles than 64 bits count");
    }
    if (count > INT32_MAX)
        return out_of_memory("a table of %lld handles", (long long)count);
    table->count = (int)count;
    return STARPULLM_OK;
}

const struct row *table_row(const struct table *table, int stage, int number)
{
    return &table->rows[(int64_t)stage * NUM_ROWS + number];
}

/* ---- Their handles ---- */

/* A single slice is the first pipeline's. */
static int slices_of_pipeline(const struct placement *placement, const struct row *row)
{
    return row->slices > 1 ? row->slices / pipelines(placement) : 1;
}

int slice_of(const struct table *table, const struct row *row, int sub_batch)
{
    const struct placement *placement = &table->options.work->placement;
    const int sub_batches = sub_batches_of_pipeline(placement), slices = slices_of_pipeline(placement, row);
    return sub_batch / sub_batches * slices + sub_batch % sub_batches % slices;
}

static int parameter_of(const struct row *row)
{
    return row->number % NUM_PARAMETERS;
}

static bool is_gradient(const struct row *row)
{
    return row->number / NUM_PARAMETERS == STARPULLM_GRADS;
}

static int owner_in(const struct table *table, const struct row *row, struct position at)
{
    const struct placement *placement = &table->options.work->placement;
    return row->of_updater ? owner_of(placement, parameter_of(row), row->base + at.instance)
                           : rank_of_stage(placement, at.slice / slices_of_pipeline(placement, row), row->stage);
}

int64_t elements_in_row(const struct table *table, const struct row *row, int tile)
{
    return row->tiles == 1 ? row->elements
                           : (int64_t)tile_elements(&table->options.work->tiles, parameter_of(row), tile);
}

static void format_name(char name[DATA_NAME_BYTES], const struct table *table, const struct row *row,
                        struct position at)
{
    char in_instance[16] = "", of_slice[16] = "", of_tile[16] = "";
    if (row->instance_format)
        snprintf(in_instance, sizeof in_instance, row->instance_format, row->base + at.instance);
    if (row->slice_format)
        snprintf(of_slice, sizeof of_slice, row->slice_format, row->of_pipelines ? owner_in(table, row, at) : at.slice);
    if (row->tiles > 1)
        snprintf(of_tile, sizeof of_tile, "%%%d", at.tile);
    snprintf(name, DATA_NAME_BYTES, "%s%s%s%s%s%s", row->group ? row->group : "", row->group ? "/" : "", row->tensor,
             in_instance, of_tile, of_slice);
}

int id_of(const struct row *row, struct position at)
{
    return row->first + (at.instance * row->slices + at.slice) * row->tiles + at.tile;
}

/* ---- Which rank has them ---- */

/* `tree`: whether this rank adds the sub-batch's gradient to another, or its update reads it. */
static bool reads_gradient(const struct placement *placement, enum parameter p, int instance, int sub_batch)
{
    const int reader = sub_batch > 0 ? home_of(placement, sub_batch & (sub_batch - 1), parameter_place(p, instance))
                                     : owner_of(placement, p, instance);
    return reader == placement->rank;
}

/* The stage that reads what this one writes; -1: none other does. */
static int stage_that_reads(const struct table *table, const struct row *row, int instance)
{
    const int stages = table->options.work->placement.stages;
    if (row->number == activation_number(STARPULLM_ACTIVATIONS, ACT_RESIDUAL3) && instance == row->instances - 1)
        return row->stage + 1 < stages ? row->stage + 1 : -1;
    if (row->number == activation_number(STARPULLM_ACTIVATION_GRADS, ACT_RESIDUAL3) && instance == 0)
        return row->stage - 1;
    return -1;
}

/* Whether this rank has a buffer of a parameter because its tasks read it, also if it isn't the owner. */
static bool row_is_copied(const struct table *table, const struct row *row)
{
    const struct placement *placement = &table->options.work->placement;
    return row->number / NUM_PARAMETERS == STARPULLM_PARAMS &&
           rank_reads(placement, parameter_of(row), row->base, placement->rank);
}

/* A smaller datum isn't worth a request to a disk. */
enum { LEAST_EVICTABLE_BYTES = 1 << 16 };

bool evictable(const struct table *table, const struct row *row, size_t bytes)
{
    return table->options.offload && row->group && bytes >= LEAST_EVICTABLE_BYTES;
}

struct data describe(const struct table *table, const struct row *row, struct position at)
{
    const int id = id_of(row, at);
    struct data data = {.bytes = (size_t)elements_in_row(table, row, at.tile) * DATA_ELEMENT_BYTES,
                        .id = id,
                        .tag = table->options.first_tag + id,
                        .owner = owner_in(table, row, at),
                        .copied = row_is_copied(table, row),
                        .passed_on = stage_that_reads(table, row, at.instance) >= 0,
                        .transient = row->transient};
    data.evictable = evictable(table, row, data.bytes);
    data.homeless = data.evictable || (table->options.devices && row->transient);
    format_name(data.name, table, row, at);
    return data;
}

bool is_here(const struct table *table, const struct row *row, struct position at)
{
    const struct placement *placement = &table->options.work->placement;
    const int owner = owner_in(table, row, at), layer = row->base + at.instance;
    const int reader = stage_that_reads(table, row, at.instance), pipeline = owner / placement->stages;
    if (table->options.on_paper || row->used_on_all_ranks || owner == placement->rank || row_is_copied(table, row))
        return true;
    if (reader >= 0)
        return rank_of_stage(placement, pipeline, reader) == placement->rank;
    return is_gradient(row) && !row->of_pipelines &&
           row->stage == stage_of(placement, parameter_place(parameter_of(row), layer)) &&
           reads_gradient(placement, parameter_of(row), layer, at.slice);
}

bool has_buffer(const struct table *table, const struct row *row, struct position at)
{
    return row_is_copied(table, row) || owner_in(table, row, at) == table->options.work->placement.rank;
}
