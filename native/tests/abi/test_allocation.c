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

#include "../../preload/allocations.h"
#include "starpullm_checks.h"

enum { MAX_T = 4, V = 7, L = 1, NH = 1, C = 4, VP = 8, B = 2, T = 4, STEPS = 2, TIME_LIMIT = 100 };
enum { NUM_PARAMETERS = VP * C + MAX_T * C + L * (12 * C * C + 13 * C) + 2 * C };

/* Which allocation fails: the number-th of a place in the library. */
static struct {
    const char *function;
    uint64_t offset;
    size_t number; /* 0: none fails */
} failing;

static int failures;
static const char *phase;

static void failed(int line, const char *what)
{
    printf("test_allocation.c:%d: %s, allocation %zu of %s+0x%llx: %s; last error: %s\n", line, phase, failing.number,
           failing.function ? failing.function : "", (unsigned long long)failing.offset, what, starpullm_last_error());
    failures++;
}

#define EXPECT(condition) ((condition) ? (void)0 : failed(__LINE__, "expected " #condition))

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

/* Whether the allocation has failed; if not, it won't any more. */
static bool has_failed(void)
{
    return failing.number > 0 && starpullm_allocations_not_reached() == 0;
}

/* False if the call has failed, which only an allocation may be the reason for. */
static bool succeeded(int code, const char *call)
{
    if (code == STARPULLM_OK)
        return true;
    if (code != STARPULLM_OUT_OF_MEMORY || !has_failed() || !starpullm_last_error()[0])
        failed(__LINE__, call);
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
        if (entry->d_name[0] != '.' && strncmp(entry->d_name, "step-", 5) != 0)
            failed(__LINE__, entry->d_name);
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

/* ---- The library's allocations, by the place of the call ---- */

enum { MAX_PLACES = 1000 };

/* The places in the library that have allocated since the start, whichever thread it was. */
static size_t list_places(struct starpullm_allocation_site places[MAX_PLACES])
{
    static struct starpullm_allocation_site sites[1 << 14];
    const size_t number = starpullm_allocations_sites(sites, sizeof sites / sizeof *sites);
    size_t found = 0;
    for (size_t i = 0; i < number && found < MAX_PLACES; i++) {
        if (!sites[i].module || !strstr(sites[i].module, "/libstarpullm."))
            continue;
        size_t place = 0;
        while (place < found && places[place].caller != sites[i].caller)
            place++;
        if (place == found)
            places[found++] = sites[i];
        else
            places[place].live += sites[i].live;
    }
    return found;
}

/* StarPU frees a task's argument a moment after the task has counted as done. */
static bool is_all_freed(void)
{
    static struct starpullm_allocation_site places[MAX_PLACES];
    uint64_t live = 1;
    for (int i = 0; i < 2000 && live > 0; i++) {
        const size_t number = list_places(places);
        live = 0;
        for (size_t p = 0; p < number; p++)
            live += places[p].live;
        if (live > 0)
            usleep(1000);
    }
    return live == 0;
}

typedef void (*attempt)(const void *argument);

/* Calls the attempt, which checks its outcome, once for each allocation that it makes in the library: that one fails.
 */
static void fail_each(const char *name, attempt attempt, const void *argument)
{
    static struct starpullm_allocation_site places[MAX_PLACES];
    size_t allocations = 0;
    phase = name;
    starpullm_allocations_start();
    attempt(argument);
    starpullm_allocations_stop();
    const size_t number = list_places(places);
    for (size_t p = 0; p < number && failures < 20; p++) {
        bool reached = true;
        failing.function = places[p].function;
        failing.offset = places[p].offset;
        for (failing.number = 1; reached && failures < 20; failing.number++) {
            starpullm_allocations_start();
            starpullm_allocations_refuse(places[p].caller, failing.number);
            attempt(argument);
            reached = has_failed();
            starpullm_allocations_stop();
            allocations += reached;
        }
        EXPECT(failing.number > 2); /* the first was reached */
    }
    failing.number = 0;
    EXPECT(allocations > 0); /* else the library was not found among the callers */
    printf("%s: %zu allocations\n", name, allocations);
}

/* ---- What is attempted ---- */

struct training {
    scenario run;
    starpullm_runtime *runtime;
    const struct files *files;
    struct results expected;
};

static void attempt_training(const void *argument)
{
    const struct training *training = argument;
    struct results found;
    memset(&found, 0, sizeof found);
    const bool complete = training->run(training->runtime, training->files, &found);
    check_files(training->files);
    EXPECT(complete ? memcmp(&found, &training->expected, sizeof found) == 0 : has_failed());
    EXPECT(is_all_freed());
}

static void check(const char *name, scenario run, starpullm_runtime *runtime, const struct files *files)
{
    struct training training = {run, runtime, files, {0}};
    phase = name;
    (void)run(runtime, files, &training.expected); /* workers' memory for kernels stays */
    memset(&training.expected, 0, sizeof training.expected);
    EXPECT(run(runtime, files, &training.expected));
    usleep(100000);
    fail_each(name, attempt_training, &training);
}

static starpullm_runtime *start(void)
{
    /* One worker, as the audit needs it. */
    const struct starpullm_runtime_options options = {sizeof options, 1, 1, "lws", NULL, NULL};
    starpullm_runtime *runtime = NULL;
    return succeeded(starpullm_runtime_create(&options, &runtime), "starpullm_runtime_create") ? runtime : NULL;
}

static void attempt_start(const void *unused)
{
    (void)unused;
    starpullm_runtime *runtime = start();
    if (runtime)
        EXPECT(starpullm_runtime_destroy(runtime) == STARPULLM_OK);
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
    attempt_start(NULL);
    fail_each("runtime", attempt_start, NULL);
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
