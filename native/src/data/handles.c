/* Which buffers a session has and which tensors share them. Called by session.c; read by graph/.
 *
 * Without keep_activations, a tensor that is needed inside one block only has one buffer that all blocks reuse: forward
 * preatt, attproj and fcproj (the backward pass doesn't read them), and every gradient inside a block. residual3's
 * gradient too: a block reads it before the block below is given its own. */
#include "data/handles.h"

#include <stdio.h>
#include <stdlib.h>

struct handles {
    struct handles_options options;
    struct data *all;
    int count, capacity;
    int sub_batches; /* S, of all ranks */
    /* Indices into `all`, -1 where there is none. [group][p][layer], [p][layer][index], [a][layer][s], [slot][s],
     * [slot] */
    int *parameters[4][NUM_PARAMETERS]; /* none for gradients */
    int *gradients[NUM_PARAMETERS];
    int *activations[NUM_ACTIVATIONS];
    int *activation_grads[NUM_ACTIVATIONS];
    int *inputs, *targets, *mean_losses;
};

static bool activation_shared(enum activation a)
{
    return a == ACT_PREATT || a == ACT_ATTPROJ || a == ACT_FCPROJ;
}

static bool has_gradient(enum activation a)
{
    switch (a) {
    case ACT_LN1_MEAN:
    case ACT_LN1_RSTD:
    case ACT_LN2_MEAN:
    case ACT_LN2_RSTD:
    case ACT_LNF_MEAN:
    case ACT_LNF_RSTD:
    case ACT_PROBS:
        return false;
    default:
        return true;
    }
}

bool handles_activation_kept(const struct handles *handles, enum activation a)
{
    return handles->options.keep_activations || !activation_shared(a);
}

bool handles_activation_grad_kept(const struct handles *handles, enum activation a)
{
    return handles->options.keep_activations || !activation_layered(a);
}

static status count_all(struct handles *handles)
{
    const struct handles_options *o = &handles->options;
    const int64_t S = handles->sub_batches;
    int64_t count = o->slots * (2 * S + 1);
    for (int p = 0; p < NUM_PARAMETERS; p++)
        count += (3 + (int64_t)handles_gradients(handles)) * parameter_instances(&o->config, p);
    for (int a = 0; a < NUM_ACTIVATIONS; a++)
        count += 2 * S * activation_instances(&o->config, a);
    if (count <= INT32_MAX)
        handles->all = calloc((size_t)count, sizeof *handles->all);
    if (!handles->all)
        return fail(STARPULLM_OUT_OF_MEMORY, "a table of %lld handles", (long long)count);
    handles->capacity = (int)count;
    return STARPULLM_OK;
}

static status make_indices(int **indices, int count)
{
    *indices = malloc((size_t)count * sizeof **indices);
    if (!*indices)
        return fail(STARPULLM_OUT_OF_MEMORY, "a table of %d handles", count);
    for (int i = 0; i < count; i++)
        (*indices)[i] = -1;
    return STARPULLM_OK;
}

/* data_create() on the next free entry; its index goes to *index. */
#define ADD(handles, index, owner_, present_, count_, size_, ...)                                        \
    do {                                                                                                 \
        struct handles *h_ = (handles);                                                                  \
        TRY(data_create(&h_->all[h_->count], h_->count, (owner_), (present_), (size_t)(count_), (size_), \
                        __VA_ARGS__));                                                                   \
        *(index) = h_->count++;                                                                          \
    } while (0)

/* The same with a buffer on the owner alone. */
#define ADD_OWNED(handles, index, owner, count, size, ...) \
    ADD(handles, index, owner, (owner) == (handles)->options.placement->rank, count, size, __VA_ARGS__)

static status create_parameters(struct handles *handles, enum starpullm_group group, const char *group_name)
{
    const struct handles_options *o = &handles->options;
    for (int p = 0; p < NUM_PARAMETERS; p++) {
        const int instances = parameter_instances(&o->config, p);
        const int64_t elements = tensor_elements(parameter_shape(&o->config, p));
        int **indices = &handles->parameters[group][p];
        TRY(make_indices(indices, instances));
        for (int l = 0; l < instances; l++) {
            const int owner = owner_of(o->placement, p, l);
            const bool present = group == STARPULLM_PARAMS || owner == o->placement->rank;
            if (parameter_layered(p))
                ADD(handles, *indices + l, owner, present, elements, sizeof(float), "%s/%s[%d]", group_name,
                    parameter_name(p), l);
            else
                ADD(handles, *indices + l, owner, present, elements, sizeof(float), "%s/%s", group_name,
                    parameter_name(p));
        }
    }
    return STARPULLM_OK;
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

static status create_gradients(struct handles *handles)
{
    const struct handles_options *o = &handles->options;
    const int number = handles_gradients(handles);
    for (int p = 0; p < NUM_PARAMETERS; p++) {
        const int instances = parameter_instances(&o->config, p);
        const int64_t elements = tensor_elements(parameter_shape(&o->config, p));
        int **indices = &handles->gradients[p];
        TRY(make_indices(indices, instances * number));
        for (int l = 0; l < instances; l++)
            for (int i = 0; i < number; i++) {
                const int owner = gradient_owner(o, p, l, i);
                char layer[16] = "", part[24] = "";
                if (parameter_layered(p))
                    snprintf(layer, sizeof layer, "[%d]", l);
                if (number > 1)
                    snprintf(part, sizeof part, o->reduction == STARPULLM_REDUCTION_TREE ? "#%d" : "/rank%d", i);
                ADD_OWNED(handles, &(*indices)[l * number + i], owner, elements, sizeof(float), "grads/%s%s%s",
                          parameter_name(p), layer, part);
                handles->all[(*indices)[l * number + i]].transient = true;
            }
    }
    return STARPULLM_OK;
}

static status create_activation(struct handles *handles, int **indices, const char *group, enum activation a, bool kept)
{
    const struct handles_options *o = &handles->options;
    int instances = activation_instances(&o->config, a);
    int64_t elements = tensor_elements(activation_shape(&o->config, a, o->sub_batch_size, o->seq_len));
    /* Fits: count_all() has counted twice as many. */
    TRY(make_indices(indices, instances * handles->sub_batches));
    for (int l = 0; l < instances; l++)
        for (int s = 0; s < handles->sub_batches; s++) {
            const int home = home_of(o->placement, s);
            int *index = &(*indices)[l * handles->sub_batches + s];
            if (l > 0 && !kept)
                *index = (*indices)[s];
            else if (kept && activation_layered(a))
                ADD_OWNED(handles, index, home, elements, sizeof(float), "%s/%s[%d]#%d", group, activation_name(a), l,
                          s);
            else
                ADD_OWNED(handles, index, home, elements, sizeof(float), "%s/%s#%d", group, activation_name(a), s);
            handles->all[*index].transient = true;
        }
    return STARPULLM_OK;
}

/* One buffer of 1/(B·T), B being the whole batch, for all sub-batches of a rank. */
static status create_loss_gradient(struct handles *handles)
{
    const struct handles_options *o = &handles->options;
    const int64_t rows = o->sub_batch_size * o->seq_len;
    const int S = handles->sub_batches;
    int **indices = &handles->activation_grads[ACT_LOSSES];
    TRY(make_indices(indices, S));
    for (int s = 0; s < S; s++) {
        const int home = home_of(o->placement, s);
        if (s > 0 && home == home_of(o->placement, s - 1)) {
            (*indices)[s] = (*indices)[s - 1];
            continue;
        }
        ADD_OWNED(handles, *indices + s, home, rows, sizeof(float), "activation_grads/losses#%d", s);
        float *values = handles->all[(*indices)[s]].buffer;
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
    TRY(make_indices(&handles->inputs, o->slots * S));
    TRY(make_indices(&handles->targets, o->slots * S));
    TRY(make_indices(&handles->mean_losses, o->slots));
    for (int slot = 0; slot < o->slots; slot++) {
        for (int s = 0; s < S; s++) {
            const int i = slot * S + s, home = home_of(o->placement, s);
            ADD_OWNED(handles, &handles->inputs[i], home, tokens, sizeof(int32_t), "inputs@%d#%d", slot, s);
            ADD_OWNED(handles, &handles->targets[i], home, tokens, sizeof(int32_t), "targets@%d#%d", slot, s);
        }
        ADD_OWNED(handles, &handles->mean_losses[slot], 0, 1, sizeof(float), "mean_loss@%d", slot);
        handles->all[handles->mean_losses[slot]].transient = true;
    }
    return STARPULLM_OK;
}

static status create_all(struct handles *handles)
{
    TRY(count_all(handles));
    TRY(create_parameters(handles, STARPULLM_PARAMS, "params"));
    TRY(create_gradients(handles));
    TRY(create_parameters(handles, STARPULLM_M, "m"));
    TRY(create_parameters(handles, STARPULLM_V, "v"));
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
    /* data_create() may have failed half way in the entry after the last. */
    for (int i = 0; i <= handles->count && i < handles->capacity; i++)
        data_destroy(&handles->all[i]);
    for (int group = 0; group < 4; group++)
        for (int p = 0; p < NUM_PARAMETERS; p++)
            free(handles->parameters[group][p]);
    for (int p = 0; p < NUM_PARAMETERS; p++)
        free(handles->gradients[p]);
    for (int a = 0; a < NUM_ACTIVATIONS; a++) {
        free(handles->activations[a]);
        free(handles->activation_grads[a]);
    }
    free(handles->inputs);
    free(handles->targets);
    free(handles->mean_losses);
    free(handles->all);
    free(handles);
}

struct data *handles_parameter(const struct handles *handles, enum starpullm_group group, enum parameter p, int layer)
{
    return &handles->all[handles->parameters[group][p][layer]];
}

int handles_gradients(const struct handles *handles)
{
    switch (handles->options.reduction) {
    case STARPULLM_REDUCTION_ORDERED:
        return handles->options.placement->ranks;
    case STARPULLM_REDUCTION_TREE:
        return handles->sub_batches;
    default:
        return 1;
    }
}

struct data *handles_gradient(const struct handles *handles, enum parameter p, int layer, int index)
{
    return &handles->all[handles->gradients[p][layer * handles_gradients(handles) + index]];
}

struct data *handles_activation(const struct handles *handles, enum activation a, int layer, int sub_batch)
{
    return &handles->all[handles->activations[a][layer * handles->sub_batches + sub_batch]];
}

struct data *handles_activation_grad(const struct handles *handles, enum activation a, int layer, int sub_batch)
{
    if (!has_gradient(a))
        return NULL;
    return &handles->all[handles->activation_grads[a][layer * handles->sub_batches + sub_batch]];
}

struct data *handles_inputs(const struct handles *handles, int slot, int sub_batch)
{
    return &handles->all[handles->inputs[slot * handles->sub_batches + sub_batch]];
}

struct data *handles_targets(const struct handles *handles, int slot, int sub_batch)
{
    return &handles->all[handles->targets[slot * handles->sub_batches + sub_batch]];
}

struct data *handles_mean_loss(const struct handles *handles, int slot)
{
    return &handles->all[handles->mean_losses[slot]];
}

int handles_count(const struct handles *handles)
{
    return handles->count;
}

struct data *handles_at(const struct handles *handles, int index)
{
    return &handles->all[index];
}
