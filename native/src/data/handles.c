/* Which buffers a session has, and which tensors share them.
 *
 * Without keep_activations, a tensor that is needed inside one block only has one buffer for all blocks: in the forward
 * pass preatt, attproj and fcproj, which the backward pass doesn't read; in the backward pass every gradient inside a
 * block. This includes residual3's: a block has read it before that of the block below is written. */
#include "data/handles.h"

#include <stdio.h>
#include <stdlib.h>

struct handles {
    struct handles_options options;
    int sub_batches; /* S, of all ranks */
    int gradients;   /* of a parameter, over all ranks */
    struct data *all;
    int count;
    /* Tables of pointers into `all`, NULL where there are none. They are parts of one array, `entries`. */
    struct data **entries, **next_table;
    struct data **parameters[4][NUM_PARAMETERS]; /* [group][p][layer], and of gradients [layer][index] */
    struct data **activations[NUM_ACTIVATIONS], **activation_grads[NUM_ACTIVATIONS]; /* [a][layer][s] */
    struct data **inputs, **targets;                                                 /* [slot][s] */
    struct data **mean_losses;                                                       /* [slot] */
};

static bool activation_shared(enum activation a)
{
    return a == ACT_PREATT || a == ACT_ATTPROJ || a == ACT_FCPROJ;
}

static bool has_gradient(enum activation a)
{
    static const bool none[NUM_ACTIVATIONS] = {[ACT_LN1_MEAN] = true, [ACT_LN1_RSTD] = true, [ACT_LN2_MEAN] = true,
                                               [ACT_LN2_RSTD] = true, [ACT_LNF_MEAN] = true, [ACT_LNF_RSTD] = true,
                                               [ACT_PROBS] = true};
    return !none[a];
}

bool handles_activation_kept(const struct handles *handles, enum activation a)
{
    return handles->options.keep_activations || !activation_shared(a);
}

bool handles_activation_grad_kept(const struct handles *handles, enum activation a)
{
    return handles->options.keep_activations || !activation_layered(a);
}

/* Allocates an entry per tensor, layer and sub-batch (or slot), more than there are handles. */
static status allocate_tables(struct handles *handles)
{
    const struct handles_options *o = &handles->options;
    const int64_t S = handles->sub_batches;
    int64_t count = o->slots * (2 * S + 1);
    for (int p = 0; p < NUM_PARAMETERS; p++)
        count += (3 + (int64_t)handles->gradients) * parameter_instances(&o->config, p);
    for (int a = 0; a < NUM_ACTIVATIONS; a++)
        count += 2 * S * activation_instances(&o->config, a);
    if (count <= INT32_MAX) {
        handles->all = calloc((size_t)count, sizeof *handles->all);
        handles->entries = calloc((size_t)count, sizeof *handles->entries);
    }
    if (!handles->all || !handles->entries)
        return fail(STARPULLM_OUT_OF_MEMORY, "a table of %lld handles", (long long)count);
    handles->next_table = handles->entries;
    return STARPULLM_OK;
}

static struct data **new_table(struct handles *handles, int count)
{
    struct data **table = handles->next_table;
    handles->next_table += count;
    return table;
}

/* group/tensor[layer]suffix; layer -1: without layers. */
static void format_name(char name[DATA_NAME_BYTES], const char *group, const char *tensor, int layer,
                        const char *suffix)
{
    char index[16] = "";
    if (layer >= 0)
        snprintf(index, sizeof index, "[%d]", layer);
    snprintf(name, DATA_NAME_BYTES, "%s/%s%s%s", group, tensor, index, suffix);
}

static status add(struct handles *handles, struct data **entry, const char *name, int owner, bool on_this_rank,
                  int64_t count, size_t element_size)
{
    struct data *data = &handles->all[handles->count];
    const struct data_options options = {.name = name,
                                         .id = handles->count,
                                         .tag = handles->options.first_tag + handles->count,
                                         .owner = owner,
                                         .on_this_rank = on_this_rank,
                                         .count = (size_t)count,
                                         .element_size = element_size,
                                         .on_paper = handles->options.on_paper};
    TRY(data_create(data, &options));
    handles->count++;
    *entry = data;
    return STARPULLM_OK;
}

/* With a buffer on the owner alone. */
static status add_owned(struct handles *handles, struct data **entry, const char *name, int owner, int64_t count,
                        size_t element_size)
{
    return add(handles, entry, name, owner, owner == handles->options.placement->rank, count, element_size);
}

static int gradients_per_parameter(const struct handles_options *o)
{
    switch (o->reduction) {
    case STARPULLM_REDUCTION_ORDERED:
        return o->placement->ranks;
    case STARPULLM_REDUCTION_TREE:
        return o->placement->sub_batches;
    default:
        return 1;
    }
}

static int gradient_owner(const struct handles_options *o, enum parameter p, int layer, int index)
{
    switch (o->reduction) {
    case STARPULLM_REDUCTION_ORDERED:
        return index;
    case STARPULLM_REDUCTION_TREE:
        return home_of(o->placement, index);
    default:
        return owner_of(o->placement, p, layer);
    }
}

/* Parameters, their gradients, m or v. */
static status create_parameters(struct handles *handles, enum starpullm_group group)
{
    static const char *const group_names[] = {"params", "grads", "m", "v"};
    const struct handles_options *o = &handles->options;
    const bool gradients = group == STARPULLM_GRADS;
    const char *format = o->reduction == STARPULLM_REDUCTION_TREE ? "#%d" : "/rank%d";
    const int number = gradients ? handles->gradients : 1;
    char name[DATA_NAME_BYTES], suffix[24] = "";
    for (int p = 0; p < NUM_PARAMETERS; p++) {
        const int instances = parameter_instances(&o->config, p);
        const int64_t elements = tensor_elements(parameter_shape(&o->config, p));
        struct data **table = handles->parameters[group][p] = new_table(handles, instances * number);
        for (int i = 0; i < instances * number; i++) {
            const int l = i / number, index = i % number;
            const int owner = gradients ? gradient_owner(o, p, l, index) : owner_of(o->placement, p, l);
            if (number > 1)
                snprintf(suffix, sizeof suffix, format, index);
            format_name(name, group_names[group], parameter_name(p), parameter_layered(p) ? l : -1, suffix);
            const bool on_this_rank = group == STARPULLM_PARAMS || owner == o->placement->rank;
            TRY(add(handles, &table[i], name, owner, on_this_rank, elements, sizeof(float)));
            table[i]->transient = gradients;
        }
    }
    return STARPULLM_OK;
}

static status create_activation(struct handles *handles, struct data ***created, const char *group, enum activation a,
                                bool kept)
{
    const struct handles_options *o = &handles->options;
    const int instances = activation_instances(&o->config, a), S = handles->sub_batches;
    const int64_t elements = tensor_elements(activation_shape(&o->config, a, o->sub_batch_size, o->seq_len));
    struct data **table = *created = new_table(handles, instances * S);
    char name[DATA_NAME_BYTES], suffix[16];
    for (int i = 0; i < instances * S; i++) {
        const int l = i / S, s = i % S;
        if (l > 0 && !kept) {
            table[i] = table[s];
            continue;
        }
        snprintf(suffix, sizeof suffix, "#%d", s);
        format_name(name, group, activation_name(a), kept && activation_layered(a) ? l : -1, suffix);
        TRY(add_owned(handles, &table[i], name, home_of(o->placement, s), elements, sizeof(float)));
        table[i]->transient = true;
    }
    return STARPULLM_OK;
}

/* One buffer of 1/(B*T), B being the whole batch, for all sub-batches of a rank. */
static status create_loss_gradient(struct handles *handles)
{
    const struct handles_options *o = &handles->options;
    const int64_t rows = o->sub_batch_size * o->seq_len;
    const int S = handles->sub_batches;
    struct data **table = handles->activation_grads[ACT_LOSSES] = new_table(handles, S);
    char name[DATA_NAME_BYTES];
    for (int s = 0; s < S; s++) {
        const int home = home_of(o->placement, s);
        if (s > 0 && home == home_of(o->placement, s - 1)) {
            table[s] = table[s - 1];
            continue;
        }
        snprintf(name, sizeof name, "activation_grads/losses#%d", s);
        TRY(add_owned(handles, &table[s], name, home, rows, sizeof(float)));
        float *values = table[s]->buffer;
        for (int64_t n = 0; values && n < rows; n++)
            values[n] = 1.0f / (float)(rows * S);
    }
    return STARPULLM_OK;
}

static status create_slots(struct handles *handles)
{
    const struct handles_options *o = &handles->options;
    const int S = handles->sub_batches;
    const int64_t tokens = o->sub_batch_size * o->seq_len;
    handles->inputs = new_table(handles, o->slots * S);
    handles->targets = new_table(handles, o->slots * S);
    handles->mean_losses = new_table(handles, o->slots);
    char name[DATA_NAME_BYTES];
    for (int slot = 0; slot < o->slots; slot++) {
        for (int s = 0; s < S; s++) {
            const int i = slot * S + s, home = home_of(o->placement, s);
            snprintf(name, sizeof name, "inputs@%d#%d", slot, s);
            TRY(add_owned(handles, &handles->inputs[i], name, home, tokens, sizeof(int32_t)));
            snprintf(name, sizeof name, "targets@%d#%d", slot, s);
            TRY(add_owned(handles, &handles->targets[i], name, home, tokens, sizeof(int32_t)));
        }
        snprintf(name, sizeof name, "mean_loss@%d", slot);
        TRY(add_owned(handles, &handles->mean_losses[slot], name, 0, 1, sizeof(float)));
        handles->mean_losses[slot]->transient = true;
    }
    return STARPULLM_OK;
}

static status create_all(struct handles *handles)
{
    TRY(allocate_tables(handles));
    for (int group = STARPULLM_PARAMS; group <= STARPULLM_V; group++)
        TRY(create_parameters(handles, group));
    for (int a = 0; a < NUM_ACTIVATIONS; a++) {
        TRY(create_activation(handles, &handles->activations[a], "activations", a,
                              handles_activation_kept(handles, a)));
        if (a != ACT_LOSSES && has_gradient(a))
            TRY(create_activation(handles, &handles->activation_grads[a], "activation_grads", a,
                                  handles_activation_grad_kept(handles, a)));
    }
    TRY(create_loss_gradient(handles));
    return create_slots(handles);
}

status handles_create(const struct handles_options *options, struct handles **handles)
{
    struct handles *created = calloc(1, sizeof *created);
    if (!created)
        return fail(STARPULLM_OUT_OF_MEMORY, "the session's handles");
    created->options = *options;
    created->sub_batches = options->placement->sub_batches;
    created->gradients = gradients_per_parameter(options);
    status code = create_all(created);
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
    for (int i = 0; i < handles->count; i++)
        data_destroy(&handles->all[i]);
    free(handles->all);
    free(handles->entries);
    free(handles);
}

struct data *handles_parameter(const struct handles *handles, enum starpullm_group group, enum parameter p, int layer)
{
    return handles->parameters[group][p][layer];
}

struct data *handles_gradient(const struct handles *handles, enum parameter p, int layer, int index)
{
    return handles->parameters[STARPULLM_GRADS][p][layer * handles->gradients + index];
}

struct data *handles_activation(const struct handles *handles, enum activation a, int layer, int sub_batch)
{
    return handles->activations[a][layer * handles->sub_batches + sub_batch];
}

struct data *handles_activation_grad(const struct handles *handles, enum activation a, int layer, int sub_batch)
{
    return has_gradient(a) ? handles->activation_grads[a][layer * handles->sub_batches + sub_batch] : NULL;
}

struct data *handles_inputs(const struct handles *handles, int slot, int sub_batch)
{
    return handles->inputs[slot * handles->sub_batches + sub_batch];
}

struct data *handles_targets(const struct handles *handles, int slot, int sub_batch)
{
    return handles->targets[slot * handles->sub_batches + sub_batch];
}

struct data *handles_mean_loss(const struct handles *handles, int slot)
{
    return handles->mean_losses[slot];
}

int handles_count(const struct handles *handles)
{
    return handles->count;
}

struct data *handles_at(const struct handles *handles, int index)
{
    return &handles->all[index];
}

status handles_describe(const struct handles *handles, int index, struct starpullm_handle_info *info)
{
    if (index < 0 || index >= handles->count)
        return fail(STARPULLM_INVALID_ARGUMENT, "handle: found number %d, expected 0 to %d", index, handles->count - 1);
    const struct data *data = &handles->all[index];
    snprintf(info->name, sizeof info->name, "%s", data->name);
    info->bytes = (int64_t)data->bytes;
    info->owner = data->owner;
    return STARPULLM_OK;
}
