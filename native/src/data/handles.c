/* Which buffers a session has and which tensors share them. Called by session.c; read by graph/.
 *
 * Without keep_activations, a tensor that is needed inside one block only has one buffer that all blocks reuse: forward
 * preatt, attproj and fcproj (the backward pass doesn't read them), and every gradient inside a block. residual3's
 * gradient too: a block reads it before the block below is given its own. */
#include "data/handles.h"

#include <stdlib.h>

struct handles {
    struct handles_options options;
    struct data *all;
    int count, capacity;
    /* Indices into `all`, -1 where there is none. [group][p][layer], [a][layer][s], [slot][s], [slot] */
    int *parameters[4][NUM_PARAMETERS];
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
    const int64_t S = o->sub_batches;
    int64_t count = o->slots * (2 * S + 1);
    for (int p = 0; p < NUM_PARAMETERS; p++)
        count += 4 * (int64_t)parameter_instances(&o->config, p);
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
#define ADD(handles, index, count_, size_, ...)                                                   \
    do {                                                                                          \
        struct handles *h_ = (handles);                                                           \
        TRY(data_create(&h_->all[h_->count], h_->count, (size_t)(count_), (size_), __VA_ARGS__)); \
        *(index) = h_->count++;                                                                   \
    } while (0)

static status create_parameters(struct handles *handles)
{
    static const char *const group_names[4] = {"params", "grads", "m", "v"};
    const model_config *config = &handles->options.config;
    for (int group = 0; group < 4; group++)
        for (int p = 0; p < NUM_PARAMETERS; p++) {
            int instances = parameter_instances(config, p);
            int64_t elements = tensor_elements(parameter_shape(config, p));
            int **indices = &handles->parameters[group][p];
            TRY(make_indices(indices, instances));
            for (int l = 0; l < instances; l++) {
                if (parameter_layered(p))
                    ADD(handles, *indices + l, elements, sizeof(float), "%s/%s[%d]", group_names[group],
                        parameter_name(p), l);
                else
                    ADD(handles, *indices + l, elements, sizeof(float), "%s/%s", group_names[group], parameter_name(p));
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
    TRY(make_indices(indices, instances * o->sub_batches));
    for (int l = 0; l < instances; l++)
        for (int s = 0; s < o->sub_batches; s++) {
            int *index = &(*indices)[l * o->sub_batches + s];
            if (l > 0 && !kept)
                *index = (*indices)[s];
            else if (kept && activation_layered(a))
                ADD(handles, index, elements, sizeof(float), "%s/%s[%d]#%d", group, activation_name(a), l, s);
            else
                ADD(handles, index, elements, sizeof(float), "%s/%s#%d", group, activation_name(a), s);
        }
    return STARPULLM_OK;
}

/* One buffer of 1/(B·T) for all sub-batches. */
static status create_loss_gradient(struct handles *handles)
{
    const struct handles_options *o = &handles->options;
    int64_t rows = o->sub_batch_size * o->seq_len;
    int **indices = &handles->activation_grads[ACT_LOSSES];
    TRY(make_indices(indices, o->sub_batches));
    ADD(handles, *indices, rows, sizeof(float), "activation_grads/losses");
    for (int s = 1; s < o->sub_batches; s++)
        (*indices)[s] = (*indices)[0];
    float *values = handles->all[(*indices)[0]].buffer;
    for (int64_t n = 0; n < rows; n++)
        values[n] = 1.0f / (float)(rows * o->sub_batches);
    return STARPULLM_OK;
}

static status create_slots(struct handles *handles)
{
    const struct handles_options *o = &handles->options;
    int64_t tokens = o->sub_batch_size * o->seq_len;
    TRY(make_indices(&handles->inputs, o->slots * o->sub_batches));
    TRY(make_indices(&handles->targets, o->slots * o->sub_batches));
    TRY(make_indices(&handles->mean_losses, o->slots));
    for (int slot = 0; slot < o->slots; slot++) {
        for (int s = 0; s < o->sub_batches; s++) {
            int i = slot * o->sub_batches + s;
            ADD(handles, &handles->inputs[i], tokens, sizeof(int32_t), "inputs@%d#%d", slot, s);
            ADD(handles, &handles->targets[i], tokens, sizeof(int32_t), "targets@%d#%d", slot, s);
        }
        ADD(handles, &handles->mean_losses[slot], 1, sizeof(float), "mean_loss@%d", slot);
    }
    return STARPULLM_OK;
}

static status create_all(struct handles *handles)
{
    TRY(count_all(handles));
    TRY(create_parameters(handles));
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

struct data *handles_activation(const struct handles *handles, enum activation a, int layer, int sub_batch)
{
    return &handles->all[handles->activations[a][layer * handles->options.sub_batches + sub_batch]];
}

struct data *handles_activation_grad(const struct handles *handles, enum activation a, int layer, int sub_batch)
{
    if (!has_gradient(a))
        return NULL;
    return &handles->all[handles->activation_grads[a][layer * handles->options.sub_batches + sub_batch]];
}

struct data *handles_inputs(const struct handles *handles, int slot, int sub_batch)
{
    return &handles->all[handles->inputs[slot * handles->options.sub_batches + sub_batch]];
}

struct data *handles_targets(const struct handles *handles, int slot, int sub_batch)
{
    return &handles->all[handles->targets[slot * handles->options.sub_batches + sub_batch]];
}

struct data *handles_mean_loss(const struct handles *handles, int slot)
{
    return &handles->all[handles->mean_losses[slot]];
}

int handles_count(const struct handles *handles)
{
    return handles->count;
}

const struct data *handles_at(const struct handles *handles, int index)
{
    return &handles->all[index];
}
