/* A session: checks what comes in, loads the model into handles, submits graphs with a bounded number in flight, and
 * reads results back. Called by api.c. */
#include "session.h"

#include <fenv.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/hold.h"
#include "data/exchange.h"
#include "graph/graph.h"
#include "instrument/instrument.h"
#include "instrument/poison.h"
#include "io/checkpoint.h"
#include "io/training_state.h"
#include "runtime/runtime.h"
#include "saving.h"

enum { MAX_DELAY_US = 1000000 };

struct starpullm_session {
    struct starpullm_runtime *runtime;
    model_config config;
    int64_t batch_size, seq_len; /* the batch of this rank */
    struct placement placement;
    struct handles *handles;
    struct recorder *recorder;
    struct instrument *instrument; /* NULL: none */
    struct hold *hold;             /* NULL: tasks may run */
    int64_t held_from;             /* submissions before it */
    struct hold_edge *edges;       /* of the last hold */
    size_t num_edges;
    struct graph_options graph_options;
    int slots;
    struct iteration *iterations; /* [slot] */
    int slots_ready;              /* submissions that were initialised */
    int64_t submitted;            /* submissions so far */
    int64_t updates;              /* steps among them */
    bool blas;                    /* a BLAS computes, or has computed, matmuls of its steps */
    bool broken;                  /* a submission failed half way */
    struct failure failure;       /* of a task */
    struct saving *saving;        /* NULL: nothing has been saved yet */
};

/* ---- Create and destroy ---- */

static status check_number(const char *name, float value)
{
    if (isfinite(value) && value >= 0.0f)
        return STARPULLM_OK;
    return fail(STARPULLM_INVALID_ARGUMENT, "%s: found %g, expected a finite number, at least 0", name, (double)value);
}

static status check_beta(const char *name, float value)
{
    if (value >= 0.0f && value < 1.0f)
        return STARPULLM_OK;
    return fail(STARPULLM_INVALID_ARGUMENT, "%s: found %g, expected at least 0 and below 1", name, (double)value);
}

static status check_instruments(const struct starpullm_session_options *o)
{
    const int32_t all = STARPULLM_AUDIT | STARPULLM_POISON | STARPULLM_DELAY;
    if (o->instruments & ~all)
        return fail(STARPULLM_INVALID_ARGUMENT, "instruments: found %d, expected a sum of %d, %d and %d",
                    o->instruments, STARPULLM_AUDIT, STARPULLM_POISON, STARPULLM_DELAY);
    if (o->max_delay_us < 0 || o->max_delay_us > MAX_DELAY_US)
        return fail(STARPULLM_INVALID_ARGUMENT, "max_delay_us: found %d, expected 0 to %d", o->max_delay_us,
                    MAX_DELAY_US);
    if (o->instruments && !o->trace)
        return fail(STARPULLM_INVALID_ARGUMENT, "instruments: found no trace, expected one: findings name its tasks");
    const struct runtime_layout *layout = runtime_layout();
    if ((o->instruments & STARPULLM_AUDIT) && (layout->workers > 1 || layout->threads_per_worker > 1))
        return fail(STARPULLM_INVALID_ARGUMENT,
                    "instruments: found the audit on partition %dx%d, expected 1x1: pages are open to all threads",
                    layout->workers, layout->threads_per_worker);
    if ((o->instruments & (STARPULLM_AUDIT | STARPULLM_POISON)) && layout->ranks > 1)
        return fail(STARPULLM_INVALID_ARGUMENT,
                    "instruments: found audit or poison on %d ranks, expected one: transfers aren't tasks",
                    layout->ranks);
    if ((o->instruments & STARPULLM_AUDIT) && o->reduction == STARPULLM_REDUCTION_REDUX)
        return fail(STARPULLM_INVALID_ARGUMENT,
                    "instruments: found the audit with the reduction redux, expected another: StarPU sums in buffers "
                    "of its own");
    return STARPULLM_OK;
}

static status check_options(const struct starpullm_session_options *o, const model_config *config)
{
    if (o->batch_size < 1)
        return fail(STARPULLM_INVALID_ARGUMENT, "batch_size: found %lld, expected at least 1",
                    (long long)o->batch_size);
    if (o->seq_len < 1 || o->seq_len > config->max_seq_len)
        return fail(STARPULLM_INVALID_ARGUMENT,
                    "seq_len: found %lld, expected 1 to %d, the longest sequence that %s has positions for",
                    (long long)o->seq_len, config->max_seq_len, o->checkpoint ? o->checkpoint : o->resume);
    if (o->sub_batches < 1 || o->sub_batches > INT32_MAX || o->batch_size % o->sub_batches != 0)
        return fail(STARPULLM_INVALID_ARGUMENT,
                    "sub_batches: found %lld, expected a divisor of the batch size %lld that 32 bits hold",
                    (long long)o->sub_batches, (long long)o->batch_size);
    const int64_t ranks = runtime_layout()->ranks;
    if (o->sub_batches > INT32_MAX / ranks || o->batch_size > INT64_MAX / ranks)
        return fail(STARPULLM_INVALID_ARGUMENT,
                    "batch_size, sub_batches: found %lld and %lld on each of %lld ranks, "
                    "expected as many as 32 bits hold",
                    (long long)o->batch_size, (long long)o->sub_batches, (long long)ranks);
    if (o->reduction < STARPULLM_REDUCTION_ORDERED || o->reduction > STARPULLM_REDUCTION_REDUX)
        return fail(STARPULLM_INVALID_ARGUMENT, "reduction: found %d, expected %d (ordered), %d (tree) or %d (redux)",
                    o->reduction, STARPULLM_REDUCTION_ORDERED, STARPULLM_REDUCTION_TREE, STARPULLM_REDUCTION_REDUX);
    if (o->steps_in_flight < 1 || o->steps_in_flight > 1024)
        return fail(STARPULLM_INVALID_ARGUMENT, "steps_in_flight: found %d, expected 1 to 1024", o->steps_in_flight);
    TRY(check_instruments(o));
    TRY(check_number("learning_rate", o->learning_rate));
    TRY(check_beta("beta1", o->beta1));
    TRY(check_beta("beta2", o->beta2));
    TRY(check_number("eps", o->eps));
    TRY(check_number("weight_decay", o->weight_decay));
    return activations_check(config, ranks * o->batch_size, o->seq_len);
}

static status create_iterations(struct starpullm_session *session, int slots)
{
    session->slots = slots;
    session->iterations = calloc((size_t)slots, sizeof *session->iterations);
    if (!session->iterations)
        return fail(STARPULLM_OUT_OF_MEMORY, "a table of %d submissions", slots);
    for (; session->slots_ready < slots; session->slots_ready++)
        TRY(iteration_init(&session->iterations[session->slots_ready], session->recorder, &session->failure));
    return STARPULLM_OK;
}

/* The constants in handles are computed here, on the caller's thread: under the contract's environment, not its own. */
static status create_handles(struct starpullm_session *session, const struct starpullm_session_options *options)
{
    const struct handles_options handles_options = {
        .config = session->config,
        .sub_batch_size = options->batch_size / options->sub_batches,
        .seq_len = options->seq_len,
        .placement = &session->placement,
        .reduction = (enum starpullm_reduction)options->reduction,
        .slots = options->steps_in_flight,
        .keep_activations = options->keep_activations != 0,
    };
    fenv_t environment;
    fegetenv(&environment);
    fesetenv(FE_DFL_ENV);
    status code = handles_create(&handles_options, &session->handles);
    fesetenv(&environment);
    TRY(code);
    if (options->reduction == STARPULLM_REDUCTION_REDUX)
        for (int p = 0; p < NUM_PARAMETERS; p++)
            for (int l = 0; l < parameter_instances(&session->config, p); l++)
                gradient_make_reducible(handles_gradient(session->handles, p, l, 0));
    return STARPULLM_OK;
}

/* Once the model has been loaded: from here on memory may be closed. */
static status create_instrument(struct starpullm_session *session, const struct starpullm_session_options *options)
{
    if (!options->instruments)
        return STARPULLM_OK;
    const int count = handles_count(session->handles);
    struct audit_buffer *buffers = calloc((size_t)count, sizeof *buffers);
    if (!buffers)
        return fail(STARPULLM_OUT_OF_MEMORY, "a table of %d buffers", count);
    for (int i = 0; i < count; i++) {
        const struct data *data = handles_at(session->handles, i);
        buffers[i] = (struct audit_buffer){data->id, data->buffer, data->bytes};
    }
    const struct instrument_options instrument_options = {options->instruments, options->max_delay_us,
                                                          options->delay_seed};
    status code = instrument_create(&instrument_options, buffers, (size_t)count, &session->instrument);
    free(buffers);
    TRY(code);
    for (int i = 0; i < count; i++)
        handles_at(session->handles, i)->audit = instrument_audit(session->instrument);
    for (int slot = 0; slot < session->slots; slot++)
        session->iterations[slot].instrument = session->instrument;
    return STARPULLM_OK;
}

static status load_parameters(struct starpullm_session *session, const char *path);
static status load_state(struct starpullm_session *session, const struct training_state *state);

/* `state` is what it resumes from; NULL: it starts from a checkpoint. */
static status open_session(struct starpullm_session *session, const struct starpullm_session_options *options,
                           const struct training_state *state)
{
    if (state)
        session->config = training_state_meta(state)->config;
    else
        TRY(checkpoint_config(options->checkpoint, &session->config));
    TRY(check_options(options, &session->config));
    session->batch_size = options->batch_size;
    session->seq_len = options->seq_len;
    if (options->trace)
        TRY(recorder_create(&session->recorder));
    TRY(create_iterations(session, options->steps_in_flight));
    const struct runtime_layout *layout = runtime_layout();
    session->blas = layout->blas || (state && training_state_meta(state)->blas);
    const int sub_batches = (int)options->sub_batches * layout->ranks;
    TRY(placement_create(&session->placement, &session->config, layout->rank, layout->ranks, sub_batches));
    TRY(create_handles(session, options));
    session->graph_options = (struct graph_options){
        .handles = session->handles,
        .config = session->config,
        .B = (size_t)(options->batch_size / options->sub_batches),
        .T = (size_t)options->seq_len,
        .sub_batches = sub_batches,
        .placement = &session->placement,
        .reduction = (enum starpullm_reduction)options->reduction,
        .adamw = {options->learning_rate, options->beta1, options->beta2, options->eps, options->weight_decay},
    };
    TRY(state ? load_state(session, state) : load_parameters(session, options->checkpoint));
    return create_instrument(session, options);
}

static status open_from_files(struct starpullm_session *session, const struct starpullm_session_options *options)
{
    if (!options->checkpoint == !options->resume)
        return fail(STARPULLM_INVALID_ARGUMENT, "checkpoint, resume: found %s, expected one of them",
                    options->checkpoint ? "both" : "neither");
    if (!options->resume)
        return open_session(session, options, NULL);
    struct training_state *state;
    TRY(training_state_open(options->resume, &state));
    status code = open_session(session, options, state);
    training_state_close(state);
    return code;
}

static status let_go(struct starpullm_session *session)
{
    struct hold *hold = session->hold;
    session->hold = NULL;
    for (int slot = 0; slot < session->slots_ready; slot++)
        session->iterations[slot].hold = NULL;
    return hold_release(hold);
}

/* Tasks that are held would never end. */
static void wait_for_all(struct starpullm_session *session)
{
    (void)let_go(session);
    for (int slot = 0; slot < session->slots_ready; slot++)
        iteration_wait(&session->iterations[slot]);
}

static void close_session(struct starpullm_session *session)
{
    saving_destroy(session->saving);
    wait_for_all(session);
    instrument_destroy(session->instrument);
    handles_destroy(session->handles);
    placement_destroy(&session->placement);
    for (int slot = 0; slot < session->slots_ready; slot++)
        iteration_destroy(&session->iterations[slot]);
    free(session->iterations);
    recorder_destroy(session->recorder);
    free(session->edges);
    failure_destroy(&session->failure);
    free(session);
}

status session_create(struct starpullm_runtime *runtime, const struct starpullm_session_options *options,
                      struct starpullm_session **session)
{
    struct starpullm_session *created = calloc(1, sizeof *created);
    if (!created)
        return fail(STARPULLM_OUT_OF_MEMORY, "a session");
    status code = runtime_enter_session(runtime);
    if (code != STARPULLM_OK) {
        free(created);
        return code;
    }
    created->runtime = runtime;
    failure_init(&created->failure);
    code = open_from_files(created, options);
    if (code != STARPULLM_OK) {
        close_session(created);
        runtime_leave_session(runtime);
        return code;
    }
    *session = created;
    return STARPULLM_OK;
}

void session_destroy(struct starpullm_session *session)
{
    if (!session)
        return;
    struct starpullm_runtime *runtime = session->runtime;
    close_session(session);
    runtime_leave_session(runtime);
}

const struct starpullm_model_config *session_config(const struct starpullm_session *session)
{
    return &session->config;
}

/* ---- Submit ---- */

static status check_tokens(const struct starpullm_session *session, const char *what, const int32_t *tokens)
{
    for (int64_t n = 0; n < session->batch_size * session->seq_len; n++)
        if (tokens[n] < 0 || tokens[n] >= session->config.vocab_size)
            return fail(STARPULLM_INVALID_TOKEN, "%s[%lld, %lld]: token %d is out of range, expected 0 to %d", what,
                        (long long)(n / session->seq_len), (long long)(n % session->seq_len), tokens[n],
                        session->config.vocab_size - 1);
    return STARPULLM_OK;
}

static status copy_tokens(const struct starpullm_session *session, int slot, const int32_t *tokens,
                          struct data *(*data_of)(const struct handles *, int, int))
{
    const char *next = (const char *)tokens;
    for (int s = 0; s < session->graph_options.sub_batches; s++) {
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

/* What the submissions before have left and none after needs. */
static status poison_transient(struct starpullm_session *session)
{
    wait_for_all(session);
    for (int i = 0; i < handles_count(session->handles); i++) {
        struct data *data = handles_at(session->handles, i);
        void *memory;
        if (!data->transient)
            continue;
        TRY(data_acquire_write(data, &memory));
        poison_fill(memory, data->bytes);
        data_release(data);
    }
    return STARPULLM_OK;
}

/* Checks, waits for a free slot, copies the tokens into it and opens its iteration. targets may be NULL. */
static status begin(struct starpullm_session *session, const int32_t *inputs, const int32_t *targets,
                    struct graph_context *context)
{
    if (session->broken)
        return fail(STARPULLM_INVALID_STATE, "the session is unusable since a submission failed half way");
    TRY(failure_check(&session->failure));
    TRY(check_tokens(session, "inputs", inputs));
    if (targets)
        TRY(check_tokens(session, "targets", targets));
    const int slot = (int)(session->submitted % session->slots);
    struct iteration *iteration = &session->iterations[slot];
    if (session->hold && session->submitted - session->held_from >= session->slots)
        return fail(STARPULLM_INVALID_STATE, "the session holds %d submissions, expected a release before the next",
                    session->slots);
    iteration_wait(iteration);
    if (session->instrument && instrument_poisons(session->instrument))
        TRY(poison_transient(session));
    TRY(copy_tokens(session, slot, inputs, handles_inputs));
    if (targets)
        TRY(copy_tokens(session, slot, targets, handles_targets));
    iteration_open(iteration, session->submitted);
    *context = (struct graph_context){&session->graph_options, iteration, slot};
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

static status submit_with_loss(struct starpullm_session *session, const int32_t *inputs, const int32_t *targets,
                               bool update, struct starpullm_loss **loss)
{
    struct graph_context context;
    TRY(begin(session, inputs, targets, &context));
    struct starpullm_loss *promised = loss_future_create();
    status code;
    if (!promised)
        code = fail(STARPULLM_OUT_OF_MEMORY, "a loss");
    else if (update)
        code = graph_add_step(&context, promised, ++session->updates);
    else
        code = graph_add_evaluation(&context, promised);
    code = end(session, &context, code);
    if (code == STARPULLM_OK)
        *loss = promised;
    else
        loss_future_release(promised);
    return code;
}

status session_submit_step(struct starpullm_session *session, const int32_t *inputs, const int32_t *targets,
                           struct starpullm_loss **loss)
{
    return submit_with_loss(session, inputs, targets, true, loss);
}

status session_submit_evaluation(struct starpullm_session *session, const int32_t *inputs, const int32_t *targets,
                                 struct starpullm_loss **loss)
{
    return submit_with_loss(session, inputs, targets, false, loss);
}

status session_submit_forward(struct starpullm_session *session, const int32_t *inputs)
{
    struct graph_context context;
    TRY(begin(session, inputs, NULL, &context));
    return end(session, &context, graph_add_forward(&context));
}

status session_wait(struct starpullm_session *session)
{
    wait_for_all(session);
    return failure_check(&session->failure);
}

/* ---- Hold ---- */

status session_hold(struct starpullm_session *session)
{
    if (!session->recorder)
        return fail(STARPULLM_INVALID_STATE, "hold: the session isn't traced, expected one created with trace");
    if (session->placement.ranks > 1)
        return fail(STARPULLM_INVALID_STATE, "hold: found %d ranks, expected one: transfers aren't tasks",
                    session->placement.ranks);
    if (session->instrument && (instrument_audit(session->instrument) || instrument_poisons(session->instrument)))
        return fail(STARPULLM_INVALID_STATE, "hold: the session is audited or poisoned, expected neither: both wait "
                                             "for all tasks before a submission");
    if (session->hold)
        return fail(STARPULLM_INVALID_STATE, "hold: the session holds its tasks already, expected a release");
    TRY(session_wait(session));
    TRY(hold_create(&session->hold));
    session->held_from = session->submitted;
    for (int slot = 0; slot < session->slots; slot++)
        session->iterations[slot].hold = session->hold;
    return STARPULLM_OK;
}

status session_release(struct starpullm_session *session, size_t *num_edges)
{
    if (!session->hold)
        return fail(STARPULLM_INVALID_STATE, "release: the session holds no tasks, expected a hold before");
    free(session->edges);
    session->edges = NULL;
    session->num_edges = 0;
    const status asked = hold_edges(session->hold, &session->edges, &session->num_edges);
    if (asked != STARPULLM_OK) {
        wait_for_all(session);
        return asked;
    }
    *num_edges = session->num_edges;
    return let_go(session);
}

status session_copy_edges(const struct starpullm_session *session, int64_t *edges, size_t num_edges)
{
    if (num_edges != session->num_edges)
        return fail(STARPULLM_INVALID_ARGUMENT, "edges: room for %zu, expected %zu", num_edges, session->num_edges);
    for (size_t i = 0; i < num_edges; i++) {
        edges[2 * i] = session->edges[i].before;
        edges[2 * i + 1] = session->edges[i].after;
    }
    return STARPULLM_OK;
}

/* What waits for tasks, and would do so for ever. */
static status check_running(const struct starpullm_session *session)
{
    if (!session->hold)
        return STARPULLM_OK;
    return fail(STARPULLM_INVALID_STATE, "the session holds its tasks, expected a release first");
}

/* ---- Read back ---- */

static bool is_parameter_group(int32_t group)
{
    return group >= STARPULLM_PARAMS && group <= STARPULLM_V;
}

int32_t session_tensor_count(int32_t group)
{
    if (is_parameter_group(group))
        return NUM_PARAMETERS;
    return group == STARPULLM_ACTIVATIONS || group == STARPULLM_ACTIVATION_GRADS ? NUM_ACTIVATIONS : 0;
}

status session_tensor_info(const struct starpullm_session *session, int32_t group, int32_t index,
                           struct starpullm_tensor_info *info)
{
    const int32_t number = session_tensor_count(group);
    if (number == 0)
        return fail(STARPULLM_INVALID_ARGUMENT, "group: found %d, expected 0 to %d", group, STARPULLM_NUM_GROUPS - 1);
    if (index < 0 || index >= number)
        return fail(STARPULLM_INVALID_ARGUMENT, "tensor: found number %d, expected 0 to %d", index, number - 1);
    struct tensor_shape shape;
    if (is_parameter_group(group)) {
        info->name = parameter_name(index);
        info->layered = parameter_layered(index);
        info->instances = parameter_instances(&session->config, index);
        shape = parameter_shape(&session->config, index);
    } else {
        info->name = activation_name(index);
        info->layered = activation_layered(index);
        info->instances = activation_instances(&session->config, index);
        shape =
            activation_shape(&session->config, index, session->placement.ranks * session->batch_size, session->seq_len);
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

/* The batch lies in sub-batches one after the other, each in a buffer of its own. */
static status read_activation(struct starpullm_session *session, int32_t group, int32_t index, int32_t layer,
                              int64_t offset, int64_t count, float *values)
{
    TRY(check_kept(session, group, index));
    const int64_t piece =
        tensor_elements(activation_shape(&session->config, index, (int64_t)session->graph_options.B, session->seq_len));
    while (count > 0) {
        const int s = (int)(offset / piece);
        const int64_t from = offset % piece;
        const int64_t now = count < piece - from ? count : piece - from;
        struct data *data = group == STARPULLM_ACTIVATIONS ? handles_activation(session->handles, index, layer, s)
                                                           : handles_activation_grad(session->handles, index, layer, s);
        if (data)
            TRY(copy_out(data, from, now, values));
        else /* nothing is accumulated into it: +0 */
            memset(values, 0, (size_t)now * sizeof *values);
        offset += now;
        values += now;
        count -= now;
    }
    return STARPULLM_OK;
}

status session_read_tensor(struct starpullm_session *session, int32_t group, int32_t index, int32_t layer,
                           int64_t offset, int64_t count, float *values)
{
    TRY(check_running(session));
    struct starpullm_tensor_info info = {.size = sizeof info};
    TRY(session_tensor_info(session, group, index, &info));
    if (layer < 0 || layer >= info.instances)
        return fail(STARPULLM_INVALID_ARGUMENT, "%s: found layer %d, expected 0 to %d", info.name, layer,
                    info.instances - 1);
    const int64_t elements =
        tensor_elements((struct tensor_shape){info.num_dims, {info.dims[0], info.dims[1], info.dims[2], info.dims[3]}});
    if (offset < 0 || count < 0 || offset > elements || count > elements - offset)
        return fail(STARPULLM_INVALID_ARGUMENT, "%s: found %lld elements from %lld on, expected a part of %lld",
                    info.name, (long long)count, (long long)offset, (long long)elements);
    if (group == STARPULLM_GRADS)
        return copy_out(gradient_of_batch(&session->graph_options, index, layer), offset, count, values);
    if (is_parameter_group(group))
        return copy_out(handles_parameter(session->handles, group, index, layer), offset, count, values);
    return read_activation(session, group, index, layer, offset, count, values);
}

static status gather_parameters(struct starpullm_session *session)
{
    for (int p = 0; p < NUM_PARAMETERS; p++)
        for (int l = 0; l < parameter_instances(&session->config, p); l++) {
            TRY(exchange_to_all(gradient_of_batch(&session->graph_options, p, l)));
            TRY(exchange_to_all(handles_parameter(session->handles, STARPULLM_PARAMS, p, l)));
            TRY(exchange_to_all(handles_parameter(session->handles, STARPULLM_M, p, l)));
            TRY(exchange_to_all(handles_parameter(session->handles, STARPULLM_V, p, l)));
        }
    return STARPULLM_OK;
}

static status gather_activation(struct starpullm_session *session, enum activation a, int s)
{
    for (int l = 0; l < activation_instances(&session->config, a); l++) {
        struct data *gradient = handles_activation_grad(session->handles, a, l, s);
        if (handles_activation_kept(session->handles, a))
            TRY(exchange_to_all(handles_activation(session->handles, a, l, s)));
        if (gradient && handles_activation_grad_kept(session->handles, a))
            TRY(exchange_to_all(gradient));
    }
    return STARPULLM_OK;
}

status session_gather(struct starpullm_session *session)
{
    TRY(check_running(session));
    if (session->placement.ranks == 1)
        return STARPULLM_OK;
    TRY(gather_parameters(session));
    for (int a = 0; a < NUM_ACTIVATIONS; a++)
        for (int s = 0; s < session->graph_options.sub_batches; s++)
            TRY(gather_activation(session, a, s));
    return STARPULLM_OK;
}

/* ---- Checkpoints, trace ---- */

static struct data *parameter_data(void *context, enum parameter p, int layer)
{
    const struct starpullm_session *session = context;
    return handles_parameter(session->handles, STARPULLM_PARAMS, p, layer);
}

static bool owned(const struct starpullm_session *session, enum parameter p, int layer)
{
    return owner_of(&session->placement, p, layer) == session->placement.rank;
}

/* Each rank fills what it owns; the others get it by StarPU's transfers when they first need it. */
static status acquire_to_fill(void *context, enum parameter p, int layer, float **values)
{
    void *memory = NULL;
    if (owned(context, p, layer))
        TRY(data_acquire_write(parameter_data(context, p, layer), &memory));
    *values = memory;
    return STARPULLM_OK;
}

static void release_filled(void *context, enum parameter p, int layer)
{
    if (owned(context, p, layer))
        data_release(parameter_data(context, p, layer));
}

static status load_parameters(struct starpullm_session *session, const char *path)
{
    const struct checkpoint_destination destination = {session, acquire_to_fill, release_filled};
    return checkpoint_read(path, &session->config, &destination);
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

/* Rank 0 writes. Every rank hands over what it owns first, so that nobody waits for a rank 0 that can't write. */
status session_save_checkpoint(struct starpullm_session *session, const char *path)
{
    TRY(check_running(session));
    for (int p = 0; p < NUM_PARAMETERS; p++)
        for (int l = 0; l < parameter_instances(&session->config, p); l++)
            TRY(exchange_to(parameter_data(session, p, l), 0));
    if (session->placement.rank > 0)
        return STARPULLM_OK;
    const struct checkpoint_source source = {session, acquire_to_save, release_saved};
    return checkpoint_write(path, &session->config, &source);
}

static struct data *state_data(void *context, enum starpullm_group group, enum parameter p, int layer)
{
    const struct starpullm_session *session = context;
    return handles_parameter(session->handles, group, p, layer);
}

static status acquire_state(void *context, enum starpullm_group group, enum parameter p, int layer, float **values)
{
    void *memory = NULL;
    if (owned(context, p, layer))
        TRY(data_acquire_write(state_data(context, group, p, layer), &memory));
    *values = memory;
    return STARPULLM_OK;
}

static void release_state(void *context, enum starpullm_group group, enum parameter p, int layer)
{
    if (owned(context, p, layer))
        data_release(state_data(context, group, p, layer));
}

/* Each rank takes what it owns, whichever rank saved it. */
static status load_state(struct starpullm_session *session, const struct training_state *state)
{
    const struct training_state_destination destination = {session, acquire_state, release_state};
    session->updates = training_state_meta(state)->step;
    return training_state_read(state, &session->config, &destination);
}

status session_save_state(struct starpullm_session *session, const struct starpullm_save_options *options)
{
    TRY(check_running(session));
    if (options->keep < 1)
        return fail(STARPULLM_INVALID_ARGUMENT, "keep: found %d, expected at least 1", options->keep);
    if (session->broken)
        return fail(STARPULLM_INVALID_STATE, "the session is unusable since a submission failed half way");
    if (session->instrument && instrument_audit(session->instrument))
        return fail(STARPULLM_INVALID_STATE, "the session is audited, expected one that isn't: a state is written "
                                             "while tasks run, from memory that is closed to all but them");
    if (!session->saving)
        TRY(saving_create(&session->graph_options, &session->saving));
    const struct adamw_options *adamw = &session->graph_options.adamw;
    const struct training_state_meta meta = {
        .config = session->config,
        .rank = session->placement.rank,
        .num_ranks = session->placement.ranks,
        .step = session->updates,
        .run = options->run,
        .batches = options->batches,
        .batch_size = session->placement.ranks * session->batch_size,
        .seq_len = session->seq_len,
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

status session_wait_saved(struct starpullm_session *session)
{
    return session->saving ? saving_wait(session->saving) : STARPULLM_OK;
}

status session_recorder(struct starpullm_session *session, struct recorder **recorder)
{
    if (!session->recorder)
        return fail(STARPULLM_INVALID_STATE, "the session isn't traced, expected one created with trace");
    TRY(session_wait(session));
    *recorder = session->recorder;
    return STARPULLM_OK;
}

status session_instrument(struct starpullm_session *session, struct instrument **instrument)
{
    if (!session->instrument)
        return fail(STARPULLM_INVALID_STATE, "the session has no instruments, expected one created with some");
    TRY(session_wait(session));
    *instrument = session->instrument;
    return STARPULLM_OK;
}

status session_clear_trace(struct starpullm_session *session)
{
    struct recorder *recorder = NULL;
    TRY(session_recorder(session, &recorder));
    recorder_clear(recorder);
    if (session->instrument)
        instrument_clear(session->instrument);
    return STARPULLM_OK;
}

int32_t session_handle_count(const struct starpullm_session *session)
{
    return handles_count(session->handles);
}

status session_handle_info(const struct starpullm_session *session, int32_t index, struct starpullm_handle_info *info)
{
    if (index < 0 || index >= handles_count(session->handles))
        return fail(STARPULLM_INVALID_ARGUMENT, "handle: found number %d, expected 0 to %d", index,
                    handles_count(session->handles) - 1);
    const struct data *data = handles_at(session->handles, index);
    snprintf(info->name, sizeof info->name, "%s", data->name);
    info->bytes = (int64_t)data->bytes;
    return STARPULLM_OK;
}
