/* Tests of the token loader, against a literal one, and its refusals. */
#include "files.h"

struct bytes make_tokens(int32_t count, const uint16_t *ids)
{
    int32_t header[] = {20240520, 1, count};
    struct bytes bytes = {0};
    put_header(&bytes, header, 3);
    for (int32_t i = 0; i < count; i++)
        put(&bytes, ids[i], 2);
    return bytes;
}

void random_ids(uint16_t *ids, int count, uint16_t limit)
{
    for (int i = 0; i < count; i++)
        ids[i] = (uint16_t)next_random(limit);
}

struct starpullm_tokens_options options_for(const char *const *paths, size_t num_paths, int64_t B, int64_t T)
{
    return (struct starpullm_tokens_options){.size = sizeof(struct starpullm_tokens_options),
                                             .paths = paths,
                                             .num_paths = num_paths,
                                             .batch_size = B,
                                             .seq_len = T,
                                             .rank = 0,
                                             .num_ranks = 1,
                                             .vocab_size = 0};
}

static status try_tokens(const struct starpullm_tokens_options *options)
{
    struct starpullm_tokens *tokens = (void *)&failures;
    status result = starpullm_tokens_open(options, &tokens);
    CHECK((tokens != NULL) == (result == STARPULLM_OK));
    starpullm_tokens_close(tokens);
    return result;
}

/* llm.c's dataloader.h, without shuffling, on arrays. */
struct literal {
    const uint16_t *const *shards;
    const int *counts;
    int num_shards, current_shard, current_sample;
};

static void literal_next(struct literal *loader, int32_t *inputs, int32_t *targets, int B, int T, int rank, int ranks)
{
    int shard_num_samples = (loader->counts[loader->current_shard] * 2 - 2) / (ranks * B * T * 2);
    if (loader->current_sample >= shard_num_samples) {
        loader->current_shard = loader->current_shard == loader->num_shards - 1 ? 0 : loader->current_shard + 1;
        loader->current_sample = 0;
    }
    const uint16_t *buffer = loader->shards[loader->current_shard];
    buffer += loader->current_sample * ranks * B * T + rank * B * T;
    for (int i = 0; i < B * T; i++) {
        inputs[i] = buffer[i];
        targets[i] = buffer[i + 1];
    }
    loader->current_sample++;
}

void test_tokens_order(void)
{
    enum { SHARDS = 4, MOST = 97, STEPS = 40 };
    static const char *const paths[SHARDS] = {"a.bin", "b.bin", "c.bin", "d.bin"};
    static const int counts[SHARDS] = {50, MOST, 33, 64}; /* 33 = 2 * 16 + 1: the last step just fits */
    uint16_t ids[SHARDS][MOST];
    const uint16_t *shards[SHARDS];
    for (int s = 0; s < SHARDS; s++) {
        random_ids(ids[s], counts[s], 65535);
        ids[s][0] = 65535;
        shards[s] = ids[s];
        struct bytes bytes = make_tokens(counts[s], ids[s]);
        save(paths[s], &bytes);
        free(bytes.data);
    }
    for (int num_shards = 1; num_shards <= SHARDS; num_shards++)
        for (int ranks = 1; ranks <= 4; ranks++) {
            const int B = 2, T = 4;
            struct starpullm_tokens_options options = options_for(paths, (size_t)num_shards, B, T);
            struct starpullm_tokens *all = NULL, *of_rank[4] = {0};
            options.batch_size = ranks * B;
            WORKS(starpullm_tokens_open(&options, &all));
            options.batch_size = B;
            options.num_ranks = ranks;
            for (options.rank = 0; options.rank < ranks; options.rank++)
                WORKS(starpullm_tokens_open(&options, &of_rank[options.rank]));
            struct literal literals[4];
            for (int r = 0; r < ranks; r++)
                literals[r] = (struct literal){shards, counts, num_shards, 0, 0};

            bool same_as_literal = true, same_as_one_rank = true;
            for (int step = 0; step < STEPS; step++) {
                int32_t one[2][32], found[2][8], expected[2][8];
                if (step % 7 == 3)
                    faults.most = 5, faults.interrupt_every = 2;
                WORKS(starpullm_tokens_next(all, one[0], one[1]));
                for (int r = 0; r < ranks; r++) {
                    WORKS(starpullm_tokens_next(of_rank[r], found[0], found[1]));
                    literal_next(&literals[r], expected[0], expected[1], B, T, r, ranks);
                    same_as_literal &= memcmp(found, expected, sizeof found) == 0;
                    same_as_one_rank &= memcmp(found[0], one[0] + 8 * r, sizeof found[0]) == 0;
                    same_as_one_rank &= memcmp(found[1], one[1] + 8 * r, sizeof found[1]) == 0;
                }
                no_faults();
            }
            CHECK(same_as_literal);
            CHECK(same_as_one_rank);
            starpullm_tokens_close(all);
            for (int r = 0; r < ranks; r++)
                starpullm_tokens_close(of_rank[r]);
        }
}

void test_tokens_refused(void)
{
    uint16_t ids[65];
    random_ids(ids, 65, 61);
    struct bytes bytes = make_tokens(65, ids);
    save("a.bin", &bytes);
    static const char *const paths[] = {"a.bin", "b.bin"};
    const struct starpullm_tokens_options good = options_for(paths, 1, 4, 8);
    struct starpullm_tokens_options options = good;
    struct starpullm_tokens *tokens = NULL;
    WORKS(try_tokens(&good));

    REFUSED(starpullm_tokens_open(NULL, &tokens), STARPULLM_INVALID_ARGUMENT, "options is NULL");
    REFUSED(starpullm_tokens_open(&good, NULL), STARPULLM_INVALID_ARGUMENT, "tokens is NULL");
    starpullm_tokens_close(NULL);

    static const char *const missing[] = {"a.bin", NULL};
#define WITH(change, ...)                                                       \
    do {                                                                        \
        options = good;                                                         \
        change;                                                                 \
        REFUSED(try_tokens(&options), STARPULLM_INVALID_ARGUMENT, __VA_ARGS__); \
    } while (0)
    WITH(options.size = 8, "options->size is 8", "expected ");
    WITH(options.paths = NULL, "no token files", "expected at least 1");
    WITH(options.num_paths = 0, "no token files", "expected at least 1");
    WITH(options.paths = missing; options.num_paths = 2, "path 1 of 2 is NULL", "expected");
    WITH(options.batch_size = 0, "batch_size is 0", "expected at least 1");
    WITH(options.batch_size = -4, "batch_size is -4", "expected at least 1");
    WITH(options.batch_size = INT64_MIN, "batch_size is -9223372036854775808", "expected at least 1");
    WITH(options.seq_len = 0, "seq_len is 0", "expected at least 1");
    WITH(options.seq_len = -8, "seq_len is -8", "expected at least 1");
    WITH(options.num_ranks = 0, "num_ranks is 0", "expected at least 1");
    WITH(options.num_ranks = -1, "num_ranks is -1", "expected at least 1");
    WITH(options.rank = -1, "rank is -1", "expected 0 to 0");
    WITH(options.rank = 1, "rank is 1", "expected 0 to 0");
    WITH(options.num_ranks = 2; options.rank = 2, "rank is 2", "expected 0 to 1");
    WITH(options.vocab_size = -1, "vocab_size is -1", "expected at least 0");
    WITH(options.batch_size = INT64_MAX, "batch_size 9223372036854775807", "too large", "expected at most");
    WITH(options.seq_len = INT64_MAX / 8, "seq_len 1152921504606846975", "expected at most");
    WITH(options.num_ranks = INT32_MAX; options.batch_size = INT32_MAX, "num_ranks 2147483647", "expected at most");
    WITH(options.batch_size = INT64_MAX / 16, "a step with", "expected at most"); /* fits as tokens, not as bytes */
    /* The largest step that leaves room for the header is refused for the file's sake. */
    WITH(options.batch_size = (INT64_MAX - 1026) / 2;
         options.seq_len = 1, "a.bin: byte 8: number of tokens is 65", "expected at least 4611686018427387391 ");
    WITH(options.batch_size = 9, "a.bin: byte 8: number of tokens is 65", "expected at least 73",
         "num_ranks 1 * batch_size 9 * seq_len 8 + 1");
    WITH(options.seq_len = 17, "a.bin: byte 8: number of tokens is 65", "expected at least 69");
    WITH(options.num_ranks = 3, "number of tokens is 65", "expected at least 97", "num_ranks 3");
    options = good;
    options.num_ranks = 2; /* 2 * 4 * 8 + 1 = 65: just enough */
    WORKS(try_tokens(&options));
    options.seq_len = 16, options.num_ranks = 1;
    WORKS(try_tokens(&options));
    ids[64] = 0;
    struct bytes shorter = make_tokens(64, ids);
    save("b.bin", &shorter);
    free(shorter.data);
    WITH(options.seq_len = 16; options.num_paths = 2, "b.bin: byte 8: number of tokens is 64", "expected at least 65");
#undef WITH

    const struct {
        size_t index;
        int32_t value;
        const char *parts[2];
    } refusals[] = {
        {0, 20240326, {"byte 0: magic number is 20240326 (a model checkpoint)", "expected 20240520 (a token file)"}},
        {0, 20240801, {"byte 0: magic number is 20240801, ", "expected 20240520"}},
        {1, 0, {"byte 4: version is 0", "expected 1"}},
        {1, 2, {"byte 4: version is 2", "expected 1"}},
        {2, 0, {"byte 8: number of tokens is 0", "expected at least 1"}},
        {2, -1, {"byte 8: number of tokens is -1", "expected at least 1"}},
        {2, INT32_MIN, {"byte 8: number of tokens is -2147483648", "expected at least 1"}},
        {2, INT32_MAX, {"expected 4294968318 (number of tokens 2147483647)", "truncated, 4294967164 bytes"}},
        {2, 66, {"is 1154 bytes, expected 1156 (number of tokens 66)", "truncated, 2 bytes are missing"}},
        {2, 64, {"is 1154 bytes, expected 1152 (number of tokens 64)", "too long by 2 bytes"}},
    };
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        struct bytes changed = make_tokens(65, ids);
        set_int(&changed, refusals[i].index, refusals[i].value);
        save("b.bin", &changed);
        free(changed.data);
        options = good;
        options.num_paths = 2; /* the second shard is checked when the first is opened */
        REFUSED(try_tokens(&options), STARPULLM_INVALID_FILE, "b.bin: ", refusals[i].parts[0], refusals[i].parts[1]);
    }
    struct bytes empty = make_tokens(0, ids);
    save("a.bin", &empty);
    free(empty.data);
    REFUSED(try_tokens(&good), STARPULLM_INVALID_FILE, "a.bin: byte 8: number of tokens is 0", "expected at least 1");

    put(&bytes, 0, 3);
    for (size_t size = 0; size <= bytes.size; size++) {
        if (size == bytes.size - 3)
            continue;
        char found[64], expected[64];
        save_part("a.bin", &bytes, size);
        snprintf(found, sizeof found, "a.bin: the file is %zu bytes", size);
        snprintf(expected, sizeof expected, size < 1024 ? "expected at least 1024" : "expected 1154");
        REFUSED(try_tokens(&good), STARPULLM_INVALID_FILE, found, expected,
                size > 1154 ? "too long by" : "are missing");
    }
    alarm(20);
    static const char *const special[] = {"folder", "fifo", "nothing.bin"};
    options = good;
    options.paths = special;
    REFUSED(try_tokens(&options), STARPULLM_INVALID_FILE, "folder: is a directory", "expected a regular file");
    options.paths = special + 1;
    REFUSED(try_tokens(&options), STARPULLM_INVALID_FILE, "fifo: is a FIFO", "expected a regular file");
    options.paths = special + 2;
    REFUSED(try_tokens(&options), STARPULLM_FILE_ERROR, "nothing.bin: open: No such file or directory");
    alarm(0);
    free(bytes.data);
}

void test_tokens_next_fails(void)
{
    uint16_t ids[2][41];
    struct bytes bytes[2];
    static const char *const paths[] = {"a.bin", "b.bin"};
    for (int s = 0; s < 2; s++) {
        random_ids(ids[s], 41, 61);
        ids[s][25] = 61; /* in the second step of 2 * 10 + 1 tokens */
        bytes[s] = make_tokens(41, ids[s]);
        save(paths[s], &bytes[s]);
    }
    struct starpullm_tokens_options options = options_for(paths, 2, 2, 10);
    struct starpullm_tokens *tokens = NULL;
    int32_t inputs[20], targets[20];

    /* An id out of range: where it is; outputs and position stay. */
    options.vocab_size = 61;
    WORKS(starpullm_tokens_open(&options, &tokens));
    REFUSED(starpullm_tokens_next(NULL, inputs, targets), STARPULLM_INVALID_ARGUMENT, "tokens is NULL");
    REFUSED(starpullm_tokens_next(tokens, NULL, targets), STARPULLM_INVALID_ARGUMENT, "inputs is NULL");
    REFUSED(starpullm_tokens_next(tokens, inputs, NULL), STARPULLM_INVALID_ARGUMENT, "targets is NULL");
    WORKS(starpullm_tokens_next(tokens, inputs, targets));
    for (int attempt = 0; attempt < 3; attempt++)
        REFUSED(starpullm_tokens_next(tokens, inputs, targets), STARPULLM_INVALID_TOKEN,
                "a.bin: byte 1074: token id is 61", "expected less than 61");
    CHECK(inputs[0] == ids[0][0] && targets[19] == ids[0][20]);
    starpullm_tokens_close(tokens);
    options.vocab_size = 62;
    WORKS(starpullm_tokens_open(&options, &tokens));
    WORKS(starpullm_tokens_next(tokens, inputs, targets));
    WORKS(starpullm_tokens_next(tokens, inputs, targets));
    CHECK(inputs[0] == ids[0][20] && inputs[5] == 61);

    /* The next shard vanishes, comes back shorter, is something else, comes back. */
    unlink("b.bin");
    REFUSED(starpullm_tokens_next(tokens, inputs, targets), STARPULLM_FILE_ERROR,
            "b.bin: open: No such file or directory");
    struct bytes shorter = make_tokens(40, ids[1]), enough = make_tokens(30, ids[1]);
    save("b.bin", &enough);
    REFUSED(starpullm_tokens_next(tokens, inputs, targets), STARPULLM_INVALID_FILE,
            "b.bin: byte 8: number of tokens is 30", "expected 41");
    save_part("b.bin", &shorter, shorter.size - 1);
    REFUSED(starpullm_tokens_next(tokens, inputs, targets), STARPULLM_INVALID_FILE, "b.bin: the file is 1103 bytes",
            "expected 1104");
    unlink("b.bin");
    mkfifo("b.bin", 0644);
    REFUSED(starpullm_tokens_next(tokens, inputs, targets), STARPULLM_INVALID_FILE, "b.bin: is a FIFO");
    unlink("b.bin");
    save("b.bin", &bytes[1]);
    WORKS(starpullm_tokens_next(tokens, inputs, targets));
    CHECK(inputs[0] == ids[1][0]);

    /* The open shard may be removed, but not cut. */
    unlink("b.bin");
    WORKS(starpullm_tokens_next(tokens, inputs, targets));
    CHECK(inputs[0] == ids[1][20]);
    WORKS(starpullm_tokens_next(tokens, inputs, targets));
    CHECK(inputs[0] == ids[0][0]);
    CHECK(truncate("a.bin", 1080) == 0);
    REFUSED(starpullm_tokens_next(tokens, inputs, targets), STARPULLM_INVALID_FILE, "a.bin: byte 1080",
            "expected 26 more bytes", "truncated");
    no_faults();
    faults.fail_at = 1;
    faults.error = EIO;
    REFUSED(starpullm_tokens_next(tokens, inputs, targets), STARPULLM_FILE_ERROR, "a.bin: byte 1064: read",
            "Input/output error");
    no_faults();
    starpullm_tokens_close(tokens);
    free(shorter.data);
    free(enough.data);
    free(bytes[0].data);
    free(bytes[1].data);
}

/* Tokens beyond 2 GB, in a file with a hole. */
void test_tokens_far(void)
{
    const int32_t ranks = 700000000, num_tokens = 2 * ranks + 1;
    struct bytes header = {0};
    put_header(&header, (int32_t[]){20240520, 1, num_tokens}, 3);
    save("far.bin", &header);
    free(header.data);
    int descriptor = open("far.bin", O_RDWR);
    const unsigned char last[] = {0x34, 0x12, 0x78, 0x56};
    off_t size = 1024 + 2 * (off_t)num_tokens;
    if (descriptor < 0 || ftruncate(descriptor, size) != 0 || pwrite(descriptor, last, 4, size - 4) != 4) {
        printf("test_files: tokens beyond 2 GB not tested: %s\n", strerror(errno));
    } else {
        struct starpullm_tokens_options options = options_for((const char *const[]){"far.bin"}, 1, 1, 1);
        struct starpullm_tokens *tokens = NULL;
        options.num_ranks = ranks;
        options.rank = ranks - 1;
        int32_t input = -1, target = -1;
        WORKS(starpullm_tokens_open(&options, &tokens));
        WORKS(starpullm_tokens_next(tokens, &input, &target));
        CHECK(input == 0 && target == 0);
        WORKS(starpullm_tokens_next(tokens, &input, &target));
        CHECK(input == 0x1234 && target == 0x5678);
        WORKS(starpullm_tokens_next(tokens, &input, &target)); /* from the start again */
        CHECK(input == 0 && target == 0);
        starpullm_tokens_close(tokens);
        options.vocab_size = 0x5678;
        WORKS(starpullm_tokens_open(&options, &tokens));
        WORKS(starpullm_tokens_next(tokens, &input, &target));
        REFUSED(starpullm_tokens_next(tokens, &input, &target), STARPULLM_INVALID_TOKEN,
                "far.bin: byte 2800001024: ", "token id is 22136", "expected less than 22136");
        starpullm_tokens_close(tokens);
    }
    if (descriptor >= 0)
        close(descriptor);
    unlink("far.bin");
}
