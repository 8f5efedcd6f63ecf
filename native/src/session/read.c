/* Copies tensors out of a session, and says which there are. */
#include <string.h>

#include "runtime/ranks.h"
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
        return invalid_argument("group: found %d, expected 0 to %d", group, STARPULLM_NUM_GROUPS - 1);
    if (index < 0 || index >= count)
        return invalid_argument("tensor: found number %d, expected 0 to %d", index, count - 1);
    const model_config *config = &session->work.config;
    const struct tensor *tensor = is_parameter_group(group) ? &parameters[index] : &activations[index];
    const struct tensor_shape shape = tensor_shape(
        tensor, config, pipelines(&session->work.placement) * session->batch_size, (int64_t)session->work.T);
    info->name = tensor->name;
    info->layered = tensor->place == BLOCK;
    info->instances = tensor_instances(tensor, config);
    info->num_dims = shape.num_dims;
    memcpy(info->dims, shape.dims, sizeof info->dims);
    const bool kept = !is_parameter_group(group) && activation_kept(&session->work, group, index);
    info->sub_batches_kept = kept ? sub_batches_kept(&session->work) : 0;
    return STARPULLM_OK;
}

/* What no task has written yet is +0. */
static status copy_from(struct data *data, int64_t offset, int64_t count, float *values)
{
    const void *memory;
    if (data->homeless && !data->has_value && data->invalidated)
        return invalid_state(
            "%s: its value was invalidated after its last use, expected a session with keep_activations, "
            "or the offload_plan lru, to read it",
            data->name);
    if (data->homeless && !data->has_value) {
        memset(values, 0, (size_t)count * sizeof *values);
        return STARPULLM_OK;
    }
    TRY(data_acquire_read(data, &memory));
    memcpy(values, (const float *)memory + offset, (size_t)count * sizeof *values);
    data_release(data);
    return STARPULLM_OK;
}

/* Collective: every rank gets the owner's values. Only the owner need have the data. */
static status copy_out(const struct starpullm_session *session, struct data *data, int owner, int64_t offset,
                       int64_t count, float *values)
{
    const bool is_here = owner == session->work.placement.rank;
    const status code = is_here ? copy_from(data, offset, count, values) : STARPULLM_OK;
    return exchange_values(code, values, count, owner);
}

static status check_kept(const struct starpullm_session *session, int32_t group, int32_t index, int sub_batch)
{
    const struct workload *work = &session->work;
    const int of_pipeline = sub_batches_of_pipeline(&work->placement), kept = sub_batches_kept(work);
    if (!activation_kept(work, group, index))
        return invalid_state("%s/%s: its layers share one buffer, expected a session with keep_activations to read it",
                             group_names[group], activations[index].name);
    if (sub_batch % of_pipeline >= of_pipeline - kept)
        return STARPULLM_OK;
    return invalid_state("%s/%s: found sub-batch %d, whose activation set another one has had since, expected one of "
                         "the last %d of %d",
                         group_names[group], activations[index].name, sub_batch, kept, of_pipeline);
}

/* The sub-batches of a batch are stored one after the other, each in a buffer of its own. */
static status read_activation(struct starpullm_session *session, int32_t group, int32_t index, int32_t layer,
                              int64_t offset, int64_t count, float *values)
{
    const struct workload *work = &session->work;
    const int64_t piece =
        tensor_elements(tensor_shape(&activations[index], &work->config, (int64_t)work->B, (int64_t)work->T));
    while (count > 0) {
        const int s = (int)(offset / piece);
        const int64_t from = offset % piece;
        const int64_t now = count < piece - from ? count : piece - from;
        TRY(check_kept(session, group, index, s));
        if (group == STARPULLM_ACTIVATIONS || activations[index].gradient != NO_GRADIENT)
            TRY(copy_out(session, handles_activation(session->handles, group, index, layer, s),
                         home_of(&work->placement, s, activation_place(&work->config, group, index, layer)), from, now,
                         values));
        else /* no task adds to this gradient: +0 */
            memset(values, 0, (size_t)now * sizeof *values);
        offset += now;
        values += now;
        count -= now;
    }
    return STARPULLM_OK;
}

status session_read_parameter(const struct starpullm_session *session, int32_t group, int32_t index, int32_t layer,
                              int64_t offset, int64_t count, float *values)
{
    return copy_out(session, handles_parameter(session->handles, group, index, layer),
                    owner_of(&session->work.placement, index, layer), offset, count, values);
}

/* A tree's sum is in the gradient of the first sub-batch. */
static int gradient_home(const struct starpullm_session *session, int32_t index, int32_t layer)
{
    const bool tree = session->work.reduction == STARPULLM_REDUCTION_TREE;
    return tree ? home_of(&session->work.placement, 0, parameter_place(index, layer))
                : owner_of(&session->work.placement, index, layer);
}

static status read_gradient(const struct starpullm_session *session, int32_t index, int32_t layer, int64_t offset,
                            int64_t count, float *values)
{
    const struct graph_context context = {&session->work, session->handles, NULL, 0, NULL, PRIORITY_DEFAULT};
    const struct tiles *tiles = &session->work.tiles;
    if (!gradient_kept(&session->work, index))
        return invalid_state(
            "grads/%s: its layers share two buffers, expected a session with kept weight_gradients to read it",
            parameters[index].name);
    for (int tile = 0; tile < tiles->counts[index] && count > 0; tile++) {
        const int64_t elements = (int64_t)tile_elements(tiles, index, tile);
        if (offset < elements) {
            const int64_t now = count < elements - offset ? count : elements - offset;
            TRY(copy_out(session, gradient_of_batch(&context, index, layer, tile), gradient_home(session, index, layer),
                         offset, now, values));
            values += now;
            count -= now;
            offset += now;
        }
        offset -= elements;
    }
    return STARPULLM_OK;
}

status starpullm_session_read_tensor(starpullm_session *session, int32_t group, int32_t index, int32_t layer,
                                     int64_t offset, int64_t count, float *values)
{
    CHECK_POINTERS(session, values);
    TRY(check_not_held(session->hold));
    session_wait_if_audited(session);
    struct starpullm_tensor_info info = {.size = sizeof info};
    TRY(starpullm_session_tensor_info(session, group, index, &info));
    if (layer < 0 || layer >= info.instances)
        return invalid_argument("%s: found layer %d, expected 0 to %d", info.name, layer, info.instances - 1);
    int64_t elements = 1;
    for (int d = 0; d < info.num_dims; d++)
        elements *= info.dims[d];
    if (offset < 0 || count < 0 || offset > elements || count > elements - offset)
        return invalid_argument("%s: found %lld elements from %lld on, expected a part of %lld", info.name,
                                (long long)count, (long long)offset, (long long)elements);
    if (group == STARPULLM_GRADS)
        TRY(read_gradient(session, index, layer, offset, count, values));
    else if (is_parameter_group(group))
        TRY(session_read_parameter(session, group, index, layer, offset, count, values));
    else
        TRY(read_activation(session, group, index, layer, offset, count, values));
    return check_tasks(&session->failure);
}
