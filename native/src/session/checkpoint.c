/* Moves tensors between a session and files while no step is submitted: loads a checkpoint or a training state, and
 * saves a checkpoint. */
#include <stdlib.h>
#include <string.h>

#include "io/checkpoint.h"
#include "runtime/ranks.h"
#include "session/session.h"

static struct data *data_of(void *context, enum starpullm_group group, enum parameter p, int layer)
{
    const struct starpullm_session *session = context;
    return handles_parameter(session->handles, group, p, layer);
}

/* Each rank fills what it owns; StarPU transfers parameters to the other ranks when they first need them. */
static status acquire_to_fill(void *context, enum starpullm_group group, enum parameter p, int layer, float **values)
{
    const struct starpullm_session *session = context;
    void *memory = NULL;
    if (owner_of(&session->work.placement, p, layer) == session->work.placement.rank)
        TRY(data_acquire_write(data_of(context, group, p, layer), &memory));
    *values = memory;
    return STARPULLM_OK;
}

/* The updates of this tensor have ended then: after the last tensor, no failure of a step can be unknown. */
static status acquire_to_save(void *context, enum starpullm_group group, enum parameter p, int layer, float **values)
{
    struct starpullm_session *session = context;
    struct data *data = data_of(context, group, p, layer);
    const void *memory;
    TRY(data_acquire_read(data, &memory));
    *values = (float *)memory;
    const status code = check_tasks(&session->failure);
    if (code != STARPULLM_OK)
        data_release(data);
    return code;
}

static void release(void *context, enum starpullm_group group, enum parameter p, int layer)
{
    data_release(data_of(context, group, p, layer));
}

/* m and v start at +0; other buffers are so when they are made. */
static status clear_evictable(struct starpullm_session *session, enum starpullm_group group)
{
    for (int p = 0; p < NUM_PARAMETERS; p++)
        for (int l = 0; l < parameter_instances(&session->work.config, p); l++) {
            struct data *data = data_of(session, group, p, l);
            void *memory;
            if (!data || !data->evictable)
                continue;
            TRY(data_acquire_write(data, &memory));
            memset(memory, 0, data->bytes);
            data_release(data);
        }
    return STARPULLM_OK;
}

status session_load(struct starpullm_session *session, const char *path, struct training_state *state)
{
    const struct tensor_buffers buffers = {session, acquire_to_fill, release};
    if (state) {
        session->updates = state->meta.step;
        return training_state_read(state, &session->work.config, &buffers);
    }
    TRY(checkpoint_read(path, &session->work.config, &buffers));
    TRY(clear_evictable(session, STARPULLM_M));
    return clear_evictable(session, STARPULLM_V);
}

/* Of stages: rank 0 hasn't room for the others' parameters. All ranks copy one after the other from its owner, in the
 * file's order. */
struct gathering {
    struct starpullm_session *session;
    float *values; /* of the last parameter */
    int64_t copied;
    status code; /* the same on all ranks */
};

static status copy_from_owner(void *context, enum starpullm_group group, enum parameter p, int layer, float **values)
{
    struct gathering *gathering = context;
    struct starpullm_session *session = gathering->session;
    const int64_t elements = parameter_elements(&session->work.config, p);
    free(gathering->values);
    gathering->values = malloc((size_t)elements * sizeof *gathering->values);
    gathering->code = ranks_agree(gathering->values ? STARPULLM_OK : out_of_memory("a copy of a parameter"));
    if (gathering->code == STARPULLM_OK)
        gathering->code = session_read_parameter(session, group, p, layer, 0, elements, gathering->values);
    gathering->copied++;
    *values = gathering->values;
    return gathering->code == STARPULLM_OK ? check_tasks(&session->failure) : gathering->code;
}

static void release_copy(void *context, enum starpullm_group group, enum parameter p, int layer)
{
    (void)context, (void)group, (void)p, (void)layer;
}

static status save_stages(struct starpullm_session *session, const char *path)
{
    const model_config *config = &session->work.config;
    struct gathering gathering = {.session = session};
    const struct tensor_buffers buffers = {&gathering, copy_from_owner, release_copy};
    status code = session->work.placement.rank > 0 ? STARPULLM_OK : checkpoint_write(path, config, &buffers);
    float *values;
    /* Of rank 0, what is left after a failure to write. */
    for (int p = 0; p < NUM_PARAMETERS; p++)
        for (int l = 0; l < parameter_instances(config, p); l++)
            if (parameter_number(config, p, l) >= gathering.copied && gathering.code == STARPULLM_OK)
                (void)copy_from_owner(&gathering, STARPULLM_PARAMS, p, l, &values);
    free(gathering.values);
    return code == STARPULLM_OK ? gathering.code : code;
}

/* Rank 0 writes. All transfers to it are submitted before, so that no rank waits for a rank 0 that can't write. */
status starpullm_session_save_checkpoint(starpullm_session *session, const char *path)
{
    CHECK_POINTERS(session, path);
    TRY(check_not_held(session->hold));
    TRY(session_check_usable(session));
    session_wait_if_audited(session);
    if (session->work.placement.stages > 1)
        return save_stages(session, path);
    for (int p = 0; p < NUM_PARAMETERS; p++)
        for (int l = 0; l < parameter_instances(&session->work.config, p); l++)
            TRY(exchange_to(data_of(session, STARPULLM_PARAMS, p, l), 0));
    if (session->work.placement.rank > 0)
        return STARPULLM_OK;
    const struct tensor_buffers buffers = {session, acquire_to_save, release};
    return checkpoint_write(path, &session->work.config, &buffers);
}
