/* Copies tensors out of a session, and says which there are. */
#include <string.h>

#include "data/exchange.h"
#include "session/session.h"

static bool is_parameter_group(int32_t group)
{
    return group >= STARPULLM_PARAMS && group <= STARPULLM_V;
}

int32_t starpullm_tensor_count(int32_t group)
{
    if (is_parameter_group(group))
        return NUM_PARAMETERS;
    return group == STARPULLM_ACTIVATIONS || group == STARPULLM_ACTIVATION_GRADS ? NUM_ACTIVATIONS : 0;
}

status starpullm_session_tensor_info(const starpullm_session *session, int32_t group, int32_t index,
                                     struct starpullm_tensor_info *info)
{
    CHECK_POINTERS(session);
    CHECK_STRUCT(info);
    const int32_t count = starpullm_tensor_count(group);
    if (count == 0)
        return fail(STARPULLM_INVALID_ARGUMENT, "group: found %d, expected 0 to %d", group, STARPULLM_NUM_GROUPS - 1);
    if (index < 0 || index >= count)
        return fail(STARPULLM_INVALID_ARGUMENT, "tensor: found number %d, expected 0 to %d", index, count - 1);
    const model_config *config = &session->graph.config;
    struct tensor_shape shape;
    if (is_parameter_group(group)) {
        info->name = parameter_name(index);
        info->layered = parameter_layered(index);
        info->instances = parameter_instances(config, index);
        shape = parameter_shape(config, index);
    } else {
        info->name = activation_name(index);
        info->layered = activation_layered(index);
        info->instances = activation_instances(config, index);
        shape =
            activation_shape(config, index, session->placement.ranks * session->batch_size, (int64_t)session->graph.T);
    }
    info->num_dims = shape.num_dims;
    memcpy(info->dims, shape.dims, sizeof info->dims);
    return STARPULLM_OK;
}

/* Collective: every rank gets the values. */
static status copy_out(struct data *data, int64_t offset, int64_t count, float *values)
{
    const void *memory;
    TRY(exchange_to_all(data));
    TRY(data_acquire_read(data, &memory));
    memcpy(values, (const float *)memory + offset, (size_t)count * sizeof *values);
    data_release(data);
    exchange_drop(data);
    return STARPULLM_OK;
}

static status check_kept(const struct starpullm_session *session, int32_t group, int32_t index)
{
    const bool kept = group == STARPULLM_ACTIVATIONS ? handles_activation_kept(session->handles, index)
                                                     : handles_activation_grad_kept(session->handles, index);
    if (kept)
        return STARPULLM_OK;
    return fail(STARPULLM_INVALID_STATE,
                "%s/%s: its layers share one buffer, expected a session with keep_activations to read it",
                group == STARPULLM_ACTIVATIONS ? "activations" : "activation_grads", activation_name(index));
}

/* The sub-batches of a batch are stored one after the other, each in a buffer of its own. */
static status read_activation(struct starpullm_session *session, int32_t group, int32_t index, int32_t layer,
                              int64_t offset, int64_t count, float *values)
{
    TRY(check_kept(session, group, index));
    const struct graph_options *graph = &session->graph;
    const int64_t piece =
        tensor_elements(activation_shape(&graph->config, index, (int64_t)graph->B, (int64_t)graph->T));
    while (count > 0) {
        const int s = (int)(offset / piece);
        const int64_t from = offset % piece;
        const int64_t now = count < piece - from ? count : piece - from;
        struct data *data = group == STARPULLM_ACTIVATIONS ? handles_activation(session->handles, index, layer, s)
                                                           : handles_activation_grad(session->handles, index, layer, s);
        if (data)
            TRY(copy_out(data, from, now, values));
        else /* no task adds to this gradient: +0 */
            memset(values, 0, (size_t)now * sizeof *values);
        offset += now;
        values += now;
        count -= now;
    }
    return STARPULLM_OK;
}

static struct data *parameter_data(struct starpullm_session *session, int32_t group, int32_t index, int32_t layer)
{
    return group == STARPULLM_GRADS ? gradient_of_batch(&session->graph, index, layer)
                                    : handles_parameter(session->handles, group, index, layer);
}

status starpullm_session_read_tensor(starpullm_session *session, int32_t group, int32_t index, int32_t layer,
                                     int64_t offset, int64_t count, float *values)
{
    CHECK_POINTERS(session, values);
    TRY(session_check_not_held(session));
    session_wait_if_audited(session);
    struct starpullm_tensor_info info = {.size = sizeof info};
    TRY(starpullm_session_tensor_info(session, group, index, &info));
    if (layer < 0 || layer >= info.instances)
        return fail(STARPULLM_INVALID_ARGUMENT, "%s: found layer %d, expected 0 to %d", info.name, layer,
                    info.instances - 1);
    int64_t elements = 1;
    for (int d = 0; d < info.num_dims; d++)
        elements *= info.dims[d];
    if (offset < 0 || count < 0 || offset > elements || count > elements - offset)
        return fail(STARPULLM_INVALID_ARGUMENT, "%s: found %lld elements from %lld on, expected a part of %lld",
                    info.name, (long long)count, (long long)offset, (long long)elements);
    if (is_parameter_group(group))
        TRY(copy_out(parameter_data(session, group, index, layer), offset, count, values));
    else
        TRY(read_activation(session, group, index, layer, offset, count, values));
    return failure_check(&session->failure);
}

static status gather_parameters(struct starpullm_session *session)
{
    for (int p = 0; p < NUM_PARAMETERS; p++)
        for (int l = 0; l < parameter_instances(&session->graph.config, p); l++) {
            TRY(exchange_to_all(gradient_of_batch(&session->graph, p, l)));
            TRY(exchange_to_all(handles_parameter(session->handles, STARPULLM_PARAMS, p, l)));
            TRY(exchange_to_all(handles_parameter(session->handles, STARPULLM_M, p, l)));
            TRY(exchange_to_all(handles_parameter(session->handles, STARPULLM_V, p, l)));
        }
    return STARPULLM_OK;
}

static status gather_activation(struct starpullm_session *session, enum activation a, int s)
{
    for (int l = 0; l < activation_instances(&session->graph.config, a); l++) {
        struct data *gradient = handles_activation_grad(session->handles, a, l, s);
        if (handles_activation_kept(session->handles, a))
            TRY(exchange_to_all(handles_activation(session->handles, a, l, s)));
        if (gradient && handles_activation_grad_kept(session->handles, a))
            TRY(exchange_to_all(gradient));
    }
    return STARPULLM_OK;
}

status starpullm_session_gather(starpullm_session *session)
{
    CHECK_POINTERS(session);
    TRY(session_check_not_held(session));
    if (session->placement.ranks == 1)
        return STARPULLM_OK;
    TRY(gather_parameters(session));
    for (int a = 0; a < NUM_ACTIVATIONS; a++)
        for (int s = 0; s < session->graph.sub_batches; s++)
            TRY(gather_activation(session, a, s));
    return STARPULLM_OK;
}
