/* The C ABI from a C program: a whole tiny training through the shared library. Run by ctest, also
 * under the sanitizers, with a folder for its files as its argument. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "starpullm_checks.h"

enum { MAX_T = 16, V = 61, L = 2, NH = 2, C = 16, VP = 64, B = 4, T = 8, STEPS = 3 };

static int failures;

#define EXPECT(condition)                                                                                           \
    do {                                                                                                            \
        if (!(condition)) {                                                                                         \
            printf("%s:%d: expected %s; last error: %s\n", __FILE__, __LINE__, #condition, starpullm_last_error()); \
            failures++;                                                                                             \
        }                                                                                                           \
    } while (0)

#define REQUIRE(condition)      \
    do {                        \
        EXPECT(condition);      \
        if (failures)           \
            exit(EXIT_FAILURE); \
    } while (0)

static size_t num_parameters(void)
{
    return (size_t)VP * C + MAX_T * C + L * (12 * C * C + 13 * C) + 2 * C;
}

/* Small numbers from a linear congruence; the values don't matter, only that they are the same each time. */
static void write_checkpoint(const char *path)
{
    int32_t header[256] = {20240326, 3, MAX_T, V, L, NH, C, VP};
    FILE *file = fopen(path, "wb");
    REQUIRE(file != NULL);
    REQUIRE(fwrite(header, sizeof header, 1, file) == 1);
    uint32_t state = 1;
    for (size_t i = 0; i < num_parameters(); i++) {
        state = state * 1664525u + 1013904223u;
        float value = (float)(int32_t)(state >> 8) * 0x1p-26f - 0.1f;
        REQUIRE(fwrite(&value, sizeof value, 1, file) == 1);
    }
    REQUIRE(fclose(file) == 0);
}

static struct starpullm_session_options session_options(const char *checkpoint)
{
    return (struct starpullm_session_options){
        .size = sizeof(struct starpullm_session_options),
        .checkpoint = checkpoint,
        .batch_size = B,
        .seq_len = T,
        .sub_batches = 1,
        .learning_rate = 1e-3f,
        .beta1 = 0.9f,
        .beta2 = 0.999f,
        .eps = 1e-8f,
        .weight_decay = 0.01f,
        .steps_in_flight = 2,
    };
}

static void make_tokens(int step, int32_t *inputs, int32_t *targets)
{
    for (int n = 0; n < B * T; n++) {
        inputs[n] = (n * 7 + step) % V;
        targets[n] = (n * 7 + step + 7) % V;
    }
}

static starpullm_runtime *start(int workers)
{
    struct starpullm_runtime_options options = {
        .size = sizeof options, .workers = workers, .threads_per_worker = 1, .scheduler = "lws"};
    starpullm_runtime *runtime = NULL;
    REQUIRE(starpullm_runtime_create(&options, &runtime) == STARPULLM_OK);
    return runtime;
}

/* Holds the tasks of a forward pass back, and asks which of them wait for which. */
static void check_hold(starpullm_session *session, const int32_t *inputs)
{
    size_t count;
    REQUIRE(starpullm_session_hold(session) == STARPULLM_OK);
    REQUIRE(starpullm_session_submit_forward(session, inputs) == STARPULLM_OK);
    REQUIRE(starpullm_session_release(session, &count) == STARPULLM_OK);
    EXPECT(count > 0);
    int64_t *edges = calloc(count, 2 * sizeof *edges);
    REQUIRE(edges != NULL);
    EXPECT(starpullm_session_runtime_edges(session, edges, count) == STARPULLM_OK);
    for (size_t i = 0; i < count; i++)
        EXPECT(edges[2 * i] < edges[2 * i + 1]);
    free(edges);
}

/* Losses of all steps, then all parameters. */
static float *train(const char *checkpoint, const char *saved, int workers, int sub_batches, int keep, size_t *count)
{
    starpullm_runtime *runtime = start(workers);
    struct starpullm_session_options options = session_options(checkpoint);
    options.sub_batches = sub_batches;
    options.keep_activations = keep;
    options.trace = 1;
    starpullm_session *session = NULL;
    REQUIRE(starpullm_session_create(runtime, &options, &session) == STARPULLM_OK);

    *count = STEPS + num_parameters();
    float *values = malloc(*count * sizeof *values);
    REQUIRE(values != NULL);
    starpullm_loss *losses[STEPS];
    int32_t inputs[B * T], targets[B * T];
    for (int step = 0; step < STEPS; step++) {
        make_tokens(step, inputs, targets);
        REQUIRE(starpullm_session_submit_step(session, inputs, targets, NULL, &losses[step]) == STARPULLM_OK);
    }
    for (int step = 0; step < STEPS; step++) {
        REQUIRE(starpullm_loss_wait(losses[step], &values[step]) == STARPULLM_OK);
        EXPECT(starpullm_loss_ready(losses[step]));
        EXPECT(isfinite(values[step]));
        if (step > 0) /* the first outlives its session */
            starpullm_loss_destroy(&losses[step]);
    }

    float *next = values + STEPS;
    for (int32_t index = 0; index < starpullm_tensor_count(STARPULLM_PARAMS); index++) {
        struct starpullm_tensor_info info = {.size = sizeof info};
        REQUIRE(starpullm_session_tensor_info(session, STARPULLM_PARAMS, index, &info) == STARPULLM_OK);
        int64_t elements = 1;
        for (int d = 0; d < info.num_dims; d++)
            elements *= info.dims[d];
        for (int32_t layer = 0; layer < info.instances; layer++, next += elements)
            REQUIRE(starpullm_session_read_tensor(session, STARPULLM_PARAMS, index, layer, 0, elements, next) ==
                    STARPULLM_OK);
    }
    EXPECT(next == values + *count);

    struct starpullm_trace *trace = NULL;
    REQUIRE(starpullm_session_trace(session, &trace) == STARPULLM_OK);
    const struct starpullm_trace_task *tasks = trace->tasks;
    for (size_t i = 0; i < trace->num_tasks; i++) {
        EXPECT(tasks[i].id == (int64_t)i);
        EXPECT(tasks[i].submit_ns <= tasks[i].start_ns && tasks[i].start_ns <= tasks[i].end_ns);
        EXPECT(tasks[i].worker >= 0 && tasks[i].worker < workers);
        EXPECT(starpullm_operation_name(tasks[i].operation) != NULL);
    }
    starpullm_trace_destroy(&trace);
    EXPECT(starpullm_session_trace_clear(session) == STARPULLM_OK);
    check_hold(session, inputs);

    float row[C];
    int32_t encoded = 0, ln1 = 1;
    EXPECT(starpullm_session_read_tensor(session, STARPULLM_ACTIVATIONS, encoded, 0, (B * T - 1) * C, C, row) ==
           STARPULLM_OK);
    int code = starpullm_session_read_tensor(session, STARPULLM_ACTIVATION_GRADS, ln1, 0, 0, C, row);
    EXPECT(code == (keep ? STARPULLM_OK : STARPULLM_INVALID_STATE));

    EXPECT(starpullm_session_save_checkpoint(session, saved) == STARPULLM_OK);
    EXPECT(starpullm_runtime_destroy(&runtime) == STARPULLM_INVALID_STATE);
    starpullm_session_destroy(&session);
    EXPECT(starpullm_runtime_destroy(&runtime) == STARPULLM_OK);
    EXPECT(starpullm_runtime_destroy(&runtime) == STARPULLM_INVALID_STATE);

    float again;
    EXPECT(starpullm_loss_wait(losses[0], &again) == STARPULLM_OK && memcmp(&again, values, sizeof again) == 0);
    starpullm_loss_destroy(&losses[0]);
    return values;
}

static void test_training(const char *checkpoint, const char *saved)
{
    size_t count;
    float *expected = train(checkpoint, saved, 1, 1, 1, &count);
    const int configurations[][3] = {{1, 1, 0}, {2, 1, 1}, {2, 2, 0}, {2, 4, 1}, {1, 4, 0}};
    for (size_t i = 0; i < sizeof configurations / sizeof *configurations; i++) {
        const int *c = configurations[i];
        size_t found_count;
        float *found = train(checkpoint, saved, c[0], c[1], c[2], &found_count);
        if (memcmp(found, expected, count * sizeof *found) != 0) {
            printf("%dx1 with %d sub-batches: other bits than 1x1 with 1\n", c[0], c[1]);
            failures++;
        }
        free(found);
    }
    free(expected);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return EXIT_FAILURE;
    }
    char checkpoint[4096], saved[4096];
    snprintf(checkpoint, sizeof checkpoint, "%s/training-%d.bin", argv[1], (int)getpid());
    snprintf(saved, sizeof saved, "%s/training-%d-saved.bin", argv[1], (int)getpid());
    write_checkpoint(checkpoint);
    test_training(checkpoint, saved);
    remove(checkpoint);
    remove(saved);
    printf("%d expectations failed\n", failures);
    return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
