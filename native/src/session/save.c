/* Moves parameters, m and v between a session and its files: loads a checkpoint or a training state, and saves them. */
#include "data/exchange.h"
#include "io/checkpoint.h"
#include "session/session.h"

/* Each rank fills what it owns; StarPU transfers parameters to the other ranks when they first need them. */
static status acquire_to_fill(void *context, enum starpullm_group group, enum parameter p, int layer, float **values)
{
    const struct starpullm_session *session = context;
    void *memory = NULL;
    if (owner_of(&session->placement, p, layer) == session->placement.rank)
        TRY(data_acquire_write(handles_parameter(session->handles, group, p, layer), &memory));
    *values = memory;
    return STARPULLM_OK;
}

static void release_filled(void *context, enum starpullm_group group, enum parameter p, int layer)
{
    const struct starpullm_session *session = context;
    if (owner_of(&session->placement, p, layer) == session->placement.rank)
        data_release(handles_parameter(session->handles, group, p, layer));
}

status session_load(struct starpullm_session *session, const char *path, struct training_state *state)
{
    const struct tensor_destination destination = {session, acquire_to_fill, release_filled};
    if (!state)
        return checkpoint_read(path, &session->graph.config, &destination);
    session->updates = training_state_meta(state)->step;
    return training_state_read(state, &session->graph.config, &destination);
}

static struct data *parameter_data(void *context, enum parameter p, int layer)
{
    const struct starpullm_session *session = context;
    return handles_parameter(session->handles, STARPULLM_PARAMS, p, layer);
}

static status acquire_to_save(void *context, enum parameter p, int layer, const float **values)
{
    const void *memory;
    TRY(data_acquire_read(parameter_data(context, p, layer), &memory));
    *values = memory;
    return STARPULLM_OK;
}

static void release_saved(void *context, enum parameter p, int layer)
{
    data_release(parameter_data(context, p, layer));
}

/* Rank 0 writes. All transfers to it are submitted before, so that no rank waits for a rank 0 that can't write. */
status starpullm_session_save_checkpoint(starpullm_session *session, const char *path)
{
    CHECK_POINTER(session);
    CHECK_POINTER(path);
    TRY(session_check_not_held(session));
    for (int p = 0; p < NUM_PARAMETERS; p++)
        for (int l = 0; l < parameter_instances(&session->graph.config, p); l++)
            TRY(exchange_to(parameter_data(session, p, l), 0));
    if (session->placement.rank > 0)
        return STARPULLM_OK;
    const struct checkpoint_source source = {session, acquire_to_save, release_saved};
    return checkpoint_write(path, &session->graph.config, &source);
}

status starpullm_session_save_state(starpullm_session *session, const struct starpullm_save_options *options)
{
    CHECK_POINTER(session);
    CHECK_STRUCT(options);
    CHECK_POINTER(options->directory);
    TRY(session_check_not_held(session));
    if (options->keep < 1)
        return fail(STARPULLM_INVALID_ARGUMENT, "keep: found %d, expected at least 1", options->keep);
    if (session->broken)
        return fail(STARPULLM_INVALID_STATE, "the session is unusable since a submission failed half way");
    if (session->instrument && instrument_audit(session->instrument))
        return fail(STARPULLM_INVALID_STATE, "the session is audited, expected one that isn't: a state is written "
                                             "while tasks run, from memory that the audit closes outside of tasks");
    if (!session->saving)
        TRY(saving_create(&session->graph, &session->saving));
    const struct adamw_options *adamw = &session->graph.adamw;
    const struct training_state_meta meta = {
        .config = session->graph.config,
        .rank = session->placement.rank,
        .num_ranks = session->placement.ranks,
        .step = session->updates,
        .run = options->run,
        .batches = options->batches,
        .batch_size = session->placement.ranks * session->batch_size,
        .seq_len = (int64_t)session->graph.T,
        .seed = options->seed,
        .data_id = options->data_id,
        .learning_rate = adamw->learning_rate,
        .beta1 = adamw->beta1,
        .beta2 = adamw->beta2,
        .eps = adamw->eps,
        .weight_decay = adamw->weight_decay,
        .blas = session->blas,
    };
    return saving_submit(session->saving, options->directory, &meta, options->keep);
}

status starpullm_session_wait_saved(starpullm_session *session)
{
    CHECK_POINTER(session);
    return session->saving ? saving_wait(session->saving) : STARPULLM_OK;
}
