/* The format of training states, byte for byte; and arguments that are refused. */
#include <sys/stat.h>

#include "states.h"

static uint64_t fnv1a(const unsigned char *bytes, size_t size)
{
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ bytes[i]) * 1099511628211u;
    return hash;
}

static uint32_t float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* CRC-32 as its definition says it, bit by bit. */
static uint32_t crc32_of(const unsigned char *bytes, size_t size)
{
    uint32_t rest = UINT32_MAX;
    for (size_t i = 0; i < 8 * size; i++) {
        const uint32_t bit = (rest ^ (uint32_t)(bytes[i / 8] >> i % 8)) & 1;
        rest = rest >> 1 ^ (bit ? 0xedb88320u : 0);
    }
    return ~rest;
}

/* The file of one rank, made independently of the library. */
static struct bytes make_file(const struct training_state_meta *meta)
{
    struct training_state_tensor tensors[MOST_TENSORS];
    const int count = tensors_of(&meta->config, meta->rank, meta->num_ranks, tensors);
    const size_t entries = 52 * (size_t)count;
    const size_t header = (1024 + entries + BLOCK - 1) / BLOCK * BLOCK;
    size_t end = header;
    for (int i = 0; i < count; i++)
        end += GROUPS * ((4 * (size_t)elements_of(&meta->config, tensors[i].parameter) + BLOCK - 1) / BLOCK * BLOCK);
    struct bytes bytes = {must(calloc(1, end + BLOCK + 64)), end + BLOCK, 0};
    const uint64_t ints[] = {20261121,
                             2,
                             (uint64_t)meta->config.max_seq_len,
                             (uint64_t)meta->config.vocab_size,
                             (uint64_t)meta->config.num_layers,
                             (uint64_t)meta->config.num_heads,
                             (uint64_t)meta->config.channels,
                             (uint64_t)meta->config.padded_vocab_size,
                             (uint64_t)meta->rank,
                             (uint64_t)meta->num_ranks,
                             (uint64_t)count};
    const uint64_t longs[] = {(uint64_t)meta->step,
                              meta->run,
                              (uint64_t)meta->batches,
                              (uint64_t)meta->batch_size,
                              (uint64_t)meta->seq_len,
                              (uint64_t)meta->seed,
                              meta->data_id};
    const float floats[] = {meta->learning_rate, meta->beta1, meta->beta2, meta->eps, meta->weight_decay};
    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++)
        put(&bytes, 4 * i, ints[i], 4);
    for (size_t i = 0; i < sizeof longs / sizeof longs[0]; i++)
        put(&bytes, 48 + 8 * i, longs[i], 8);
    for (size_t i = 0; i < sizeof floats / sizeof floats[0]; i++)
        put(&bytes, 104 + 4 * i, float_bits(floats[i]), 4);
    put(&bytes, 124, (uint64_t)meta->blas, 4);
    size_t position = header;
    for (int t = 0; t < count; t++) {
        const int64_t elements = elements_of(&meta->config, tensors[t].parameter);
        const size_t entry = 1024 + 40 * (size_t)t;
        put(&bytes, entry, tensors[t].parameter, 4);
        put(&bytes, entry + 4, (uint64_t)tensors[t].layer, 4);
        put(&bytes, entry + 8, (uint64_t)elements, 8);
        for (int group = 0; group < GROUPS; group++) {
            put(&bytes, entry + 16 + 8 * (size_t)group, position, 8);
            for (int64_t i = 0; i < elements; i++)
                put(&bytes, position + 4 * (size_t)i,
                    value_bits(meta, group, tensors[t].parameter, tensors[t].layer, i), 4);
            put(&bytes, 1024 + 40 * (size_t)count + 4 * (size_t)(GROUPS * t + group),
                crc32_of(bytes.data + position, 4 * (size_t)elements), 4);
            position += (4 * (size_t)elements + BLOCK - 1) / BLOCK * BLOCK;
        }
    }
    put(&bytes, end, 20261121, 4);
    put(&bytes, end + 4, 2, 4);
    put(&bytes, end + 8, (uint64_t)meta->step, 8);
    put(&bytes, end + 16, meta->run, 8);
    put(&bytes, end + 24, (uint64_t)meta->rank, 4);
    put(&bytes, end + 28, (uint64_t)meta->num_ranks, 4);
    put(&bytes, end + 32, fnv1a(bytes.data, header), 8);
    put(&bytes, end + 40, end + BLOCK, 8);
    return bytes;
}

static void check_bytes(const char *file, int line, const char *path, const struct training_state_meta *meta)
{
    struct bytes expected = make_file(meta), found = load(path);
    check_at(file, line, found.size == expected.size && memcmp(found.data, expected.data, found.size) == 0,
             "the file has the format's bytes");
    free(expected.data);
    free(found.data);
}

void test_format(void)
{
    /* 100 ranks: most of them own nothing. */
    const int32_t ranks[] = {1, 2, 3, 100};
    for (size_t r = 0; r < sizeof ranks / sizeof ranks[0]; r++) {
        write_state("root", &tiny, 7, ranks[r]);
        CHECK(read_state("root") == 7);
        CHECK(read_state(FOLDER) == 7);
        CHECK(read_state("./root//step-000000000007//") == 7);
        CHECK(entries(FOLDER) == ranks[r]);
        for (int32_t rank = 0; rank < ranks[r]; rank++) {
            struct training_state_meta meta = meta_of(&tiny, 7, rank, ranks[r]);
            check_bytes(__FILE__, __LINE__, joined(FOLDER "/rank-%05d-of-%05d.state", rank, ranks[r]), &meta);
        }
        remove_all("root");
    }
    for (int unaligned = 0; unaligned < 2; unaligned++) {
        const model_config *configs[] = {&tiny, &larger};
        for (int c = 0; c < 2; c++) {
            struct training_state_meta meta = meta_of(configs[c], 7, 0, 1);
            no_faults();
            WORKS(write_file("root", &meta, unaligned));
            CHECK(written_from_looked_for);
            check_bytes(__FILE__, __LINE__, RANK_0, &meta);
            CHECK(read_state("root") == 7);
            remove_all("root");
        }
    }
    struct training_state *state;
    struct training_state_meta meta = meta_of(&tiny, INT64_MAX, 0, 1);
    WORKS(write_file("root", &meta, false));
    WORKS(training_state_open("root", &state));
    check_bytes(__FILE__, __LINE__, "root/step-9223372036854775807/rank-00000-of-00001.state", &state->meta);
    CHECK(strcmp(state->path, "root/step-9223372036854775807") == 0);
    CHECK(state->passed_over == NULL);
    training_state_close(state);
    remove_all("root");
}

/* Past the page cache where the file system lets us, through it where it doesn't. */
void test_direct(void)
{
    struct training_state_meta meta = meta_of(&tiny, 7, 0, 1);
    int probe = open("probe", O_RDWR | O_CREAT, 0644);
    const bool possible = probe >= 0 && fcntl(probe, F_SETFL, O_DIRECT) == 0;
    close(probe);
    unlink("probe");
    no_faults();
    WORKS(write_file("root", &meta, false));
    CHECK(direct_writes == (possible ? faults[CALL_WRITE].calls : 0));
    no_faults();
    refuse_direct = true;
    WORKS(write_file("root", &meta, false));
    CHECK(direct_writes == possible && read_state("root") == 7);
    no_faults();
    refuse_direct = true;
    most = 1000; /* not a multiple of anything that a disk likes */
    interrupt_every = 3;
    WORKS(write_file("root", &meta, true));
    check_bytes(__FILE__, __LINE__, RANK_0, &meta);
    no_faults();
    most = BLOCK;
    interrupt_every = 2;
    WORKS(write_file("root", &meta, false));
    check_bytes(__FILE__, __LINE__, RANK_0, &meta);
    fail_call(CALL_RESERVE, -1, EOPNOTSUPP);
    WORKS(write_file("root", &meta, false));
    check_bytes(__FILE__, __LINE__, RANK_0, &meta);
    fail_call(CALL_RESERVE, 1, EINTR);
    WORKS(write_file("root", &meta, false));
    no_faults();
    remove_all("root");
}

/* ---- Arguments ---- */

void test_arguments(void)
{
    struct training_state_writer *writer = (struct training_state_writer *)&checks;
    struct training_state_tensor tensors[MOST_TENSORS];
    struct training_state_meta good = meta_of(&tiny, 7, 0, 1);
    good.num_tensors = tensors_of(&tiny, 0, 1, tensors);
    const struct state_root gone = open_root("gone");
    CHECK(rmdir("gone") == 0);
    REFUSED(training_state_writer_open(&gone, &good, tensors, &writer), STARPULLM_FILE_ERROR,
            "gone/step-000000000007: make the folder: No such file");
    CHECK(writer == NULL);
    close_root(&gone);
    REFUSED(training_state_make_folder("missing/root"), STARPULLM_FILE_ERROR, "missing/root: make the folder",
            "No such file");
    const struct state_root closed = {"root", -1};
    const struct {
        size_t offset;
        int64_t value;
        size_t width;
        const char *parts[2];
    } refusals[] = {
        {offsetof(struct training_state_meta, step), -1, 8, {"step is -1", "expected at least 0"}},
        {offsetof(struct training_state_meta, batches), -1, 8, {"number of batches is -1", "expected at least 0"}},
        {offsetof(struct training_state_meta, batch_size), 0, 8, {"batch size is 0", "expected at least 1"}},
        {offsetof(struct training_state_meta, seq_len), 0, 8, {"sequence length is 0", "expected at least 1"}},
        {offsetof(struct training_state_meta, num_ranks), 0, 4, {"number of ranks is 0", "expected at least 1"}},
        {offsetof(struct training_state_meta, num_tensors), -1, 4, {"number of tensors is -1", "at least 0"}},
        {offsetof(struct training_state_meta, rank), -1, 4, {"rank is -1", "expected at least 0"}},
        {offsetof(struct training_state_meta, rank), 1, 4, {"rank is 1", "less than the number of ranks (1)"}},
        {offsetof(struct training_state_meta, config.channels), 15, 4, {"channels is 15", "multiple of num_heads"}},
    };
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        struct training_state_meta meta = good;
        memcpy((char *)&meta + refusals[i].offset, &refusals[i].value, refusals[i].width);
        REFUSED(training_state_writer_open(&closed, &meta, tensors, &writer), STARPULLM_INVALID_ARGUMENT,
                "root: ", refusals[i].parts[0], refusals[i].parts[1]);
    }
    /* A checkpoint of it fits into 64 bits, three of them don't. */
    struct training_state_meta huge = meta_of(&tiny, 7, 0, 1);
    huge.config = (model_config){1, 1, 1, 1, 1 << 29, INT32_MAX};
    huge.num_tensors = 1;
    const struct training_state_tensor wte = {PARAM_WTE, 0};
    REFUSED(training_state_writer_open(&closed, &huge, &wte, &writer), STARPULLM_INVALID_ARGUMENT, "too large");
    CHECK(!there("root"));
    training_state_discard(NULL);
    training_state_close(NULL);
}
