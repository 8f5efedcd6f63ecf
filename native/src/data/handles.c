/* A session's handles, made from the table of its data. */
#include "data/handles.h"

#include <stdlib.h>
#include <string.h>

#include "data/pages.h"
#include "data/rows.h"

/* What this rank has; bytes are of buffers, exact below 2^53 and never beyond any number. */
struct total {
    int64_t handles;
    double staying, evictable;
};

struct handles {
    struct table table;
    struct data *here; /* those that this rank has, in the order of their ids */
    int num_here;
    struct total total;
};

/* ---- Creating them ---- */

static status create(struct handles *handles, const struct row *row, struct position at)
{
    const struct table *table = &handles->table;
    struct data *data = &handles->here[handles->num_here];
    *data = describe(table, row, at);
    if (!table->options.on_paper)
        TRY(data_create(data, has_buffer(table, row, at)));
    handles->num_here++;
    return STARPULLM_OK;
}

static void add_bytes(struct total *total, const struct table *table, const struct row *row)
{
    for (int tile = 0; tile < row->tiles; tile++) {
        const double bytes = (double)elements_in_row(table, row, tile) * DATA_ELEMENT_BYTES;
        if (evictable(table, row, (size_t)bytes))
            total->evictable += (double)whole_pages((size_t)bytes);
        else
            total->staying += bytes;
    }
}

/* Creates what this rank has, and adds it to the total; `here` NULL: only adds it. */
static status create_here(struct handles *handles, const struct row *row, struct total *total)
{
    for (int i = 0; i < row->instances; i++)
        for (int slice = 0; slice < row->slices; slice++) {
            const struct position first = {i, slice, 0};
            if (!is_here(&handles->table, row, first))
                continue;
            total->handles += row->tiles;
            if (has_buffer(&handles->table, row, first))
                add_bytes(total, &handles->table, row);
            for (int tile = 0; handles->here && tile < row->tiles; tile++)
                TRY(create(handles, row, (struct position){i, slice, tile}));
        }
    return STARPULLM_OK;
}

static status create_rows(struct handles *handles, struct total *total)
{
    for (int64_t r = 0; r < handles->table.num_rows; r++)
        TRY(create_here(handles, &handles->table.rows[r], total));
    return STARPULLM_OK;
}

/* Names what takes less and isn't chosen yet. */
static status check_memory(const struct handles *handles)
{
    const double bytes = handles->total.staying;
    const struct workload *work = handles->table.options.work;
    const double limit = (double)handles->table.options.memory_limit;
    if (limit == 0 || bytes <= limit)
        return STARPULLM_OK;
    return out_of_memory(
        "memory: found %.0f bytes of buffers on rank %d, expected at most %.0f: %s%s%s%s%sfewer or shorter sequences "
        "take less",
        bytes, work->placement.rank, limit, work->recompute == STARPULLM_RECOMPUTE_BLOCK ? "" : "recompute, ",
        work->activation_sets[0] > 1 ? "fewer activation_sets, " : "",
        work->B > 1 && !work->reuse_weight_gradients ? "more sub_batches, " : "",
        work->placement.sub_batches == 1 && !work->reuse_weight_gradients ? "reused weight_gradients, " : "",
        work->placement.ranks == 1 && !handles->table.options.offload ? "a runtime with offload, " : "");
}

static int compare_ids(const void *id, const void *data)
{
    return *(const int32_t *)id - ((const struct data *)data)->id;
}

static struct position position(const struct row *row, int layer, int slice, int tile)
{
    return (struct position){(layer - row->base) % row->instances, slice, tile};
}

/* NULL: this rank doesn't have it. */
static struct data *find_tile(const struct handles *handles, const struct row *row, int layer, int slice, int tile)
{
    if (row->instances == 0)
        return NULL;
    const int32_t id = id_of(row, position(row, layer, slice, tile));
    if (handles->num_here == handles->table.count)
        return &handles->here[id];
    return bsearch(&id, handles->here, (size_t)handles->num_here, sizeof *handles->here, compare_ids);
}

static struct data *find(const struct handles *handles, int stage, int number, int layer, int slice)
{
    return find_tile(handles, table_row(&handles->table, stage, number), layer, slice, 0);
}

static const struct placement *placement_of(const struct handles *handles)
{
    return &handles->table.options.work->placement;
}

static int stage_with_head(const struct handles *handles)
{
    return stage_of(placement_of(handles), HEAD);
}

static status fill_loss_gradient(struct handles *handles)
{
    const struct placement *placement = placement_of(handles);
    struct data *data =
        handles_activation(handles, STARPULLM_ACTIVATION_GRADS, ACT_LOSSES, 0, first_of_rank(placement));
    if (!data) /* another stage has the head */
        return STARPULLM_OK;
    const int64_t rows = (int64_t)data->bytes / DATA_ELEMENT_BYTES;
    void *memory;
    TRY(data_acquire_write(data, &memory));
    for (int64_t n = 0; n < rows; n++)
        ((float *)memory)[n] = 1.0f / (float)(rows * placement->sub_batches);
    data_release(data);
    return STARPULLM_OK;
}

status handles_create(const struct handles_options *options, struct handles **created)
{
    struct handles *handles = *created = calloc(1, sizeof *handles);
    if (!handles)
        return out_of_memory("the session's handles");
    TRY(table_create(options, &handles->table));
    TRY(create_rows(handles, &handles->total));
    TRY(check_memory(handles));
    handles->here = calloc((size_t)handles->total.handles, sizeof *handles->here);
    if (!handles->here)
        return out_of_memory("a table of %lld handles", (long long)handles->total.handles);
    TRY(create_rows(handles, &(struct total){0}));
    return options->on_paper ? STARPULLM_OK : fill_loss_gradient(handles);
}

void handles_destroy(struct handles *handles)
{
    if (!handles)
        return;
    for (int i = 0; i < handles->num_here; i++)
        data_destroy(&handles->here[i]);
    free(handles->here);
    free(handles->table.rows);
    free(handles);
}

/* ---- Finding them ---- */

struct data *handles_parameter(const struct handles *handles, enum starpullm_group group, enum parameter p, int layer)
{
    const int stage = stage_of(placement_of(handles), parameter_place(p, layer));
    return find(handles, stage, ROW_PARAMETERS + (int)group * NUM_PARAMETERS + (int)p, layer, 0);
}

static const struct row *gradient_row(const struct handles *handles, enum parameter p, int stage)
{
    return table_row(&handles->table, stage, ROW_PARAMETERS + STARPULLM_GRADS * NUM_PARAMETERS + (int)p);
}

struct data *handles_gradient(const struct handles *handles, enum parameter p, int layer, int stage, int slice,
                              int tile)
{
    return find_tile(handles, gradient_row(handles, p, stage), layer, slice, tile);
}

struct data handles_end(const struct handles *handles, enum parameter p, int layer, int stage, int slice, int tile)
{
    const struct row *row = gradient_row(handles, p, stage);
    const struct data *here = find_tile(handles, row, layer, slice, tile);
    return here ? *here : describe(&handles->table, row, position(row, layer, slice, tile));
}

struct data *handles_activation(const struct handles *handles, enum starpullm_group group, enum activation a, int layer,
                                int sub_batch)
{
    const struct workload *work = handles->table.options.work;
    const int stage = stage_of(&work->placement, activation_place(&work->config, group, a, layer));
    const int number = activation_number(group, a);
    return find(handles, stage, number, layer,
                slice_of(&handles->table, table_row(&handles->table, stage, number), sub_batch));
}

struct data *handles_inputs(const struct handles *handles, int slot, int sub_batch)
{
    return find(handles, 0, ROW_INPUTS, slot, sub_batch);
}

struct data *handles_targets(const struct handles *handles, int slot, int sub_batch)
{
    return find(handles, stage_with_head(handles), ROW_TARGETS, slot, sub_batch);
}

struct data *handles_mean_loss(const struct handles *handles, int slot)
{
    return find(handles, stage_with_head(handles), ROW_MEAN_LOSSES, slot, 0);
}

int handles_count(const struct handles *handles)
{
    return handles->table.count;
}

void handles_describe(const struct handles *handles, int index, struct starpullm_handle_info *info)
{
    const struct table *table = &handles->table;
    int64_t r = 0;
    while (r + 1 < table->num_rows && index >= table->rows[r + 1].first)
        r++;
    const struct row *row = &table->rows[r];
    const int within = index - row->first, slice = within / row->tiles;
    const struct position at = {slice / row->slices, slice % row->slices, within % row->tiles};
    const struct data data = describe(table, row, at);
    memcpy(info->name, data.name, sizeof info->name);
    info->bytes = (int64_t)data.bytes;
    info->owner = data.owner;
}

struct disk_share handles_share(const struct handles *handles)
{
    const struct total *total = &handles->total;
    return (struct disk_share){
        .evictable = (int64_t)total->evictable, .staying = (int64_t)total->staying, .number = total->handles};
}

int handles_here(const struct handles *handles)
{
    return handles->num_here;
}

struct data *handles_at(const struct handles *handles, int index)
{
    return &handles->here[index];
}
