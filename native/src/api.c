/* The exported functions: pointers and struct sizes are checked here, everything else by the room that is called.
 * Called by C users and, through ctypes, by starpullm/binding. */
#include <fenv.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "build_info.h"
#include "codelets/codelets.h"
#include "instrument/instrument.h"
#include "io/checkpoint.h"
#include "io/debug_state.h"
#include "io/tokens.h"
#include "io/training_state.h"
#include "kernels/kernels.h"
#include "kernels/libm.h"
#include "kernels/peak.h"
#include "runtime/ranks.h"
#include "runtime/runtime.h"
#include "runtime/topology.h"
#include "session.h"
#include "trace/record.h"

#define CHECK_POINTER(pointer)                                                             \
    do {                                                                                   \
        if (!(pointer))                                                                    \
            return fail(STARPULLM_INVALID_ARGUMENT, "%s: " #pointer " is NULL", __func__); \
    } while (0)

/* A caller built against another header has a struct of another size. */
#define CHECK_STRUCT(pointer)                                                                                \
    do {                                                                                                     \
        CHECK_POINTER(pointer);                                                                              \
        if ((pointer)->size != sizeof *(pointer))                                                            \
            return fail(STARPULLM_INVALID_ARGUMENT, "%s: " #pointer "->size is %zu, expected %zu", __func__, \
                        (pointer)->size, sizeof *(pointer));                                                 \
    } while (0)

enum { MAX_PEAK_SECONDS = 60 };

const char *starpullm_last_error(void)
{
    return last_error();
}

int starpullm_last_error_number(void)
{
    return last_error_number();
}

int starpullm_abi_version(void)
{
    return STARPULLM_ABI_VERSION;
}

status starpullm_build_info(struct starpullm_build_info *info)
{
    CHECK_STRUCT(info);
    *info = (struct starpullm_build_info){
        .size = sizeof *info,
        .version = BUILD_VERSION,
        .compiler = BUILD_COMPILER,
        .compiler_flags = BUILD_COMPILER_FLAGS,
        .build_type = BUILD_TYPE,
        .starpu_version = BUILD_STARPU_VERSION,
        .starpu_prefix = BUILD_STARPU_PREFIX,
        .mpi = ranks_supported(),
    };
    return STARPULLM_OK;
}

status starpullm_machine_info(struct starpullm_machine_info *info)
{
    CHECK_STRUCT(info);
    static _Thread_local struct topology topology;
    TRY(topology_read(&topology));
    const struct runtime_features features = runtime_features();
    *info = (struct starpullm_machine_info){
        .size = sizeof *info,
        .cores = topology.cores,
        .processing_units = topology.processing_units,
        .numa_nodes = topology.numa_nodes,
        .synthetic = topology.synthetic,
        .processor = topology.processor,
        .simd_level = kernels_level(),
        .starpu_version = runtime_starpu_version(),
        .starpu_max_workers = features.max_workers,
        .starpu_max_contexts = features.max_contexts,
        .starpu_parallel_workers = features.parallel_workers,
    };
    return STARPULLM_OK;
}

const char *starpullm_scheduler_name(size_t index)
{
    return runtime_scheduler_name(index);
}

status starpullm_libm(const char *function, float *out, const float *in, size_t count)
{
    static const struct {
        const char *name;
        float (*function)(float);
    } functions[] = {{"expf", expf}, {"tanhf", tanhf}, {"coshf", coshf}, {"logf", logf}};
    CHECK_POINTER(function);
    CHECK_POINTER(out);
    CHECK_POINTER(in);
    for (size_t f = 0; f < sizeof functions / sizeof *functions; f++)
        if (strcmp(functions[f].name, function) == 0) {
            for (size_t i = 0; i < count; i++)
                out[i] = functions[f].function(in[i]);
            return STARPULLM_OK;
        }
    return fail(STARPULLM_INVALID_ARGUMENT, "function: found \"%s\", expected expf, tanhf, coshf or logf", function);
}

status starpullm_libm_powf(float *out, const float *base, const float *exponent, size_t count)
{
    CHECK_POINTER(out);
    CHECK_POINTER(base);
    CHECK_POINTER(exponent);
    for (size_t i = 0; i < count; i++)
        out[i] = powf(base[i], exponent[i]);
    return STARPULLM_OK;
}

const char *starpullm_simd_level_name(size_t index)
{
    return kernels_level_name(index);
}

const char *starpullm_vector_libm_name(size_t index)
{
    return libm_name(index);
}

static status find_vector_libm(enum libm_function *function, const char *name)
{
    for (size_t f = 0; libm_name(f); f++)
        if (strcmp(libm_name(f), name) == 0) {
            *function = (enum libm_function)f;
            return STARPULLM_OK;
        }
    return fail(STARPULLM_INVALID_ARGUMENT, "function: found \"%s\", expected expf, tanhf or coshf", name);
}

status starpullm_vector_libm(int32_t *used, uint64_t *fingerprint, const char *function)
{
    CHECK_POINTER(used);
    CHECK_POINTER(fingerprint);
    CHECK_POINTER(function);
    enum libm_function f;
    TRY(find_vector_libm(&f, function));
    *used = libm_is_proven(f);
    *fingerprint = libm_fingerprint(f);
    return STARPULLM_OK;
}

status starpullm_prove_libm(uint64_t *differences, uint32_t *first_difference, const char *level, const char *function,
                            uint64_t begin, uint64_t end)
{
    CHECK_POINTER(differences);
    CHECK_POINTER(first_difference);
    CHECK_POINTER(level);
    CHECK_POINTER(function);
    enum libm_function f;
    TRY(find_vector_libm(&f, function));
    libm_map *vector = libm_of_level(level, f);
    if (!vector)
        return fail(STARPULLM_INVALID_ARGUMENT, "level: found \"%s\", expected a SIMD level of this machine", level);
    if (begin > end || end > UINT64_C(1) << 32)
        return fail(STARPULLM_INVALID_ARGUMENT,
                    "bit patterns: found %" PRIu64 " to %" PRIu64 ", expected a range within 0 to 2^32", begin, end);
    *differences = libm_count_differences(first_difference, f, vector, begin, end);
    return STARPULLM_OK;
}

status starpullm_peak_gflops(double *gflops, int32_t fused, double seconds)
{
    CHECK_POINTER(gflops);
    if (!(seconds > 0 && seconds <= MAX_PEAK_SECONDS))
        return fail(STARPULLM_INVALID_ARGUMENT, "seconds: found %g, expected more than 0 and at most %d", seconds,
                    MAX_PEAK_SECONDS);
    *gflops = peak_measure(fused, seconds) / 1e9;
    return STARPULLM_OK;
}

const char *starpullm_float_environment(void)
{
    if (fegetround() != FE_TONEAREST)
        return "the rounding mode isn't to nearest";
    volatile float smallest_normal = FLT_MIN, half = 0.5f, denormal = FLT_TRUE_MIN, one = 1.0f;
    if (smallest_normal * half == 0.0f)
        return "flush-to-zero is on: denormal results become 0";
    if (denormal * one == 0.0f)
        return "denormals-are-zero is on: denormal operands count as 0";
    return "";
}

status starpullm_checkpoint_config(const char *path, struct starpullm_model_config *config)
{
    CHECK_POINTER(path);
    CHECK_POINTER(config);
    return checkpoint_config(path, config);
}

status starpullm_tokens_open(const struct starpullm_tokens_options *options, starpullm_tokens **tokens)
{
    CHECK_STRUCT(options);
    CHECK_POINTER(tokens);
    return tokens_open(options, tokens);
}

status starpullm_tokens_next(starpullm_tokens *tokens, int32_t *inputs, int32_t *targets)
{
    CHECK_POINTER(tokens);
    CHECK_POINTER(inputs);
    CHECK_POINTER(targets);
    return tokens_next(tokens, inputs, targets);
}

void starpullm_tokens_close(starpullm_tokens *tokens)
{
    tokens_close(tokens);
}

status starpullm_debug_state_size(const char *path, const struct starpullm_model_config *config, int64_t *batch_size,
                                  int64_t *seq_len)
{
    CHECK_POINTER(path);
    CHECK_POINTER(config);
    CHECK_POINTER(batch_size);
    CHECK_POINTER(seq_len);
    return debug_state_size(path, config, batch_size, seq_len);
}

status starpullm_debug_state_read(const char *path, const struct starpullm_model_config *config, int32_t *inputs,
                                  int32_t *targets, float *logits, float *loss, float *grads)
{
    CHECK_POINTER(path);
    CHECK_POINTER(config);
    return debug_state_read(path, config, inputs, targets, logits, loss, grads);
}

status starpullm_runtime_create(const struct starpullm_runtime_options *options, starpullm_runtime **runtime)
{
    CHECK_STRUCT(options);
    CHECK_POINTER(runtime);
    return runtime_create(options, runtime);
}

const char *starpullm_blas(void)
{
    return kernels_blas();
}

status starpullm_runtime_destroy(starpullm_runtime *runtime)
{
    CHECK_POINTER(runtime);
    return runtime_destroy(runtime);
}

status starpullm_runtime_threads(starpullm_runtime *runtime, struct starpullm_thread_info *threads, size_t count)
{
    CHECK_POINTER(runtime);
    CHECK_POINTER(threads);
    const struct runtime_layout *layout = runtime_layout();
    const size_t expected = (size_t)layout->workers * (size_t)layout->threads_per_worker;
    if (count != expected)
        return fail(STARPULLM_INVALID_ARGUMENT, "threads: room for %zu, expected %zu (%d workers of %d)", count,
                    expected, layout->workers, layout->threads_per_worker);
    return runtime_threads(runtime, threads);
}

status starpullm_session_create(starpullm_runtime *runtime, const struct starpullm_session_options *options,
                                starpullm_session **session)
{
    CHECK_POINTER(runtime);
    CHECK_STRUCT(options);
    CHECK_POINTER(session);
    return session_create(runtime, options, session);
}

void starpullm_session_destroy(starpullm_session *session)
{
    session_destroy(session);
}

status starpullm_session_config(const starpullm_session *session, struct starpullm_model_config *config)
{
    CHECK_POINTER(session);
    CHECK_POINTER(config);
    *config = *session_config(session);
    return STARPULLM_OK;
}

status starpullm_loss_wait(starpullm_loss *loss, float *value)
{
    CHECK_POINTER(loss);
    CHECK_POINTER(value);
    return loss_wait(loss, value);
}

int starpullm_loss_ready(const starpullm_loss *loss)
{
    return loss && loss_ready(loss);
}

void starpullm_loss_destroy(starpullm_loss *loss)
{
    loss_release(loss);
}

status starpullm_session_submit_step(starpullm_session *session, const int32_t *inputs, const int32_t *targets,
                                     starpullm_loss **loss)
{
    CHECK_POINTER(session);
    CHECK_POINTER(inputs);
    CHECK_POINTER(targets);
    CHECK_POINTER(loss);
    return session_submit_step(session, inputs, targets, loss);
}

status starpullm_session_submit_evaluation(starpullm_session *session, const int32_t *inputs, const int32_t *targets,
                                           starpullm_loss **loss)
{
    CHECK_POINTER(session);
    CHECK_POINTER(inputs);
    CHECK_POINTER(targets);
    CHECK_POINTER(loss);
    return session_submit_evaluation(session, inputs, targets, loss);
}

status starpullm_session_submit_forward(starpullm_session *session, const int32_t *inputs)
{
    CHECK_POINTER(session);
    CHECK_POINTER(inputs);
    return session_submit_forward(session, inputs);
}

status starpullm_session_wait(starpullm_session *session)
{
    CHECK_POINTER(session);
    return session_wait(session);
}

int32_t starpullm_tensor_count(int32_t group)
{
    return session_tensor_count(group);
}

status starpullm_session_tensor_info(const starpullm_session *session, int32_t group, int32_t index,
                                     struct starpullm_tensor_info *info)
{
    CHECK_POINTER(session);
    CHECK_STRUCT(info);
    return session_tensor_info(session, group, index, info);
}

status starpullm_session_gather(starpullm_session *session)
{
    CHECK_POINTER(session);
    return session_gather(session);
}

status starpullm_session_read_tensor(starpullm_session *session, int32_t group, int32_t index, int32_t layer,
                                     int64_t offset, int64_t count, float *values)
{
    CHECK_POINTER(session);
    CHECK_POINTER(values);
    return session_read_tensor(session, group, index, layer, offset, count, values);
}

status starpullm_session_save_checkpoint(starpullm_session *session, const char *path)
{
    CHECK_POINTER(session);
    CHECK_POINTER(path);
    return session_save_checkpoint(session, path);
}

status starpullm_training_state_info(const char *path, struct starpullm_training_state_info *info)
{
    CHECK_POINTER(path);
    CHECK_STRUCT(info);
    struct training_state *state;
    TRY(training_state_open(path, &state));
    const struct training_state_meta *meta = training_state_meta(state);
    *info = (struct starpullm_training_state_info){
        .size = sizeof *info,
        .config = meta->config,
        .step = meta->step,
        .batches = meta->batches,
        .batch_size = meta->batch_size,
        .seq_len = meta->seq_len,
        .seed = meta->seed,
        .data_id = meta->data_id,
        .ranks = meta->num_ranks,
        .learning_rate = meta->learning_rate,
        .beta1 = meta->beta1,
        .beta2 = meta->beta2,
        .eps = meta->eps,
        .weight_decay = meta->weight_decay,
        .blas = meta->blas,
    };
    const int length = snprintf(info->path, sizeof info->path, "%s", training_state_path(state));
    snprintf(info->passed_over, sizeof info->passed_over, "%s", training_state_passed_over(state));
    training_state_close(state);
    if (length >= (int)sizeof info->path)
        return fail(STARPULLM_INVALID_ARGUMENT, "path: found %d characters, expected at most %zu", length,
                    sizeof info->path - 1);
    return STARPULLM_OK;
}

status starpullm_session_save_state(starpullm_session *session, const struct starpullm_save_options *options)
{
    CHECK_POINTER(session);
    CHECK_STRUCT(options);
    CHECK_POINTER(options->directory);
    return session_save_state(session, options);
}

status starpullm_session_wait_saved(starpullm_session *session)
{
    CHECK_POINTER(session);
    return session_wait_saved(session);
}

const char *starpullm_operation_name(int32_t index)
{
    return operation_name(index);
}

status starpullm_session_trace_size(starpullm_session *session, size_t *tasks, size_t *accesses)
{
    CHECK_POINTER(session);
    CHECK_POINTER(tasks);
    CHECK_POINTER(accesses);
    struct recorder *recorder;
    TRY(session_recorder(session, &recorder));
    *tasks = recorder_tasks(recorder);
    *accesses = recorder_accesses(recorder);
    return STARPULLM_OK;
}

status starpullm_session_trace_read(starpullm_session *session, struct starpullm_trace_task *tasks, size_t num_tasks,
                                    struct starpullm_trace_access *accesses, size_t num_accesses)
{
    CHECK_POINTER(session);
    CHECK_POINTER(tasks);
    CHECK_POINTER(accesses);
    struct recorder *recorder;
    TRY(session_recorder(session, &recorder));
    if (num_tasks != recorder_tasks(recorder) || num_accesses != recorder_accesses(recorder))
        return fail(STARPULLM_INVALID_ARGUMENT, "trace: room for %zu tasks and %zu accesses, expected %zu and %zu",
                    num_tasks, num_accesses, recorder_tasks(recorder), recorder_accesses(recorder));
    recorder_copy(recorder, tasks, accesses);
    return STARPULLM_OK;
}

status starpullm_session_trace_clear(starpullm_session *session)
{
    CHECK_POINTER(session);
    return session_clear_trace(session);
}

int32_t starpullm_session_handle_count(const starpullm_session *session)
{
    return session ? session_handle_count(session) : 0;
}

status starpullm_session_handle_info(const starpullm_session *session, int32_t index,
                                     struct starpullm_handle_info *info)
{
    CHECK_POINTER(session);
    CHECK_STRUCT(info);
    return session_handle_info(session, index, info);
}

status starpullm_session_hold(starpullm_session *session)
{
    CHECK_POINTER(session);
    return session_hold(session);
}

status starpullm_session_release(starpullm_session *session, size_t *num_edges)
{
    CHECK_POINTER(session);
    CHECK_POINTER(num_edges);
    return session_release(session, num_edges);
}

status starpullm_session_runtime_edges(starpullm_session *session, int64_t *edges, size_t num_edges)
{
    CHECK_POINTER(session);
    CHECK_POINTER(edges);
    return session_copy_edges(session, edges, num_edges);
}

status starpullm_session_findings_size(starpullm_session *session, size_t *count)
{
    CHECK_POINTER(session);
    CHECK_POINTER(count);
    struct instrument *instrument;
    TRY(session_instrument(session, &instrument));
    return instrument_findings(instrument, count);
}

status starpullm_session_findings_read(starpullm_session *session, struct starpullm_finding *findings, size_t count)
{
    CHECK_POINTER(session);
    CHECK_POINTER(findings);
    struct instrument *instrument;
    size_t found;
    TRY(session_instrument(session, &instrument));
    TRY(instrument_findings(instrument, &found));
    if (count != found)
        return fail(STARPULLM_INVALID_ARGUMENT, "findings: room for %zu, expected %zu", count, found);
    instrument_copy(instrument, findings);
    return STARPULLM_OK;
}
