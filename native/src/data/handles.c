/* Which buffers a session has, and which tensors share them: one table of rows, from which all handles are made.
 *
 * Without keep_activations, a tensor that is needed inside one block only has one buffer for all blocks: in the forward
 * pass preatt, attproj and fcproj, which the backward pass doesn't read; in the backward pass every gradient inside a
 * block. This includes residual3's: a block has read it before that of the block below is written. What the backward
 * pass computes again is shared too. Reused gradients of parameters are two, which serve the blocks in turn.
 *
 * With fewer activation sets than sub-batches, sub-batch s of a rank has the buffers of set s modulo their number. Only
 * the gradient of encoded isn't in a set: the encoder's backward passes come after those of all sub-batches. */
#include "data/handles.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    ROW_PARAMETERS, /* parameters, gradients, m and v by group and parameter */
    ROW_ACTIVATIONS = STARPULLM_ACTIVATIONS * NUM_PARAMETERS, /* and their gradients, by group and activation */
    ROW_INPUTS = ROW_ACTIVATIONS + 2 * NUM_ACTIVATIONS,
    ROW_TARGETS,
    ROW_MEAN_LOSSES,
    NUM_ROWS
};

enum owner { OWNED_BY_UPDATER, OWNED_BY_HOME_OF_PART, OWNED_BY_RANK_OF_SET, OWNED_BY_RANK_OF_PART, OWNED_BY_RANK_0 };

/* A tensor's handles: one for each instance, a layer or a slot, part, a sub-batch, a set or a rank,
 * and tile of rows. Layer l has instance l modulo their number. */
struct row {
    const char *group, *tensor;                /* the name: group, tensor, instance, tile, part; group NULL: none */
    const char *instance_format, *part_format; /* NULL: the name has no such number */
    int instances, parts, tiles;
    enum owner owner;
    bool on_all_ranks;      /* every rank has a buffer */
    bool used_on_all_ranks; /* every rank has a handle */
    bool transient;
    int64_t elements; /* of all tiles */
    int first;        /* id; that of instance i, part k and tile t is first + (i * parts + k) * tiles + t */
};

struct handles {
    struct handles_options options;
    struct row rows[NUM_ROWS];
    int count;         /* of all ranks */
    struct data *here; /* those that this rank has, in the order of their ids */
    int num_here;
};

enum presence { ABSENT, NAMED, REGISTERED };

bool sub_batches_share_buffers(const struct workload *work)
{
    return work->activation_sets < sub_batches_of_rank(&work->placement);
}

bool handles_has_activation_grad(enum activation a)
{
    static const bool none[NUM_ACTIVATIONS] = {[ACT_LN1_MEAN] = true, [ACT_LN1_RSTD] = true, [ACT_LN2_MEAN] = true,
                                               [ACT_LN2_RSTD] = true, [ACT_LNF_MEAN] = true, [ACT_LNF_RSTD] = true,
                                               [ACT_PROBS] = true};
    return !none[a];
}

bool handles_activation_kept(const struct handles *handles, enum starpullm_group group, enum activation a)
{
    if (handles->options.keep_activations || !activation_layered(a))
        return true;
    if (group == STARPULLM_ACTIVATION_GRADS)
        return false;
    if (a == ACT_ATT || a == ACT_ATTY)
        return handles->options.work->recompute == STARPULLM_RECOMPUTE_NONE;
    if (handles->options.work->recompute == STARPULLM_RECOMPUTE_BLOCK)
        return a == ACT_RESIDUAL3;
    return a != ACT_PREATT && a != ACT_ATTPROJ && a != ACT_FCPROJ;
}

bool handles_gradient_kept(const struct handles *handles, enum parameter p)
{
    return !handles->options.work->reuse_weight_gradients || !parameter_layered(p);
}

/* ---- The table ---- */

static struct row parameter_row(const struct workload *work, enum starpullm_group group, enum parameter p)
{
    return (struct row){
        .group = group_names[group],
        .tensor = parameter_name(p),
        .instance_format = parameter_layered(p) ? "[%d]" : NULL,
        .instances = parameter_instances(&work->config, p),
        .parts = 1,
        .tiles = 1,
        .owner = OWNED_BY_UPDATER,
        .on_all_ranks = group == STARPULLM_PARAMS,
        .elements = tensor_elements(parameter_shape(&work->config, p)),
    };
}

/* With a part for each sub-batch, at home there; and with one for each rank. */
static struct row of_sub_batches(const struct workload *work, struct row row)
{
    row.parts = work->placement.sub_batches;
    row.owner = OWNED_BY_HOME_OF_PART;
    row.part_format = "#%d";
    return row;
}

static struct row of_ranks(const struct workload *work, struct row row)
{
    row.parts = work->placement.ranks;
    row.owner = OWNED_BY_RANK_OF_PART;
    row.part_format = "/rank%d";
    return row;
}

static struct row gradient_row(const struct handles *handles, enum parameter p)
{
    const struct workload *work = handles->options.work;
    struct row row = parameter_row(work, STARPULLM_GRADS, p);
    if (!handles_gradient_kept(handles, p)) {
        row.instances = row.instances > 1 ? 2 : 1;
        row.instance_format = "~%d";
    }
    row.transient = true;
    row.tiles = work->tiles.counts[p];
    row.used_on_all_ranks = work->reduction == STARPULLM_REDUCTION_REDUX;
    if (work->reduction == STARPULLM_REDUCTION_ORDERED)
        row = of_ranks(work, row);
    else if (work->reduction == STARPULLM_REDUCTION_TREE)
        row = of_sub_batches(work, row);
    if (row.parts == 1)
        row.part_format = NULL;
    return row;
}

static struct row activation_row(const struct workload *work, enum starpullm_group group, enum activation a, bool kept)
{
    return of_sub_batches(
        work, (struct row){
                  .group = group_names[group],
                  .tensor = activation_name(a),
                  .instance_format = kept && activation_layered(a) ? "[%d]" : NULL,
                  .instances = kept ? activation_instances(&work->config, a) : 1,
                  .tiles = 1,
                  .transient = true,
                  .elements = tensor_elements(activation_shape(&work->config, a, (int64_t)work->B, (int64_t)work->T)),
              });
}

/* Of an activation, or a gradient of one, that is in a set: if there is one for each sub-batch, it is as it was. */
static struct row in_sets(const struct workload *work, struct row row)
{
    if (!sub_batches_share_buffers(work))
        return row;
    row.parts = work->activation_sets * work->placement.ranks;
    row.owner = OWNED_BY_RANK_OF_SET;
    row.part_format = "~%d";
    return row;
}

/* Of what each iteration in flight has for itself. */
static struct row slots_row(const struct handles_options *o, const char *name, int64_t elements)
{
    return (struct row){
        .tensor = name, .instance_format = "@%d", .instances = o->slots, .parts = 1, .tiles = 1, .elements = elements};
}

static int activation_number(enum starpullm_group group, enum activation a)
{
    return ROW_ACTIVATIONS + (int)(group - STARPULLM_ACTIVATIONS) * NUM_ACTIVATIONS + (int)a;
}

static void fill_rows(const struct handles *handles, struct row *rows)
{
    const struct workload *work = handles->options.work;
    for (int group = STARPULLM_PARAMS; group <= STARPULLM_V; group++)
        for (int p = 0; p < NUM_PARAMETERS; p++)
            rows[ROW_PARAMETERS + group * NUM_PARAMETERS + p] =
                group == STARPULLM_GRADS ? gradient_row(handles, p) : parameter_row(work, group, p);
    for (int group = STARPULLM_ACTIVATIONS; group <= STARPULLM_ACTIVATION_GRADS; group++)
        for (int a = 0; a < NUM_ACTIVATIONS; a++)
            if (group == STARPULLM_ACTIVATIONS || handles_has_activation_grad(a))
                rows[activation_number(group, a)] =
                    in_sets(work, activation_row(work, group, a, handles_activation_kept(handles, group, a)));
    struct row *gradients = rows + activation_number(STARPULLM_ACTIVATION_GRADS, 0);
    gradients[ACT_ENCODED] = activation_row(work, STARPULLM_ACTIVATION_GRADS, ACT_ENCODED, true);
    /* One buffer of 1/(B*T), B being the whole batch, for all sub-batches of a rank. */
    gradients[ACT_LOSSES] = of_ranks(work, activation_row(work, STARPULLM_ACTIVATION_GRADS, ACT_LOSSES, true));
    gradients[ACT_LOSSES].transient = false;

    const int64_t tokens = (int64_t)(work->B * work->T);
    rows[ROW_INPUTS] = of_sub_batches(work, slots_row(&handles->options, "inputs", tokens));
    rows[ROW_TARGETS] = of_sub_batches(work, slots_row(&handles->options, "targets", tokens));
    rows[ROW_MEAN_LOSSES] = slots_row(&handles->options, "mean_loss", 1);
    rows[ROW_MEAN_LOSSES].owner = OWNED_BY_RANK_0;
    rows[ROW_MEAN_LOSSES].used_on_all_ranks = rows[ROW_MEAN_LOSSES].transient = true;
}

static status make_table(struct handles *handles)
{
    struct row *rows = handles->rows;
    fill_rows(handles, rows);
    int64_t count = 0;
    for (int r = 0; r < NUM_ROWS; r++) {
        rows[r].first = count <= INT32_MAX ? (int)count : 0;
        count += (int64_t)rows[r].instances * rows[r].parts * rows[r].tiles;
    }
    if (count > INT32_MAX)
        return fail(STARPULLM_OUT_OF_MEMORY, "a table of %lld handles", (long long)count);
    handles->count = (int)count;
    return STARPULLM_OK;
}

/* ---- The handles ---- */

static int owner_in(const struct handles *handles, int r, int instance, int part)
{
    const struct placement *placement = &handles->options.work->placement;
    switch (handles->rows[r].owner) {
    case OWNED_BY_UPDATER:
        return owner_of(placement, r % NUM_PARAMETERS, instance);
    case OWNED_BY_HOME_OF_PART:
        return home_of(placement, part);
    case OWNED_BY_RANK_OF_SET:
        return part / handles->options.work->activation_sets;
    case OWNED_BY_RANK_OF_PART:
        return part;
    default:
        return 0;
    }
}

/* `ordered`: whether this rank sends or receives a sum of the gradient to or from rank `other`. */
static bool moves_sum(const struct placement *placement, int r, int instance, int other)
{
    const int rank = placement->rank, last = placement->ranks - 1, distance = abs(other - rank);
    const int updater = owner_of(placement, r % NUM_PARAMETERS, instance);
    return distance == 1 || (r % NUM_PARAMETERS == PARAM_WTE && distance == last) ||
           (rank == updater && other == last) || (rank == last && other == updater);
}

/* `tree`: whether this rank adds the sub-batch's gradient to another, or its update reads it. */
static bool reads_gradient(const struct placement *placement, int r, int instance, int sub_batch)
{
    const int reader = sub_batch > 0 ? home_of(placement, sub_batch & (sub_batch - 1))
                                     : owner_of(placement, r % NUM_PARAMETERS, instance);
    return reader == placement->rank;
}

/* What this rank has: what it owns, what its tasks read of others, and the names of what it exchanges with. */
static enum presence presence_of(const struct handles *handles, int r, int instance, int part)
{
    const struct row *row = &handles->rows[r];
    const struct placement *placement = &handles->options.work->placement;
    const bool gradient = r / NUM_PARAMETERS == STARPULLM_GRADS;
    if (handles->options.on_paper)
        return NAMED;
    if (row->on_all_ranks || row->used_on_all_ranks || owner_in(handles, r, instance, part) == placement->rank)
        return REGISTERED;
    if (gradient && row->owner == OWNED_BY_HOME_OF_PART && reads_gradient(placement, r, instance, part))
        return REGISTERED;
    if (gradient && row->owner == OWNED_BY_RANK_OF_PART && moves_sum(placement, r, instance, part))
        return NAMED;
    return ABSENT;
}

/* Which handle of a row. */
struct position {
    int instance, part, tile;
};

static int64_t elements_of(const struct handles *handles, int r, int tile)
{
    const struct row *row = &handles->rows[r];
    return row->tiles == 1 ? row->elements
                           : (int64_t)tile_elements(&handles->options.work->tiles, r % NUM_PARAMETERS, tile);
}

static void format_name(char name[DATA_NAME_BYTES], const struct row *row, struct position at)
{
    char in_instance[16] = "", of_part[16] = "", of_tile[16] = "";
    if (row->instance_format)
        snprintf(in_instance, sizeof in_instance, row->instance_format, at.instance);
    if (row->part_format)
        snprintf(of_part, sizeof of_part, row->part_format, at.part);
    if (row->tiles > 1)
        snprintf(of_tile, sizeof of_tile, "%%%d", at.tile);
    snprintf(name, DATA_NAME_BYTES, "%s%s%s%s%s%s", row->group ? row->group : "", row->group ? "/" : "", row->tensor,
             in_instance, of_tile, of_part);
}

static int id_of(const struct row *row, struct position at)
{
    return row->first + (at.instance * row->parts + at.part) * row->tiles + at.tile;
}

static bool has_buffer(const struct handles *handles, int r, int owner)
{
    return handles->rows[r].on_all_ranks || owner == handles->options.work->placement.rank;
}

static status create(struct handles *handles, int r, struct position at, enum presence presence)
{
    const struct row *row = &handles->rows[r];
    const int owner = owner_in(handles, r, at.instance, at.part), id = id_of(row, at);
    struct data *data = &handles->here[handles->num_here];
    *data = (struct data){.bytes = (size_t)elements_of(handles, r, at.tile) * DATA_ELEMENT_BYTES,
                          .id = id,
                          .tag = handles->options.first_tag + id,
                          .owner = owner,
                          .on_all_ranks = row->on_all_ranks,
                          .transient = row->transient};
    format_name(data->name, row, at);
    TRY(data_create(data, presence == REGISTERED, has_buffer(handles, r, owner)));
    handles->num_here++;
    return STARPULLM_OK;
}

/* What this rank has; bytes are of buffers, exact below 2^53 and never beyond any number. */
struct total {
    int64_t handles;
    double bytes;
};

/* Creates what this rank has, and adds it to the total; `here` NULL: only adds it. */
static status create_here(struct handles *handles, struct total *total)
{
    for (int r = 0; r < NUM_ROWS; r++)
        for (int i = 0; i < handles->rows[r].instances; i++)
            for (int part = 0; part < handles->rows[r].parts; part++) {
                const struct row *row = &handles->rows[r];
                const enum presence presence = presence_of(handles, r, i, part);
                if (presence == ABSENT)
                    continue;
                total->handles += row->tiles;
                if (has_buffer(handles, r, owner_in(handles, r, i, part)))
                    total->bytes += (double)row->elements * DATA_ELEMENT_BYTES;
                for (int tile = 0; handles->here && tile < row->tiles; tile++)
                    TRY(create(handles, r, (struct position){i, part, tile}, presence));
            }
    return STARPULLM_OK;
}

static status check_memory(const struct handles *handles, double bytes)
{
    const double limit = (double)handles->options.memory_limit;
    if (limit == 0 || bytes <= limit)
        return STARPULLM_OK;
    return fail(STARPULLM_OUT_OF_MEMORY,
                "memory: found %.0f bytes of buffers on rank %d, expected at most %.0f: recompute, fewer "
                "activation_sets, more sub_batches, reused weight_gradients, or fewer or shorter sequences take less",
                bytes, handles->options.work->placement.rank, limit);
}

static int compare_ids(const void *id, const void *data)
{
    return *(const int32_t *)id - ((const struct data *)data)->id;
}

/* NULL: this rank doesn't have it. */
static struct data *find_tile(const struct handles *handles, int r, int instance, int part, int tile)
{
    const struct row *row = &handles->rows[r];
    const int32_t id = id_of(row, (struct position){instance % row->instances, part, tile});
    if (handles->num_here == handles->count)
        return &handles->here[id];
    return bsearch(&id, handles->here, (size_t)handles->num_here, sizeof *handles->here, compare_ids);
}

static struct data *find(const struct handles *handles, int r, int instance, int part)
{
    return find_tile(handles, r, instance, part, 0);
}

static void fill_loss_gradient(struct handles *handles)
{
    const struct placement *placement = &handles->options.work->placement;
    const int r = activation_number(STARPULLM_ACTIVATION_GRADS, ACT_LOSSES);
    const int64_t rows = handles->rows[r].elements;
    float *values = find(handles, r, 0, placement->rank)->buffer;
    for (int64_t n = 0; n < rows; n++)
        values[n] = 1.0f / (float)(rows * placement->sub_batches);
}

static status create_all(struct handles *handles)
{
    struct total total = {0};
    TRY(make_table(handles));
    TRY(create_here(handles, &total));
    TRY(check_memory(handles, total.bytes));
    handles->here = calloc((size_t)total.handles, sizeof *handles->here);
    if (!handles->here)
        return fail(STARPULLM_OUT_OF_MEMORY, "a table of %lld handles", (long long)total.handles);
    TRY(create_here(handles, &total));
    if (!handles->options.on_paper)
        fill_loss_gradient(handles);
    return STARPULLM_OK;
}

status handles_create(const struct handles_options *options, struct handles **handles)
{
    struct handles *created = calloc(1, sizeof *created);
    if (!created)
        return fail(STARPULLM_OUT_OF_MEMORY, "the session's handles");
    created->options = *options;
    const status code = create_all(created);
    if (code != STARPULLM_OK) {
        handles_destroy(created);
        return code;
    }
    *handles = created;
    return STARPULLM_OK;
}

void handles_destroy(struct handles *handles)
{
    if (!handles)
        return;
    for (int i = 0; i < handles->num_here; i++)
        data_destroy(&handles->here[i]);
    free(handles->here);
    free(handles);
}

struct data *handles_parameter(const struct handles *handles, enum starpullm_group group, enum parameter p, int layer)
{
    return find(handles, ROW_PARAMETERS + (int)group * NUM_PARAMETERS + (int)p, layer, 0);
}

struct data *handles_gradient(const struct handles *handles, enum parameter p, int layer, int index, int tile)
{
    return find_tile(handles, ROW_PARAMETERS + STARPULLM_GRADS * NUM_PARAMETERS + (int)p, layer, index, tile);
}

/* The part of a row that a sub-batch has. */
static int part_of(const struct handles *handles, int r, int sub_batch)
{
    const struct placement *placement = &handles->options.work->placement;
    const int home = home_of(placement, sub_batch), sets = handles->options.work->activation_sets;
    switch (handles->rows[r].owner) {
    case OWNED_BY_RANK_OF_SET:
        return home * sets + sub_batch % sub_batches_of_rank(placement) % sets;
    case OWNED_BY_RANK_OF_PART:
        return home;
    default:
        return sub_batch;
    }
}

struct data *handles_activation(const struct handles *handles, enum starpullm_group group, enum activation a, int layer,
                                int sub_batch)
{
    const int r = activation_number(group, a);
    return handles->rows[r].parts > 0 ? find(handles, r, layer, part_of(handles, r, sub_batch)) : NULL;
}

struct data *handles_inputs(const struct handles *handles, int slot, int sub_batch)
{
    return find(handles, ROW_INPUTS, slot, sub_batch);
}

struct data *handles_targets(const struct handles *handles, int slot, int sub_batch)
{
    return find(handles, ROW_TARGETS, slot, sub_batch);
}

struct data *handles_mean_loss(const struct handles *handles, int slot)
{
    return find(handles, ROW_MEAN_LOSSES, slot, 0);
}

int handles_count(const struct handles *handles)
{
    return handles->count;
}

status handles_describe(const struct handles *handles, int index, struct starpullm_handle_info *info)
{
    if (index < 0 || index >= handles->count)
        return fail(STARPULLM_INVALID_ARGUMENT, "handle: found number %d, expected 0 to %d", index, handles->count - 1);
    int r = 0;
    while (r + 1 < NUM_ROWS && index >= handles->rows[r + 1].first)
        r++;
    const struct row *row = &handles->rows[r];
    const int within = index - row->first, part = within / row->tiles;
    const struct position at = {part / row->parts, part % row->parts, within % row->tiles};
    format_name(info->name, row, at);
    info->bytes = elements_of(handles, r, at.tile) * DATA_ELEMENT_BYTES;
    info->owner = owner_in(handles, r, at.instance, at.part);
    return STARPULLM_OK;
}

int handles_here(const struct handles *handles)
{
    return handles->num_here;
}

struct data *handles_at(const struct handles *handles, int index)
{
    return &handles->here[index];
}
