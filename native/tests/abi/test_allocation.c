/* Every allocation that the library makes fails once. The call in which it fails either returns
 * STARPULLM_OUT_OF_MEMORY with a sentence, or does without and has the same result; then everything can be destroyed,
 * nothing is left allocated or half written, and another session has the same bits. Run by ctest, with a folder for its
 * files as its argument. */
#include <dirent.h>
#include <ftw.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "allocations.h"
#include "starpullm.h"

enum { MAX_T = 4, V = 7, L = 1, NH = 1, C = 4, VP = 8, B = 2, T = 4, STEPS = 2, TIME_LIMIT = 100 };
enum { NUM_PARAMETERS = VP * C + MAX_T * C + L * (12 * C * C + 13 * C) + 2 * C };

static int failures;
static const char *phase;

#define EXPECT(condition)                                                                                        \
    do {                                                                                                         \
        if (!(condition)) {                                                                                      \
            printf("%s:%d: %s, allocation %ld, by %s: expected %s; last error: %s\n", __FILE__, __LINE__, phase, \
                   allocations_failing(), allocations_failed_in(), #condition, starpullm_last_error());          \
            failures++;                                                                                          \
        }                                                                                                        \
    } while (0)

/* What a scenario has computed, as far as it came. */
struct results {
    bool complete;
    float losses[STEPS + 1];
    float parameters[NUM_PARAMETERS];
    size_t edges, tasks;
};

struct files {
    char checkpoint[4096], saved[4096], states[4096], later_states[4200];
};

/* False if the call has failed, which only an allocation may be the reason for. */
static bool succeeded(int code, const char *call)
{
    if (code == STARPULLM_OK)
        return true;
    if (code != STARPULLM_OUT_OF_MEMORY || !allocations_have_failed() || !starpullm_last_error()[0]) {
        printf("%s, allocation %ld, by %s: %s returned %d: %s\n", phase, allocations_failing(), allocations_failed_in(),
               call, code, starpullm_last_error());
        failures++;
    }
    return false;
}

#define TRY(call)                    \
    do {                             \
        if (!succeeded(call, #call)) \
            return false;            \
    } while (0)

static void write_checkpoint(const char *path)
{
    const int32_t header[256] = {20240326, 3, MAX_T, V, L, NH, C, VP};
    FILE *file = fopen(path, "wb");
    EXPECT(file && fwrite(header, sizeof header, 1, file) == 1);
    for (int i = 0; file && i < NUM_PARAMETERS; i++) {
        const float value = (float)((i * 37) % 101 - 50) / 512;
        EXPECT(fwrite(&value, sizeof value, 1, file) == 1);
    }
    EXPECT(file && fclose(file) == 0);
}

static struct starpullm_session_options session_options(void)
{
    return (struct starpullm_session_options){.size = sizeof(struct starpullm_session_options),
                                              .batch_size = B,
                                              .seq_len = T,
                                              .sub_batches = 1,
                                              .learning_rate = 1e-2f,
                                              .beta1 = 0.9f,
                                              .beta2 = 0.999f,
                                              .eps = 1e-8f,
                                              .steps_in_flight = 1};
}

static bool submit(starpullm_session *session, int step, bool update, float *value)
{
    int32_t inputs[B * T], targets[B * T];
    for (int n = 0; n < B * T; n++) {
        inputs[n] = (n * 3 + step) % V;
        targets[n] = (n * 3 + step + 3) % V;
    }
    starpullm_loss *loss = NULL;
    TRY(update ? starpullm_session_submit_step(session, inputs, targets, NULL, &loss)
               : starpullm_session_submit_evaluation(session, inputs, targets, &loss));
    const bool known = succeeded(starpullm_loss_wait(loss, value), "starpullm_loss_wait");
    starpullm_loss_destroy(loss);
    return known;
}

static bool read_parameters(starpullm_session *session, float *next)
{
    for (int32_t index = 0; index < starpullm_tensor_count(STARPULLM_PARAMS); index++) {
        struct starpullm_tensor_info info = {.size = sizeof info};
        TRY(starpullm_session_tensor_info(session, STARPULLM_PARAMS, index, &info));
        int64_t elements = 1;
        for (int d = 0; d < info.num_dims; d++)
            elements *= info.dims[d];
        for (int32_t layer = 0; layer < info.instances; layer++, next += elements)
            TRY(starpullm_session_read_tensor(session, STARPULLM_PARAMS, index, layer, 0, elements, next));
    }
    return true;
}

/* Trains, saves a state between two steps, then a checkpoint. */
static bool train(starpullm_session *session, const char *states, const char *saved, struct results *results)
{
    TRY(starpullm_session_wait(session));
    if (!submit(session, 0, true, &results->losses[0]))
        return false;
    const struct starpullm_save_options save = {
        .size = sizeof save, .directory = states, .keep = 1, .batches = 1, .run = 1};
    TRY(starpullm_session_save_state(session, &save));
    if (!submit(session, 1, true, &results->losses[1]))
        return false;
    TRY(starpullm_session_wait_saved(session));
    TRY(starpullm_session_save_checkpoint(session, saved));
    return read_parameters(session, results->parameters);
}

/* Holds the tasks of a step back to ask for their edges, and reads the trace. */
static bool observe(starpullm_session *session, struct results *results)
{
    int32_t inputs[B * T] = {0};
    size_t accesses;
    TRY(starpullm_session_hold(session));
    TRY(starpullm_session_submit_forward(session, inputs));
    TRY(starpullm_session_release(session, &results->edges));
    TRY(starpullm_session_trace_size(session, &results->tasks, &accesses));
    TRY(starpullm_session_trace_clear(session));
    return submit(session, 2, false, &results->losses[STEPS]);
}

typedef bool (*scenario)(starpullm_runtime *runtime, const struct files *files, struct results *results);

static bool run_session(starpullm_runtime *runtime, const struct starpullm_session_options *options,
                        const struct files *files, struct results *results)
{
    starpullm_session *session = NULL;
    TRY(starpullm_session_create(runtime, options, &session));
    const char *states = options->resume ? files->later_states : files->states;
    results->complete = options->trace ? observe(session, results) : train(session, states, files->saved, results);
    starpullm_session_destroy(session);
    return results->complete;
}

static bool trained(starpullm_runtime *runtime, const struct files *files, struct results *results)
{
    struct starpullm_session_options options = session_options();
    options.checkpoint = files->checkpoint;
    return run_session(runtime, &options, files, results);
}

static bool resumed(starpullm_runtime *runtime, const struct files *files, struct results *results)
{
    struct starpullm_session_options options = session_options();
    options.resume = files->states;
    options.reduction = STARPULLM_REDUCTION_TREE;
    options.sub_batches = 2;
    return run_session(runtime, &options, files, results);
}

static bool observed(starpullm_runtime *runtime, const struct files *files, struct results *results)
{
    struct starpullm_session_options options = session_options();
    options.checkpoint = files->checkpoint;
    options.trace = 1;
    options.instruments = STARPULLM_DELAY;
    return run_session(runtime, &options, files, results);
}

/* Audited: one worker, and findings none of which is expected. */
static bool audited(starpullm_runtime *runtime, const struct files *files, struct results *results)
{
    struct starpullm_session_options options = session_options();
    options.checkpoint = files->checkpoint;
    options.trace = 1;
    options.instruments = STARPULLM_AUDIT;
    (void)results;
    starpullm_session *session = NULL;
    TRY(starpullm_session_create(runtime, &options, &session));
    float loss;
    size_t findings = 0;
    results->complete = submit(session, 0, true, &loss) &&
                        succeeded(starpullm_session_findings_size(session, &findings), "findings_size");
    EXPECT(findings == 0);
    starpullm_session_destroy(session);
    return results->complete;
}

static void check_states(const char *path)
{
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder && (entry = readdir(folder));)
        if (entry->d_name[0] != '.' && strncmp(entry->d_name, "step-", 5) != 0) {
            printf("%s, allocation %ld: %s was left\n", phase, allocations_failing(), entry->d_name);
            failures++;
        }
    if (folder)
        closedir(folder);
}

/* Only whole files may be there: states, the lock, and a checkpoint of the right size. */
static void check_files(const struct files *files)
{
    struct stat saved;
    if (stat(files->saved, &saved) == 0)
        EXPECT(saved.st_size == (off_t)(1024 + sizeof(float) * NUM_PARAMETERS));
    check_states(files->states);
    check_states(files->later_states);
}

/* StarPU frees a task's argument a moment after the task has counted as done. */
static bool comes_down_to(size_t live)
{
    for (int i = 0; i < 2000 && allocations_live() != live; i++)
        usleep(1000);
    return allocations_live() == live;
}

static void check(const char *name, scenario run, starpullm_runtime *runtime, const struct files *files)
{
    phase = name;
    struct results expected = {0}, found;
    (void)run(runtime, files, &expected); /* workers' memory for kernels stays */
    memset(&expected, 0, sizeof expected);
    EXPECT(run(runtime, files, &expected));
    usleep(100000);
    const size_t live = allocations_live();
    for (long n = 1;; n++) {
        allocations_fail(n);
        memset(&found, 0, sizeof found);
        const bool complete = run(runtime, files, &found);
        const bool failed = allocations_have_failed();
        check_files(files);
        EXPECT(!complete || memcmp(&found, &expected, sizeof found) == 0);
        EXPECT(comes_down_to(live));
        allocations_fail(0);
        if (!failed || failures > 20) {
            EXPECT(n > 1); /* else the library was not found among the callers */
            printf("%s: %ld allocations\n", name, n - 1);
            return;
        }
    }
}

/* Start and stop of StarPU; one worker, as the audit needs it. */
static starpullm_runtime *start(void)
{
    phase = "runtime";
    const struct starpullm_runtime_options options = {sizeof options, 1, 1, "lws", NULL, NULL};
    for (long n = 1;; n++) {
        starpullm_runtime *runtime = NULL;
        allocations_fail(n);
        const int code = starpullm_runtime_create(&options, &runtime);
        const bool failed = allocations_have_failed();
        EXPECT(code == STARPULLM_OK || (failed && code == STARPULLM_OUT_OF_MEMORY && starpullm_last_error()[0]));
        allocations_fail(0);
        if (!failed || failures > 0)
            return runtime;
        if (code == STARPULLM_OK)
            EXPECT(starpullm_runtime_destroy(runtime) == STARPULLM_OK);
    }
}

static int remove_entry(const char *path, const struct stat *unused, int type, struct FTW *place)
{
    (void)unused;
    (void)type;
    (void)place;
    return remove(path);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return EXIT_FAILURE;
    }
    alarm(TIME_LIMIT);
    struct files files;
    phase = "files";
    snprintf(files.checkpoint, sizeof files.checkpoint, "%s/allocation-%d.bin", argv[1], (int)getpid());
    snprintf(files.saved, sizeof files.saved, "%s/allocation-%d-saved.bin", argv[1], (int)getpid());
    snprintf(files.states, sizeof files.states, "%s/allocation-%d-states", argv[1], (int)getpid());
    snprintf(files.later_states, sizeof files.later_states, "%s-later", files.states);
    write_checkpoint(files.checkpoint);
    starpullm_runtime *runtime = start();
    if (runtime) {
        check("training", trained, runtime, &files);
        check("resuming", resumed, runtime, &files);
        check("observing", observed, runtime, &files);
        check("auditing", audited, runtime, &files);
        EXPECT(starpullm_runtime_destroy(runtime) == STARPULLM_OK);
    }
    remove(files.checkpoint);
    remove(files.saved);
    nftw(files.states, remove_entry, 4, FTW_DEPTH);
    nftw(files.later_states, remove_entry, 4, FTW_DEPTH);
    return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
