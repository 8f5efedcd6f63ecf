/* Tests of status.c, model/tensors.c and io/: runs all parts. ctest passes the folder to work under. */
#include <pthread.h>

#include "files.h"
#include "io/file.h"
#include "model/tensors.h"

/* ---- status.c ---- */

static void *fail_in_thread(void *unused)
{
    (void)unused;
    bool empty = starpullm_last_error()[0] == '\0' && starpullm_last_error_number() == 0;
    fail_errno(STARPULLM_FILE_ERROR, ENOSPC, "another thread");
    return empty ? &failures : NULL;
}

static void test_status(void)
{
    CHECK(strcmp(starpullm_last_error(), "") == 0 && starpullm_last_error_number() == 0);
    CHECK(fail(STARPULLM_INVALID_TOKEN, "byte %d of %s", 7, "a file") == STARPULLM_INVALID_TOKEN);
    CHECK(strcmp(starpullm_last_error(), "byte 7 of a file") == 0 && starpullm_last_error_number() == 0);
    CHECK(fail_errno(STARPULLM_FILE_ERROR, ENOENT, "%s: open", "a") == STARPULLM_FILE_ERROR);
    CHECK(strcmp(starpullm_last_error(), "a: open: No such file or directory") == 0 &&
          starpullm_last_error_number() == ENOENT);

    fail(STARPULLM_INVALID_FILE, "b: %s", starpullm_last_error());
    CHECK(strcmp(starpullm_last_error(), "b: a: open: No such file or directory") == 0 &&
          starpullm_last_error_number() == 0);

    char *longest = must(malloc(100001));
    memset(longest, 'x', 100000);
    longest[100000] = '\0';
    fail(STARPULLM_INVALID_ARGUMENT, "%s", longest);
    CHECK(strlen(starpullm_last_error()) > 8000 &&
          strcmp(starpullm_last_error() + strlen(starpullm_last_error()) - 4, "x...") == 0);
    fail_errno(STARPULLM_FILE_ERROR, ENOENT, "%s", longest);
    CHECK(strstr(starpullm_last_error(), "x...: No such file or directory") != NULL);
    free(longest);

    pthread_t thread;
    void *was_empty = NULL;
    fail(STARPULLM_INVALID_ARGUMENT, "this thread");
    CHECK(pthread_create(&thread, NULL, fail_in_thread, NULL) == 0 && pthread_join(thread, &was_empty) == 0);
    CHECK(was_empty != NULL);
    CHECK(strcmp(starpullm_last_error(), "this thread") == 0 && starpullm_last_error_number() == 0);
}

/* ---- model/tensors.c ---- */

const model_config tiny = {
    .max_seq_len = 3, .vocab_size = 5, .num_layers = 2, .num_heads = 2, .channels = 4, .padded_vocab_size = 6};

static bool has_shape(struct tensor_shape shape, int num_dims, const int64_t *dims)
{
    return shape.num_dims == num_dims && memcmp(shape.dims, dims, (size_t)num_dims * sizeof dims[0]) == 0;
}

static void test_tensors(void)
{
    /* docs/formats.md with L = 2, C = 4, maxT = 3, Vp = 6 */
    static const struct {
        const char *name;
        int instances, num_dims;
        int64_t dims[2];
    } parameters[] = {
        {"wte", 1, 2, {6, 4}},      {"wpe", 1, 2, {3, 4}},  {"ln1w", 2, 1, {4}},        {"ln1b", 2, 1, {4}},
        {"qkvw", 2, 2, {12, 4}},    {"qkvb", 2, 1, {12}},   {"attprojw", 2, 2, {4, 4}}, {"attprojb", 2, 1, {4}},
        {"ln2w", 2, 1, {4}},        {"ln2b", 2, 1, {4}},    {"fcw", 2, 2, {16, 4}},     {"fcb", 2, 1, {16}},
        {"fcprojw", 2, 2, {4, 16}}, {"fcprojb", 2, 1, {4}}, {"lnfw", 1, 1, {4}},        {"lnfb", 1, 1, {4}},
    };
    int64_t offset = 0;
    CHECK(NUM_PARAMETERS == sizeof parameters / sizeof parameters[0]);
    for (enum parameter p = 0; p < NUM_PARAMETERS; p++) {
        CHECK(strcmp(parameter_name(p), parameters[p].name) == 0);
        CHECK(parameter_layered(p) == (parameters[p].instances == 2));
        CHECK(parameter_instances(&tiny, p) == parameters[p].instances);
        CHECK(has_shape(parameter_shape(&tiny, p), parameters[p].num_dims, parameters[p].dims));
        int64_t elements = parameters[p].dims[0] * (parameters[p].num_dims == 2 ? parameters[p].dims[1] : 1);
        CHECK(tensor_elements(parameter_shape(&tiny, p)) == elements);
        for (int layer = 0; layer < parameters[p].instances; layer++, offset += elements)
            CHECK(parameter_offset(&tiny, p, layer) == offset);
    }
    CHECK(parameter_offset(&tiny, NUM_PARAMETERS, 0) == offset);

    /* llm.c with B = 7, T = 2, NH = 2 */
    static const struct {
        const char *name;
        int instances, num_dims;
        int64_t dims[4];
    } activations[] = {
        {"encoded", 1, 3, {7, 2, 4}},   {"ln1", 2, 3, {7, 2, 4}},       {"ln1_mean", 2, 2, {7, 2}},
        {"ln1_rstd", 2, 2, {7, 2}},     {"qkv", 2, 3, {7, 2, 12}},      {"atty", 2, 3, {7, 2, 4}},
        {"preatt", 2, 4, {7, 2, 2, 2}}, {"att", 2, 4, {7, 2, 2, 2}},    {"attproj", 2, 3, {7, 2, 4}},
        {"residual2", 2, 3, {7, 2, 4}}, {"ln2", 2, 3, {7, 2, 4}},       {"ln2_mean", 2, 2, {7, 2}},
        {"ln2_rstd", 2, 2, {7, 2}},     {"fch", 2, 3, {7, 2, 16}},      {"fch_gelu", 2, 3, {7, 2, 16}},
        {"fcproj", 2, 3, {7, 2, 4}},    {"residual3", 2, 3, {7, 2, 4}}, {"lnf", 1, 3, {7, 2, 4}},
        {"lnf_mean", 1, 2, {7, 2}},     {"lnf_rstd", 1, 2, {7, 2}},     {"logits", 1, 3, {7, 2, 6}},
        {"probs", 1, 3, {7, 2, 6}},     {"losses", 1, 2, {7, 2}},
    };
    CHECK(NUM_ACTIVATIONS == sizeof activations / sizeof activations[0]);
    for (enum activation a = 0; a < NUM_ACTIVATIONS; a++) {
        CHECK(strcmp(activation_name(a), activations[a].name) == 0);
        CHECK(activation_layered(a) == (activations[a].instances == 2));
        CHECK(activation_instances(&tiny, a) == activations[a].instances);
        CHECK(has_shape(activation_shape(&tiny, a, 7, 2), activations[a].num_dims, activations[a].dims));
    }
    model_config gpt2 = {1024, 50257, 12, 12, 768, 50304};
    CHECK(parameter_offset(&gpt2, NUM_PARAMETERS, 0) == 124475904);

    WORKS(model_config_check(&tiny, "tiny"));
    WORKS(model_config_check(&gpt2, "gpt2"));
    WORKS(activations_check(&gpt2, 4, 1024));
    REFUSED(activations_check(&tiny, INT64_MAX, 1), STARPULLM_INVALID_ARGUMENT, "batch_size 9223372036854775807",
            "expected at most 9223372036854775807 bytes");
    /* Each tensor fits; their sum doesn't. */
    REFUSED(activations_check(&tiny, (INT64_C(1) << 61) / 16, 1), STARPULLM_INVALID_ARGUMENT, "too large");
    REFUSED(activations_check(&tiny, 1, INT64_C(1) << 30), STARPULLM_INVALID_ARGUMENT, "seq_len 1073741824");
}

/* Models whose checkpoints have 2^63 - 8 bytes and, by the header alone, 2^63. */
static void test_largest_model(void)
{
    model_config largest = {4242571, 1, 438672, 1, 661841, 1}, too_large = {126994, 1, 296796807, 1, 25444, 1};
    WORKS(model_config_check(&largest, "largest"));
    CHECK(1024 + 4 * parameter_offset(&largest, NUM_PARAMETERS, 0) == INT64_MAX - 7);
    CHECK(parameter_offset(&too_large, NUM_PARAMETERS, 0) == (INT64_C(1) << 61) - 256);
    REFUSED(model_config_check(&too_large, "too_large"), STARPULLM_INVALID_ARGUMENT, "too_large: a checkpoint with",
            "num_layers 296796807", "expected at most 9223372036854775807 bytes");
}

static void run(void)
{
    test_status();
    test_tensors();
    test_largest_model();
    make_special_files();
    test_checkpoint_read();
    test_checkpoint_header();
    test_checkpoint_reading_fails();
    test_checkpoint_write();
    test_checkpoint_writing_fails();
    test_permissions();
    test_damaged_files();
}

int main(int argc, char **argv)
{
    return run_tests(argc, argv, "test_files", run);
}
