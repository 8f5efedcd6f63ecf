/* Moves tensors between a session and its files: loads a checkpoint or a training state, and saves a checkpoint. */
#include "io/checkpoint.h"
#include "data/exchange.h"
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
    if (owner_of(&session->placement, p, layer) == session->placement.rank)
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
    const status code = failure_check(&session->failure);
    if (code != STARPULLM_OK)
        data_release(data);
    return code;
}

static void release(void *context, enum starpullm_group group, enum parameter p, int layer)
{
    data_release(data_of(context, group, p, layer));
}

status session_load(struct starpullm_session *session, const char *path, struct training_state *state)
{
    const struct tensor_buffers buffers = {session, acquire_to_fill, release};
    if (!state)
        return checkpoint_read(path, &session->graph.config, &buffers);
    session->updates = state->meta.step;
    return training_state_read(state, &session->graph.config, &buffers);
}

/* Rank 0 writes. All transfers to it are submitted before, so that no rank waits for a rank 0 that can't write. */
status starpullm_session_save_checkpoint(starpullm_session *session, const char *path)
{
    CHECK_POINTER(session);
    CHECK_POINTER(path);
    TRY(session_check_not_held(session));
    TRY(session_check_usable(session));
    session_wait_if_audited(session);
    for (int p = 0; p < NUM_PARAMETERS; p++)
        for (int l = 0; l < parameter_instances(&session->graph.config, p); l++)
            TRY(exchange_to(data_of(session, STARPULLM_PARAMS, p, l), 0));
    if (session->placement.rank > 0)
        return STARPULLM_OK;
    const struct tensor_buffers buffers = {session, acquire_to_save, release};
    return checkpoint_write(path, &session->graph.config, &buffers);
}
