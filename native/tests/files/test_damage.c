/* Files with random damage are read or refused for their content. */
#include "files.h"

/* A few changed bytes or integers, mostly in the header, and now and then another length. */
static struct bytes damaged(const struct bytes *bytes)
{
    static const int32_t integers[] = {0, 1, 2, 3, 5, 6, 8, -1, 255, 65536, 1 << 24, INT32_MAX, INT32_MIN};
    struct bytes result = {must(malloc(bytes->size + 16)), bytes->size, bytes->size + 16};
    memcpy(result.data, bytes->data, bytes->size);
    memset(result.data + bytes->size, 0x5a, 16);
    for (uint64_t change = 0, changes = 1 + next_random(3); change < changes; change++) {
        size_t limit = next_random(2) == 0 ? 32 : result.size;
        if (next_random(2) == 0)
            result.data[next_random(limit)] = (unsigned char)next_random(256);
        else
            set_int(&result, next_random(limit / 4), integers[next_random(sizeof integers / sizeof integers[0])]);
    }
    if (next_random(8) == 0)
        result.size = next_random(bytes->size + 17);
    return result;
}

void test_damaged_files(void)
{
    enum { FILES = 4000, FORMATS = 3 };
    uint16_t ids[65];
    random_ids(ids, 65, 61);
    struct bytes originals[FORMATS] = {make_checkpoint(&tiny), make_tokens(65, ids), make_debug_state()};
    struct starpullm_tokens_options options = options_for((const char *const[]){"damaged.bin"}, 1, 2, 8);
    options.vocab_size = 61;
    int accepted[FORMATS] = {0};
    for (int i = 0; i < FILES * FORMATS; i++) {
        int format = i % FORMATS;
        struct bytes bytes = damaged(&originals[format]);
        save(format == 2 ? "state.bin" : "damaged.bin", &bytes);
        free(bytes.data);
        status result = STARPULLM_OK;
        if (format == 0) {
            model_config config;
            result = checkpoint_config("damaged.bin", &config);
            if (result == STARPULLM_OK)
                result = read_checkpoint("damaged.bin", &config);
        } else if (format == 1) {
            struct starpullm_tokens *tokens = NULL;
            int32_t inputs[16], targets[16];
            result = starpullm_tokens_open(&options, &tokens);
            for (int step = 0; result == STARPULLM_OK && step < 6; step++)
                result = starpullm_tokens_next(tokens, inputs, targets);
            starpullm_tokens_close(tokens);
        } else {
            result = read_state(&tiny);
        }
        accepted[format] += result == STARPULLM_OK;
        check_at(__FILE__, __LINE__,
                 result == STARPULLM_OK || result == STARPULLM_INVALID_FILE ||
                     (result == STARPULLM_INVALID_TOKEN && format != 0) ||
                     (result == STARPULLM_INVALID_ARGUMENT && format == 1),
                 "a damaged file is read or refused for its content");
    }
    for (int format = 0; format < FORMATS; format++) {
        CHECK(accepted[format] > FILES / 50 && accepted[format] < FILES);
        free(originals[format].data);
    }
}
