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
    enum { FILES = 4000 };
    struct bytes original = make_checkpoint(&tiny);
    int accepted = 0;
    for (int i = 0; i < FILES; i++) {
        struct bytes bytes = damaged(&original);
        save("damaged.bin", &bytes);
        free(bytes.data);
        model_config config;
        status result = checkpoint_config("damaged.bin", &config);
        if (result == STARPULLM_OK)
            result = read_checkpoint("damaged.bin", &config);
        accepted += result == STARPULLM_OK;
        check_at(__FILE__, __LINE__, result == STARPULLM_OK || result == STARPULLM_INVALID_FILE,
                 "a damaged file is read or refused for its content");
    }
    CHECK(accepted > FILES / 50 && accepted < FILES);
    free(original.data);
}
