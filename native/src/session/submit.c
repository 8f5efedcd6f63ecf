/* Submits batches and waits for them: checks and copies the tokens, opens an iteration in a free slot, and has graph/
 * add the tasks. Tasks can be held back, so that StarPU can be asked which of them wait for which. */
#include <stdlib.h>
#include <string.h>

#include "io/file.h"
#include "runtime/ranks.h"
#include "session/session.h"

/* ---- Waiting: tasks that are held back are let go first, or the wait would never end ---- */

static void let_go(struct starpullm_session *session)
{
    struct hold *hold = session->hold;
    session->hold = NULL;
    for (int slot = 0; slot < session->slots; slot++)
        session->iterations[slot].hold = NULL;
    hold_release(hold);
}

void session_wait_all(struct starpullm_session *session)
{
    let_go(session);
    for (int slot = 0; slot < session->slots; slot++)
        iteration_wait(&session->iterations[slot]);
}

void session_wait_if_audited(struct starpullm_session *session)
{
    if (session->instrument && instrument_audit(session->instrument))
        session_wait_all(session);
}

status starpullm_session_wait(starpullm_session *session)
{
    CHECK_POINTERS(session);
    session_wait_all(session);
    return check_tasks(&session->failure);
}

/* ---- Submitting ---- */

status session_check_usable(const struct starpullm_session *session)
{
    if (!session->broken)
        return STARPULLM_OK;
    return invalid_state("the session is unusable since a submission failed half way");
}

static status check_tokens(const struct starpullm_session *session, const char *what, const int32_t *tokens)
{
    const int64_t seq_len = (int64_t)session->work.T;
    for (int64_t n = 0; n < session->batch_size * seq_len; n++)
        if (tokens[n] < 0 || tokens[n] >= session->work.config.vocab_size)
            return fail(STARPULLM_INVALID_TOKEN, "%s[%lld, %lld]: token %d is out of range, expected 0 to %d", what,
                        (long long)(n / seq_len), (long long)(n % seq_len), tokens[n],
                        session->work.config.vocab_size - 1);
    return STARPULLM_OK;
}

static status copy_tokens(const struct starpullm_session *session, int slot, const int32_t *tokens,
                          struct data *(*data_of)(const struct handles *, int, int))
{
    const struct placement *placement = &session->work.placement;
    const size_t tokens_of_one = session->work.B * session->work.T;
    const int first = first_of_rank(placement);
    for (int n = 0; n < sub_batches_of_pipeline(placement); n++) {
        struct data *data = data_of(session->handles, slot, first + n);
        void *memory;
        if (!data) /* another stage needs them */
            continue;
        TRY(data_acquire_write(data, &memory));
        memcpy(memory, tokens + (size_t)n * tokens_of_one, data->bytes);
        data_release(data);
    }
    return STARPULLM_OK;
}

/* Each stage needs other tokens of a batch that all of them submit. */
static status check_same_batch(const struct starpullm_session *session, const int32_t *inputs, const int32_t *targets)
{
    const int64_t count = session->batch_size * (int64_t)session->work.T;
    const int stages = session->work.placement.stages;
    if (stages == 1)
        return STARPULLM_OK;
    const uint64_t of_targets = targets ? checksum_of((const float *)targets, count) : 0;
    return ranks_check_same(checksum_of((const float *)inputs, count) | of_targets << 32, stages,
                            "inputs, targets: found other tokens on other ranks of the pipeline, expected the same");
}

/* Fills what earlier iterations have left on this rank and no later one needs. */
static status poison_transient(struct starpullm_session *session)
{
    session_wait_all(session);
    for (int i = 0; i < handles_here(session->handles); i++) {
        struct data *data = handles_at(session->handles, i);
        void *memory;
        if (!data->transient) /* one rank has all data */
            continue;
        TRY(data_acquire_write(data, &memory));
        instrument_poison_between(session->instrument, memory, data->bytes);
        data_release(data);
    }
    return STARPULLM_OK;
}

/* Checks, waits for a free slot, copies the tokens into it and opens its iteration; end() follows. targets may be NULL.
 */
static status begin(struct starpullm_session *session, const int32_t *inputs, const int32_t *targets,
                    struct graph_context *context)
{
    TRY(session_check_usable(session));
    TRY(check_tasks(&session->failure));
    TRY(check_same_batch(session, inputs, targets));
    TRY(check_tokens(session, "inputs", inputs));
    if (targets)
        TRY(check_tokens(session, "targets", targets));
    const int slot = (int)(session->submitted % session->slots);
    struct iteration *iteration = &session->iterations[slot];
    if (session->hold && session->submitted - session->first_held >= session->slots)
        return invalid_state("the session holds %d submissions, expected a release before the next", session->slots);
    iteration_wait(iteration);
    session_wait_if_audited(session);
    if (session->instrument && instrument_poisons(session->instrument))
        TRY(poison_transient(session));
    TRY(copy_tokens(session, slot, inputs, handles_inputs));
    if (targets)
        TRY(copy_tokens(session, slot, targets, handles_targets));
    iteration_open(iteration, session->submitted);
    session->callers = arithmetic_enter();
    *context = (struct graph_context){&session->work, session->handles, iteration, slot, NULL, PRIORITY_DEFAULT};
    return STARPULLM_OK;
}

/* Closes the iteration; `code` says how submitting its tasks went. */
static status end(struct starpullm_session *session, const struct graph_context *context, status code)
{
    fesetenv(&session->callers);
    iteration_task_done(context->iteration);
    session->submitted++;
    if (code != STARPULLM_OK)
        session->broken = true;
    return code;
}

static status add_step(struct starpullm_session *session, const struct graph_context *context,
                       struct starpullm_loss *loss)
{
    session->updates = context->update->number;
    session->learning_rate = context->update->adamw.learning_rate;
    context->iteration->plan = session->plan.after ? &session->plan : NULL;
    return graph_add_step(context, loss);
}

/* update NULL: an evaluation. */
static status submit_with_loss(struct starpullm_session *session, const int32_t *inputs, const int32_t *targets,
                               const struct update *update, struct starpullm_loss **loss)
{
    struct graph_context context;
    TRY(begin(session, inputs, targets, &context));
    context.update = update;
    struct starpullm_loss *promised = loss_future_create(context.iteration);
    status code;
    if (!promised)
        code = out_of_memory("a loss could not be allocated");
    else if (update)
        code = add_step(session, &context, promised);
    else
        code = graph_add_forward(&context, promised);
    code = end(session, &context, code);
    if (code == STARPULLM_OK)
        *loss = promised;
    else
        starpullm_loss_destroy(&promised);
    return code;
}

status starpullm_session_submit_step(starpullm_session *session, const int32_t *inputs, const int32_t *targets,
                                     const float *learning_rate, starpullm_loss **loss)
{
    CHECK_POINTERS(session, inputs, targets, loss);
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
    CHECK_POINTERS(session, inputs, targets, loss);
    return submit_with_loss(session, inputs, targets, NULL, loss);
}

status starpullm_session_submit_forward(starpullm_session *session, const int32_t *inputs)
{
    CHECK_POINTERS(session, inputs);
    struct graph_context context;
    TRY(begin(session, inputs, NULL, &context));
    return end(session, &context, graph_add_forward(&context, NULL));
}

/* ---- Holding back ---- */

status starpullm_session_hold(starpullm_session *session)
{
    CHECK_POINTERS(session);
    if (!session->recorder)
        return invalid_state("hold: the session isn't traced, expected one created with trace");
    if (session->work.placement.ranks > 1)
        return invalid_state("hold: found %d ranks, expected one: transfers aren't tasks",
                             session->work.placement.ranks);
    if (session->share.number)
        return invalid_state(
            "hold: found a runtime with offload, expected one without: StarPU has tasks of its own between them");
    if (session->instrument && (instrument_audit(session->instrument) || instrument_poisons(session->instrument)))
        return invalid_state(
            "hold: the session is audited or poisoned, expected neither: both wait for all tasks before a submission");
    if (session->hold)
        return invalid_state("hold: the session holds its tasks already, expected a release");
    TRY(starpullm_session_wait(session));
    TRY(hold_create(&session->hold));
    session->first_held = session->submitted;
    for (int slot = 0; slot < session->slots; slot++)
        session->iterations[slot].hold = session->hold;
    return STARPULLM_OK;
}

status starpullm_session_release(starpullm_session *session, size_t *num_edges)
{
    CHECK_POINTERS(session, num_edges);
    if (!session->hold)
        return invalid_state("release: the session holds no tasks, expected a hold before");
    free(session->edges);
    session->edges = NULL;
    session->num_edges = 0;
    const status code = hold_edges(session->hold, &session->edges, &session->num_edges);
    let_go(session);
    *num_edges = session->num_edges;
    return code;
}

status starpullm_session_runtime_edges(starpullm_session *session, int64_t *edges, size_t num_edges)
{
    CHECK_POINTERS(session, edges);
    if (num_edges != session->num_edges)
        return invalid_argument("edges: room for %zu, expected %zu", num_edges, session->num_edges);
    if (num_edges)
        memcpy(edges, session->edges, num_edges * sizeof *session->edges);
    return STARPULLM_OK;
}
