/* Creates a session from a checkpoint or a training state, and destroys it. */
#include "session/session.h"

#include <stdlib.h>

#include "io/checkpoint.h"
#include "runtime/ranks.h"

static status create_iterations(struct starpullm_session *session, int slots)
{
    session->iterations = calloc((size_t)slots, sizeof *session->iterations);
    if (!session->iterations)
        return out_of_memory("a table of %d iterations could not be allocated", slots);
    for (; session->slots < slots; session->slots++)
        iteration_init(&session->iterations[session->slots], session->recorder, &session->failure);
    return STARPULLM_OK;
}

static status create_handles(struct starpullm_session *session, const struct starpullm_session_options *options,
                             int64_t first_tag)
{
    const struct workload *work = &session->work;
    const int64_t sharing = runtime_layout()->local_ranks;
    const struct handles_options handles_options = {
        .work = work,
        .slots = options->steps_in_flight,
        .first_tag = first_tag,
        .memory_limit = options->memory_limit / sharing + (options->memory_limit % sharing != 0),
        .devices = runtime_layout()->devices && runtime_layout()->ranks == 1,
        .offload = runtime_layout()->memory_limit != 0};
    TRY(handles_create(&handles_options, &session->handles));
    if (work->reduction == STARPULLM_REDUCTION_REDUX)
        for (int p = 0; p < NUM_PARAMETERS; p++)
            for (int l = 0; l < parameter_instances(&work->config, p); l++)
                gradient_make_reducible(handles_gradient(session->handles, p, l, 0, 0, 0));
    return STARPULLM_OK;
}

/* Comes after the loading of the model: the audit closes the memory of all handles. */
static status create_instrument(struct starpullm_session *session, const struct starpullm_session_options *options)
{
    if (!options->instruments)
        return STARPULLM_OK;
    const int count = handles_count(session->handles);
    struct audit_buffer *buffers = calloc((size_t)count, sizeof *buffers);
    if (!buffers)
        return out_of_memory("a table of %d buffers could not be allocated", count);
    for (int i = 0; i < handles_here(session->handles); i++) {
        const struct data *data = handles_at(session->handles, i);
        buffers[data->id] = (struct audit_buffer){data_memory(data), data->bytes};
    }
    const struct instrument_options instrument_options = {options->instruments, options->max_delay_us,
                                                          options->delay_seed, options->device_percent,
                                                          options->device_seed};
    const status code = instrument_create(&instrument_options, buffers, (size_t)count, &session->instrument);
    free(buffers);
    TRY(code);
    for (int i = 0; i < handles_here(session->handles); i++)
        handles_at(session->handles, i)->audit = instrument_audit(session->instrument);
    for (int slot = 0; slot < session->slots; slot++)
        session->iterations[slot].instrument = session->instrument;
    return STARPULLM_OK;
}

/* Strict steps may follow those of a BLAS, or these strict ones; together they have no contract. */
static status continue_arithmetic(enum starpullm_arithmetic *arithmetic, const struct training_state *state)
{
    static const char *const names[] = {
        [STARPULLM_STRICT] = "strict", [STARPULLM_NO_CONTRACT] = "no contract's", [STARPULLM_FUSED] = "fused"};
    const enum starpullm_arithmetic before = (enum starpullm_arithmetic)state->meta.arithmetic, now = *arithmetic;
    if ((before == STARPULLM_FUSED) != (now == STARPULLM_FUSED))
        return invalid_argument("resume: %s: found a state of %s arithmetic, expected one of the runtime's, %s",
                                state->path, names[before], names[now]);
    *arithmetic = before == STARPULLM_STRICT ? now : before;
    return STARPULLM_OK;
}

/* `state` is what the session resumes from; NULL: it starts from a checkpoint. */
static status open_model(struct starpullm_session *session, const struct starpullm_session_options *options,
                         struct training_state *state, int64_t first_tag)
{
    const struct runtime_layout *layout = runtime_layout();
    model_config config;
    if (state)
        config = state->meta.config;
    else
        TRY(checkpoint_config(options->checkpoint, &config));
    TRY(session_check_options(options, &config));
    session->batch_size = options->batch_size;
    session->arithmetic = layout->arithmetic;
    if (state)
        TRY(continue_arithmetic(&session->arithmetic, state));
    session->adamw = (struct adamw_options){options->learning_rate, options->beta1, options->beta2, options->eps,
                                            options->weight_decay};
    session->learning_rate = state ? state->meta.learning_rate : options->learning_rate;
    if (options->trace)
        TRY(recorder_create(&session->recorder));
    TRY(create_iterations(session, options->steps_in_flight));
    TRY(workload_create(&session->work, options, &config, layout));
    TRY(create_handles(session, options, first_tag));
    TRY(schedule_fill(&session->work));
    TRY(session_prepare_memory(session));
    TRY(session_load(session, options->checkpoint, state));
    TRY(saving_create(session));
    return create_instrument(session, options);
}

/* Enters the runtime first, also if there is no session: all ranks have to take the same tags. */
static status open_session(struct starpullm_session *session, struct starpullm_runtime *runtime,
                           const struct starpullm_session_options *options)
{
    int64_t first_tag;
    TRY(runtime_enter_session(runtime, &first_tag));
    if (!session) {
        runtime_leave_session(runtime);
        return out_of_memory("a session could not be allocated");
    }
    session->runtime = runtime;
    if (!options->checkpoint == !options->resume)
        return invalid_argument("checkpoint, resume: found %s, expected one of them",
                                options->checkpoint ? "both" : "neither");
    struct training_state *state = NULL;
    if (options->resume)
        TRY(training_state_open(options->resume, &state));
    const status code = open_model(session, options, state, first_tag);
    training_state_close(state);
    return code;
}

static void destroy(struct starpullm_session *session)
{
    if (!session)
        return;
    saving_destroy(session->saving);
    session_wait_all(session);
    instrument_destroy(session->instrument);
    handles_destroy(session->handles);
    disk_give_back(&session->share);
    free(session->plan.after);
    free(session->plan.fetches.first);
    free(session->plan.fetches.data);
    workload_destroy(&session->work);
    for (int slot = 0; slot < session->slots; slot++)
        iteration_destroy(&session->iterations[slot]);
    free(session->iterations);
    recorder_destroy(session->recorder);
    free(session->edges);
    failure_destroy(&session->failure);
    if (session->runtime)
        runtime_leave_session(session->runtime);
    free(session);
}

status starpullm_session_create(starpullm_runtime *runtime, const struct starpullm_session_options *options,
                                starpullm_session **session)
{
    CHECK_POINTERS(runtime);
    CHECK_STRUCT(options);
    CHECK_POINTERS(session);
    struct starpullm_session *created = calloc(1, sizeof *created);
    if (created)
        failure_init(&created->failure);
    const fenv_t callers = arithmetic_enter();
    const status code = ranks_agree(open_session(created, runtime, options));
    fesetenv(&callers);
    if (code == STARPULLM_OK)
        *session = created;
    else
        destroy(created);
    return code;
}

void starpullm_session_destroy(starpullm_session **session)
{
    if (!session)
        return;
    destroy(*session);
    *session = NULL;
}

status starpullm_session_config(const starpullm_session *session, struct starpullm_model_config *config)
{
    CHECK_POINTERS(session, config);
    *config = session->work.config;
    return STARPULLM_OK;
}
