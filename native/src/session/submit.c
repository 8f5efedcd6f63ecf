/* Submits batches: checks and copies the tokens, opens an iteration in a free slot, and has graph/ add the tasks. */
#include <string.h>

#include "session/session.h"

status session_check_usable(const struct starpullm_session *session)
{
    if (!session->broken)
        return STARPULLM_OK;
    return fail(STARPULLM_INVALID_STATE, "the session is unusable since a submission failed half way");
}

static status check_tokens(const struct starpullm_session *session, const char *what, const int32_t *tokens)
{
    const int64_t seq_len = (int64_t)session->graph.T;
    for (int64_t n = 0; n < session->batch_size * seq_len; n++)
        if (tokens[n] < 0 || tokens[n] >= session->graph.config.vocab_size)
            return fail(STARPULLM_INVALID_TOKEN, "%s[%lld, %lld]: token %d is out of range, expected 0 to %d", what,
                        (long long)(n / seq_len), (long long)(n % seq_len), tokens[n],
                        session->graph.config.vocab_size - 1);
    return STARPULLM_OK;
}

static status copy_tokens(const struct starpullm_session *session, int slot, const int32_t *tokens,
                          struct data *(*data_of)(const struct handles *, int, int))
{
    const char *next = (const char *)tokens;
    for (int s = 0; s < session->graph.sub_batches; s++) {
        if (home_of(&session->placement, s) != session->placement.rank)
            continue;
        struct data *data = data_of(session->handles, slot, s);
        void *memory;
        TRY(data_acquire_write(data, &memory));
        memcpy(memory, next, data->bytes);
        data_release(data);
        next += data->bytes;
    }
    return STARPULLM_OK;
}

/* Fills what earlier submissions have left on this rank and no later one needs. */
static status poison_transient(struct starpullm_session *session)
{
    session_wait_all(session);
    for (int i = 0; i < handles_here(session->handles); i++) {
        struct data *data = handles_at(session->handles, i);
        void *memory;
        if (!data->transient || !data->buffer)
            continue;
        TRY(data_acquire_write(data, &memory));
        instrument_poison_between(session->instrument, memory, data->bytes);
        data_release(data);
    }
    return STARPULLM_OK;
}

/* Checks, waits for a free slot, copies the tokens into it and opens its iteration. targets may be NULL. */
static status begin(struct starpullm_session *session, const int32_t *inputs, const int32_t *targets,
                    struct graph_context *context)
{
    TRY(session_check_usable(session));
    TRY(failure_check(&session->failure));
    TRY(check_tokens(session, "inputs", inputs));
    if (targets)
        TRY(check_tokens(session, "targets", targets));
    const int slot = (int)(session->submitted % session->slots);
    struct iteration *iteration = &session->iterations[slot];
    if (session->hold && session->submitted - session->first_held >= session->slots)
        return fail(STARPULLM_INVALID_STATE, "the session holds %d submissions, expected a release before the next",
                    session->slots);
    iteration_wait(iteration);
    session_wait_if_audited(session);
    if (session->instrument && instrument_poisons(session->instrument))
        TRY(poison_transient(session));
    TRY(copy_tokens(session, slot, inputs, handles_inputs));
    if (targets)
        TRY(copy_tokens(session, slot, targets, handles_targets));
    iteration_open(iteration, session->submitted);
    *context = (struct graph_context){&session->graph, iteration, slot};
    return STARPULLM_OK;
}

/* Closes the iteration; `code` says how submitting its tasks went. */
static status end(struct starpullm_session *session, const struct graph_context *context, status code)
{
    iteration_task_done(context->iteration);
    session->submitted++;
    if (code != STARPULLM_OK)
        session->broken = true;
    return code;
}

static status add_step(struct starpullm_session *session, const struct graph_context *context,
                       struct starpullm_loss *loss, const struct update *update)
{
    session->updates = update->number;
    session->learning_rate = update->adamw.learning_rate;
    return graph_add_step(context, loss, update);
}

/* update NULL: an evaluation. */
static status submit_with_loss(struct starpullm_session *session, const int32_t *inputs, const int32_t *targets,
                               const struct update *update, struct starpullm_loss **loss)
{
    struct graph_context context;
    TRY(begin(session, inputs, targets, &context));
    struct starpullm_loss *promised = loss_future_create();
    status code;
    if (!promised)
        code = fail(STARPULLM_OUT_OF_MEMORY, "a loss could not be allocated");
    else if (update)
        code = add_step(session, &context, promised, update);
    else
        code = graph_add_evaluation(&context, promised);
    code = end(session, &context, code);
    if (code == STARPULLM_OK)
        *loss = promised;
    else
        loss_future_release(promised);
    return code;
}

status starpullm_session_submit_step(starpullm_session *session, const int32_t *inputs, const int32_t *targets,
                                     const float *learning_rate, starpullm_loss **loss)
{
    CHECK_POINTER(session);
    CHECK_POINTER(inputs);
    CHECK_POINTER(targets);
    CHECK_POINTER(loss);
    struct update update = {session->updates + 1, session->adamw};
    if (learning_rate) {
        TRY(session_check_number("learning_rate", *learning_rate));
        update.adamw.learning_rate = *learning_rate;
    }
    return submit_with_loss(session, inputs, targets, &update, loss);
}

status starpullm_session_submit_evaluation(starpullm_session *session, const int32_t *inputs, const int32_t *targets,
                                           starpullm_loss **loss)
{
    CHECK_POINTER(session);
    CHECK_POINTER(inputs);
    CHECK_POINTER(targets);
    CHECK_POINTER(loss);
    return submit_with_loss(session, inputs, targets, NULL, loss);
}

status starpullm_session_submit_forward(starpullm_session *session, const int32_t *inputs)
{
    CHECK_POINTER(session);
    CHECK_POINTER(inputs);
    struct graph_context context;
    TRY(begin(session, inputs, NULL, &context));
    return end(session, &context, graph_add_forward(&context));
}
