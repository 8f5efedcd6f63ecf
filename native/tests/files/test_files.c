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
    fail_errno(STARPULLM_FILE_ERROR, ENOENT, "%s: open", "a");
    fail(STARPULLM_INVALID_FILE, "b: %s", starpullm_last_error());
    CHECK(strcmp(starpullm_last_error(), "b: a: open: No such file or directory") == 0 &&
          starpullm_last_error_number() == 0);

    pthread_t thread;
    void *was_empty = NULL;
    fail(STARPULLM_INVALID_ARGUMENT, "this thread");
    CHECK(pthread_create(&thread, NULL, fail_in_thread, NULL) == 0 && pthread_join(thread, &was_empty) == 0);
    CHECK(was_empty != NULL);
    CHECK(strcmp(starpullm_last_error(), "this thread") == 0 && starpullm_last_error_number() == 0);
}

const model_config tiny = {
    .max_seq_len = 3, .vocab_size = 5, .num_layers = 2, .num_heads = 2, .channels = 4, .padded_vocab_size = 6};

/* ---- model/tensors.c ---- */

/* Models whose checkpoints have 2^63 - 8 bytes and, by the header alone, 2^63. */
static void test_sizes(void)
{
    model_config largest = {4242571, 1, 438672, 1, 661841, 1}, too_large = {126994, 1, 296796807, 1, 25444, 1};
    WORKS(model_config_check(&largest, "largest"));
    CHECK(1024 + 4 * parameter_offset(&largest, NUM_PARAMETERS, 0) == INT64_MAX - 7);
    CHECK(parameter_offset(&too_large, NUM_PARAMETERS, 0) == (INT64_C(1) << 61) - 256);
    REFUSED(model_config_check(&too_large, "too_large"), STARPULLM_INVALID_ARGUMENT, "too_large: a checkpoint with",
            "num_layers 296796807", "expected at most 9223372036854775807 bytes");
    /* Each tensor fits; their sum doesn't. */
    REFUSED(activations_check(&tiny, (INT64_C(1) << 61) / 16, 1), STARPULLM_INVALID_ARGUMENT, "too large");
}

static void run(void)
{
    test_status();
    test_sizes();
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
