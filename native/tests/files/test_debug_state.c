/* Tests of reading llm.c's debug state. */
#include "files.h"

enum { STATE_B = 2, STATE_T = 3, STATE_N = STATE_B * STATE_T };

/* For tiny: tokens n % V, then each float its index in its section, and loss 5.25. */
struct bytes make_debug_state(void)
{
    struct bytes bytes = {0};
    put_header(&bytes, (int32_t[]){20240327, 2, STATE_B, STATE_T}, 4);
    for (int i = 0; i < 2 * STATE_N; i++)
        put_int(&bytes, i % tiny.vocab_size);
    for (int i = 0; i < STATE_N * tiny.vocab_size; i++)
        put_float(&bytes, (float)i);
    put_float(&bytes, 5.25f);
    for (int i = 0; i < TINY_PARAMETERS; i++)
        put_float(&bytes, (float)-i);
    return bytes;
}

status read_state(const model_config *config)
{
    int64_t batch_size = -1, seq_len = -1;
    status result = starpullm_debug_state_size("state.bin", config, &batch_size, &seq_len);
    CHECK((batch_size > 0) == (result == STARPULLM_OK) && (seq_len > 0) == (result == STARPULLM_OK));
    if (result != STARPULLM_OK) {
        char sentence[512];
        snprintf(sentence, sizeof sentence, "%s", last_error());
        CHECK(starpullm_debug_state_read("state.bin", config, NULL, NULL, NULL, NULL, NULL) == result);
        CHECK(strcmp(sentence, last_error()) == 0);
        return result;
    }
    size_t N = (size_t)(batch_size * seq_len), total = (size_t)parameters_total(config);
    int32_t *inputs = must(malloc(N * sizeof inputs[0])), *targets = must(malloc(N * sizeof targets[0]));
    float *logits = must(malloc(N * (size_t)config->vocab_size * sizeof logits[0]));
    float *grads = must(malloc(total * sizeof grads[0])), loss = 0;
    result = starpullm_debug_state_read("state.bin", config, inputs, targets, logits, &loss, grads);
    free(inputs);
    free(targets);
    free(logits);
    free(grads);
    return result;
}

void test_debug_state(void)
{
    struct bytes bytes = make_debug_state();
    save("state.bin", &bytes);
    CHECK(parameters_total(&tiny) == TINY_PARAMETERS);
    WORKS(read_state(&tiny));

    int64_t batch_size, seq_len;
    int32_t inputs[STATE_N], targets[STATE_N];
    float logits[STATE_N * 5], loss, grads[TINY_PARAMETERS];
    WORKS(starpullm_debug_state_size("state.bin", &tiny, &batch_size, &seq_len));
    CHECK(batch_size == STATE_B && seq_len == STATE_T);
    WORKS(starpullm_debug_state_read("state.bin", &tiny, inputs, NULL, NULL, NULL, NULL));
    WORKS(starpullm_debug_state_read("state.bin", &tiny, NULL, targets, NULL, NULL, NULL));
    WORKS(starpullm_debug_state_read("state.bin", &tiny, NULL, NULL, logits, NULL, NULL));
    WORKS(starpullm_debug_state_read("state.bin", &tiny, NULL, NULL, NULL, &loss, NULL));
    faults.most = 3, faults.interrupt_every = 2;
    WORKS(starpullm_debug_state_read("state.bin", &tiny, NULL, NULL, NULL, NULL, grads));
    no_faults();
    bool same = loss == 5.25f;
    for (int i = 0; i < STATE_N; i++)
        same &= inputs[i] == i % 5 && targets[i] == (i + STATE_N) % 5;
    for (int i = 0; i < STATE_N * 5; i++)
        same &= logits[i] == (float)i;
    for (int i = 0; i < TINY_PARAMETERS; i++)
        same &= grads[i] == (float)-i;
    CHECK(same);

    REFUSED(starpullm_debug_state_size(NULL, &tiny, &batch_size, &seq_len), STARPULLM_INVALID_ARGUMENT, "path is NULL");
    REFUSED(starpullm_debug_state_size("state.bin", NULL, &batch_size, &seq_len), STARPULLM_INVALID_ARGUMENT,
            "config is NULL");
    REFUSED(starpullm_debug_state_size("state.bin", &tiny, NULL, &seq_len), STARPULLM_INVALID_ARGUMENT,
            "batch_size is NULL");
    REFUSED(starpullm_debug_state_size("state.bin", &tiny, &batch_size, NULL), STARPULLM_INVALID_ARGUMENT,
            "seq_len is NULL");
    REFUSED(starpullm_debug_state_read("fifo", &tiny, NULL, NULL, NULL, NULL, NULL), STARPULLM_INVALID_FILE,
            "fifo: is a FIFO");
    REFUSED(starpullm_debug_state_read("nothing.bin", &tiny, NULL, NULL, NULL, NULL, NULL), STARPULLM_FILE_ERROR,
            "nothing.bin: open: No such file or directory");
    model_config wrong = tiny;
    wrong.channels = 0;
    REFUSED(read_state(&wrong), STARPULLM_INVALID_ARGUMENT, "config: channels is 0", "expected at least 1");

    size_t right = bytes.size;
    put(&bytes, 0, 5);
    for (size_t size = 0; size <= bytes.size; size++) {
        if (size == right)
            continue;
        char found[64], expected[64];
        save_part("state.bin", &bytes, size);
        snprintf(found, sizeof found, "state.bin: the file is %zu bytes", size);
        snprintf(expected, sizeof expected, size < 1024 ? "expected at least 1024" : "expected %zu ", right);
        REFUSED(read_state(&tiny), STARPULLM_INVALID_FILE, found, expected,
                size > right ? "too long by" : "are missing");
    }
    free(bytes.data);

    const struct {
        size_t index;
        int32_t value;
        status code;
        const char *parts[2];
    } refusals[] = {
        {0, 20240326, STARPULLM_INVALID_FILE, {"byte 0: magic number is 20240326 (a model", "expected 20240327 (a d"}},
        {1, 1, STARPULLM_INVALID_FILE, {"byte 4: version is 1", "expected 2"}},
        {1, 3, STARPULLM_INVALID_FILE, {"byte 4: version is 3", "expected 2"}},
        {2, 0, STARPULLM_INVALID_FILE, {"byte 8: batch size is 0", "expected at least 1"}},
        {2, -2, STARPULLM_INVALID_FILE, {"byte 8: batch size is -2", "expected at least 1"}},
        {3, 0, STARPULLM_INVALID_FILE, {"byte 12: sequence length is 0", "expected 1 to 3"}},
        {3, -3, STARPULLM_INVALID_FILE, {"byte 12: sequence length is -3", "expected 1 to 3"}},
        {3, 4, STARPULLM_INVALID_FILE, {"byte 12: sequence length is 4", "expected 1 to 3"}},
        {3, 2, STARPULLM_INVALID_FILE, {"expected 3268 (batch size 2, sequence length 2", "too long by 56 bytes"}},
        {2, INT32_MAX, STARPULLM_INVALID_FILE, {"batch size 2147483647", "truncated"}},
        {256, -1, STARPULLM_INVALID_TOKEN, {"byte 1024: token id is -1", "expected 0 to 4"}},
        {261, 5, STARPULLM_INVALID_TOKEN, {"byte 1044: token id is 5", "expected 0 to 4"}},
        {262, 5, STARPULLM_INVALID_TOKEN, {"byte 1048: token id is 5", "expected 0 to 4"}},
        {267, INT32_MIN, STARPULLM_INVALID_TOKEN, {"byte 1068: token id is -2147483648", "expected 0 to 4"}},
    };
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        struct bytes changed = make_debug_state();
        set_int(&changed, refusals[i].index, refusals[i].value);
        save("state.bin", &changed);
        free(changed.data);
        REFUSED(read_state(&tiny), refusals[i].code, "state.bin: ", refusals[i].parts[0], refusals[i].parts[1]);
    }

    struct bytes huge = make_debug_state();
    set_int(&huge, 2, INT32_MAX);
    set_int(&huge, 3, INT32_MAX);
    save("state.bin", &huge);
    free(huge.data);
    model_config largest = {INT32_MAX, INT32_MAX, 1, 1, 1, INT32_MAX};
    REFUSED(read_state(&largest), STARPULLM_INVALID_FILE, "state.bin: bytes 8 to 15", "batch size 2147483647",
            "expected at most 9223372036854775807");
}
