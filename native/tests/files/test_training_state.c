/* Tests of io/training_state*.c and io/writer.c: the format byte for byte, every refusal with its sentence, failing
 * system calls, full disks, and processes killed while they save. ctest runs it with an optional argument, the folder
 * to work under. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "io/checkpoint.h"
#include "io/file.h"
#include "io/training_state.h"
#include "io/writer.h"

/* ---- Harness ---- */

static int checks, failures;

static void check_at(int line, bool passed, const char *what)
{
    checks++;
    if (passed)
        return;
    failures++;
    printf("test_training_state.c:%d: failed: %s\n    last error: %s\n", line, what, last_error());
}
#define CHECK(condition) check_at(__LINE__, (condition), #condition)

/* That the call was refused with this status, in a sentence that has every one of the given parts. */
static void refused_at(int line, status found, status expected, ...)
{
    char what[256];
    snprintf(what, sizeof what, "status %d, expected %d", (int)found, (int)expected);
    check_at(line, found == expected, what);
    check_at(line, strchr(last_error(), '\n') == NULL, "the sentence is one line");
    check_at(line, (last_error_number() != 0) == (expected == STARPULLM_FILE_ERROR),
             "an errno value goes with FILE_ERROR and nothing else");
    va_list parts;
    va_start(parts, expected);
    for (const char *part; (part = va_arg(parts, const char *)) != NULL;) {
        snprintf(what, sizeof what, "the sentence has \"%s\"", part);
        check_at(line, strstr(last_error(), part) != NULL, what);
    }
    va_end(parts);
}
#define REFUSED(call, ...) refused_at(__LINE__, (call), __VA_ARGS__, (const char *)NULL)
#define WORKS(call) check_at(__LINE__, (call) == STARPULLM_OK, #call)

/* ---- System calls that fail on demand; the library's calls come here first ---- */

enum call { CALL_WRITE, CALL_RESERVE, CALL_SYNC, CALL_RENAME, NUM_CALLS };

static struct {
    int calls;
    int fail_at; /* the n-th call fails, counted from 1; 0: none; -1: every one */
    int error;   /* its errno; 0: the call moves no byte */
} faults[NUM_CALLS];
static size_t most;                  /* bytes in one write; 0: no limit */
static int interrupt_every;          /* every n-th write fails with EINTR; 0: none */
static bool refuse_direct;           /* writes past the page cache fail with EINVAL */
static int direct_writes;            /* past the page cache */
static const void *looked_for;       /* a buffer ... */
static bool written_from_looked_for; /* ... and whether something was written from there */

static void no_faults(void)
{
    memset(faults, 0, sizeof faults);
    most = 0;
    interrupt_every = 0;
    refuse_direct = false;
    direct_writes = 0;
    looked_for = NULL;
    written_from_looked_for = false;
}

static bool fault(enum call call, int *result)
{
    faults[call].calls++;
    if (faults[call].fail_at != -1 && faults[call].fail_at != faults[call].calls)
        return false;
    errno = faults[call].error;
    *result = errno != 0 ? -1 : 0;
    return true;
}

static void fail_call(enum call call, int at, int error)
{
    no_faults();
    faults[call].fail_at = at;
    faults[call].error = error;
}

ssize_t pwritev(int descriptor, const struct iovec *pieces, int count, off_t offset)
{
    int result;
    if (fault(CALL_WRITE, &result))
        return result;
    if (interrupt_every > 0 && faults[CALL_WRITE].calls % interrupt_every == 0) {
        errno = EINTR;
        return -1;
    }
    const bool direct = (fcntl(descriptor, F_GETFL) & O_DIRECT) != 0;
    direct_writes += direct;
    if (direct && refuse_direct) {
        errno = EINVAL;
        return -1;
    }
    written_from_looked_for = written_from_looked_for || (looked_for != NULL && pieces->iov_base == looked_for);
    struct iovec cut = pieces[0];
    if (most > 0) {
        cut.iov_len = cut.iov_len < most ? cut.iov_len : most;
        pieces = &cut;
        count = 1;
    }
    return syscall(SYS_pwritev, descriptor, pieces, count, (unsigned long)offset, 0ul);
}

int fallocate(int descriptor, int mode, off_t offset, off_t size)
{
    int result;
    if (fault(CALL_RESERVE, &result))
        return result;
    return (int)syscall(SYS_fallocate, descriptor, mode, offset, size);
}

/* A killed process leaves what it has written whether or not it was synced, so no disk has to be waited for. */
int fsync(int descriptor)
{
    int result;
    struct stat info;
    if (fault(CALL_SYNC, &result))
        return result;
    return fstat(descriptor, &info);
}

int renameat(int from_folder, const char *from, int to_folder, const char *to)
{
    int result;
    if (fault(CALL_RENAME, &result))
        return result;
    return (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, 0u);
}

/* ---- Folders and files ---- */

static void *must(void *memory)
{
    if (memory == NULL)
        abort();
    return memory;
}

static int entries(const char *folder)
{
    DIR *opened = must(opendir(folder));
    int count = 0;
    for (const struct dirent *entry; (entry = readdir(opened)) != NULL;)
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(opened);
    return count;
}

static int open_descriptors(void)
{
    int count = 0;
    for (int d = 0; d < 256; d++)
        count += fcntl(d, F_GETFD) != -1;
    return count;
}

static void remove_all(const char *folder)
{
    DIR *opened = opendir(folder);
    if (opened == NULL)
        return;
    for (const struct dirent *entry; (entry = readdir(opened)) != NULL;) {
        char path[1024];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        struct stat info;
        if (lstat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
            remove_all(path);
            rmdir(path);
        } else {
            unlink(path);
        }
    }
    closedir(opened);
}

static bool there(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}

static const char *joined(const char *format, ...)
{
    static char texts[4][1024];
    static int used;
    char *text = texts[used++ % 4];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof texts[0], format, arguments);
    va_end(arguments);
    return text;
}

struct bytes {
    unsigned char *data;
    size_t size;
};

static struct bytes load(const char *path)
{
    struct stat info;
    FILE *file = must(fopen(path, "rb"));
    if (fstat(fileno(file), &info) != 0)
        abort();
    struct bytes bytes = {must(malloc((size_t)info.st_size + 64)), (size_t)info.st_size};
    if (fread(bytes.data, 1, bytes.size, file) != bytes.size)
        abort();
    fclose(file);
    memset(bytes.data + bytes.size, 0x5a, 64);
    return bytes;
}

static void save(const char *path, const struct bytes *bytes, size_t size)
{
    unlink(path);
    FILE *file = must(fopen(path, "wb"));
    if (fwrite(bytes->data, 1, size, file) != size || fclose(file) != 0)
        abort();
}

static void put(struct bytes *bytes, size_t position, uint64_t value, size_t width)
{
    for (size_t i = 0; i < width; i++)
        bytes->data[position + i] = (unsigned char)(value >> 8 * i);
}

static uint64_t random_state = 1;

static uint64_t next_random(uint64_t limit)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % limit;
}

/* ---- States of known content ---- */

static const model_config tiny = {
    .max_seq_len = 4, .vocab_size = 85, .num_layers = 2, .num_heads = 2, .channels = 16, .padded_vocab_size = 90};
static const model_config least = {
    .max_seq_len = 1, .vocab_size = 1, .num_layers = 1, .num_heads = 1, .channels = 8, .padded_vocab_size = 160};
static const model_config larger = {
    .max_seq_len = 4, .vocab_size = 1100, .num_layers = 1, .num_heads = 2, .channels = 256, .padded_vocab_size = 1100};
static const enum starpullm_group groups[] = {STARPULLM_PARAMS, STARPULLM_M, STARPULLM_V};
enum { GROUPS = 3, MOST_TENSORS = 64, BLOCK = 4096 };

static struct training_state_meta meta_of(const model_config *config, int64_t step, int32_t rank, int32_t num_ranks)
{
    return (struct training_state_meta){.config = *config,
                                        .rank = rank,
                                        .num_ranks = num_ranks,
                                        .step = step,
                                        .run = UINT64_C(0xfedcba9876543210),
                                        .batches = step / 2 + (INT64_C(5) << 32),
                                        .batch_size = 4,
                                        .seq_len = 3,
                                        .seed = -7,
                                        .data_id = UINT64_C(0x8000000000000001),
                                        .learning_rate = 1e-4f,
                                        .beta1 = 0.9f,
                                        .beta2 = 0.999f,
                                        .eps = 1e-8f,
                                        .weight_decay = 0.01f,
                                        .blas = 1};
}

/* Bits of all kinds, NaN and subnormals included, that depend on everything. */
static uint32_t value_bits(const struct training_state_meta *meta, int group, enum parameter p, int layer, int64_t i)
{
    uint64_t x = (uint64_t)meta->step * 0x9e3779b97f4a7c15u ^ meta->run;
    x = (x ^ (uint64_t)(group * 1000003 + (int)p * 1009 + layer)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27 ^ (uint64_t)i) * 0x94d049bb133111ebu;
    return (uint32_t)(x >> 32);
}

/* All tensors of the model in the checkpoint's order, but only those of one rank: number r, r + R, r + 2R, ... */
static int tensors_of(const model_config *config, int32_t rank, int32_t num_ranks,
                      struct training_state_tensor tensors[MOST_TENSORS])
{
    int count = 0, number = 0;
    for (enum parameter p = 0; p < NUM_PARAMETERS; p++)
        for (int layer = 0; layer < parameter_instances(config, p); layer++)
            if (number++ % num_ranks == rank)
                tensors[count++] = (struct training_state_tensor){p, layer};
    return count;
}

static int64_t elements_of(const model_config *config, enum parameter p)
{
    return tensor_elements(parameter_shape(config, p));
}

/* Memory that ends on the page that the last value is on; the next can't be read. */
static float *mapped(size_t bytes, size_t *mapped_bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    *mapped_bytes = (bytes + page - 1) / page * page + page;
    char *memory = mmap(NULL, *mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory + *mapped_bytes - page, page, PROT_NONE) != 0)
        abort();
    return (float *)memory;
}

/* Unaligned: the values begin 4 bytes after a block does. */
static status write_tensor(struct training_state_writer *writer, const struct training_state_meta *meta, int index,
                           struct training_state_tensor tensor, int group, bool unaligned)
{
    const int64_t count = elements_of(&meta->config, tensor.parameter);
    size_t bytes;
    float *memory = mapped((size_t)(count + unaligned) * sizeof *memory, &bytes);
    float *values = memory + unaligned;
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = value_bits(meta, group, tensor.parameter, tensor.layer, i);
        memcpy(values + i, &bits, sizeof bits);
    }
    if (tensor.parameter == PARAM_WTE)
        looked_for = values;
    status result = training_state_write(writer, index, groups[group], values);
    munmap(memory, bytes);
    return result;
}

static status write_all(struct training_state_writer *writer, const struct training_state_meta *meta, bool unaligned)
{
    struct training_state_tensor tensors[MOST_TENSORS];
    const int count = tensors_of(&meta->config, meta->rank, meta->num_ranks, tensors);
    for (int i = count - 1; i >= 0; i--)
        for (int group = 0; group < GROUPS; group++)
            TRY(write_tensor(writer, meta, i, tensors[i], group, unaligned));
    return STARPULLM_OK;
}

static status open_writer(const char *root, const struct training_state_meta *meta,
                          struct training_state_writer **writer)
{
    struct training_state_tensor tensors[MOST_TENSORS];
    const int count = tensors_of(&meta->config, meta->rank, meta->num_ranks, tensors);
    return training_state_writer_open(root, meta, tensors, count, writer);
}

static status write_file(const char *root, const struct training_state_meta *meta, bool unaligned)
{
    struct training_state_writer *writer;
    TRY(open_writer(root, meta, &writer));
    status result = write_all(writer, meta, unaligned);
    if (result != STARPULLM_OK) {
        training_state_discard(writer);
        return result;
    }
    return training_state_commit(writer);
}

static void write_state(const char *root, const model_config *config, int64_t step, int32_t num_ranks)
{
    for (int32_t rank = 0; rank < num_ranks; rank++) {
        struct training_state_meta meta = meta_of(config, step, rank, num_ranks);
        WORKS(write_file(root, &meta, false));
    }
}

/* ---- Reading them back ---- */

struct reading {
    const struct training_state_meta *meta;
    float *values;
    int held;
    int tensors; /* read */
    int wrong;   /* tensors with other bits */
    int refuse;  /* the n-th acquire fails; 0: none */
    bool skip;   /* nothing is wanted */
};

static status acquire(void *context, enum starpullm_group group, enum parameter p, int layer, float **values)
{
    struct reading *reading = context;
    (void)group;
    (void)layer;
    if (reading->refuse > 0 && --reading->refuse == 0)
        return fail(STARPULLM_RUNTIME_FAILURE, "refused");
    reading->held++;
    *values = NULL;
    if (!reading->skip)
        *values = reading->values =
            must(malloc((size_t)elements_of(&reading->meta->config, p) * sizeof *reading->values));
    return STARPULLM_OK;
}

static void release(void *context, enum starpullm_group group, enum parameter p, int layer)
{
    struct reading *reading = context;
    int number = 0;
    bool same = true;
    reading->held--;
    reading->tensors++;
    if (reading->skip)
        return;
    while (groups[number] != group)
        number++;
    for (int64_t i = 0; i < elements_of(&reading->meta->config, p); i++) {
        uint32_t bits = value_bits(reading->meta, number, p, layer, i);
        same = same && memcmp(&bits, reading->values + i, sizeof bits) == 0;
    }
    reading->wrong += !same;
    free(reading->values);
}

static status read_all(const struct training_state *state, struct reading *reading)
{
    reading->meta = training_state_meta(state);
    return training_state_read(state, &training_state_meta(state)->config,
                               &(struct training_state_destination){reading, acquire, release});
}

/* That the path has a state of this step, whole. Returns the state of no step as -1. */
static int64_t read_state(const char *path)
{
    struct training_state *state;
    struct reading reading = {0};
    if (training_state_open(path, &state) != STARPULLM_OK)
        return -1;
    const int64_t step = training_state_meta(state)->step;
    WORKS(read_all(state, &reading));
    int expected = 0;
    for (enum parameter p = 0; p < NUM_PARAMETERS; p++)
        expected += GROUPS * parameter_instances(&training_state_meta(state)->config, p);
    CHECK(reading.tensors == expected && reading.wrong == 0 && reading.held == 0);
    training_state_close(state);
    return step;
}

static status try_open(const char *path)
{
    struct training_state *state = (struct training_state *)&checks;
    status result = training_state_open(path, &state);
    CHECK((result == STARPULLM_OK) == (state != NULL));
    training_state_close(state);
    return result;
}

#define FOLDER "root/step-000000000007"
#define RANK_0 FOLDER "/rank-00000-of-00001.state"

/* ---- The format ---- */

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

/* The file of one rank, made independently of the library. */
static struct bytes make_file(const struct training_state_meta *meta)
{
    struct training_state_tensor tensors[MOST_TENSORS];
    const int count = tensors_of(&meta->config, meta->rank, meta->num_ranks, tensors);
    const size_t header = (1024 + 40 * (size_t)count + BLOCK - 1) / BLOCK * BLOCK;
    size_t end = header;
    for (int i = 0; i < count; i++)
        end += GROUPS * ((4 * (size_t)elements_of(&meta->config, tensors[i].parameter) + BLOCK - 1) / BLOCK * BLOCK);
    struct bytes bytes = {must(calloc(1, end + BLOCK + 64)), end + BLOCK};
    const uint64_t ints[] = {20261121,
                             1,
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
            position += (4 * (size_t)elements + BLOCK - 1) / BLOCK * BLOCK;
        }
    }
    put(&bytes, end, 20261121, 4);
    put(&bytes, end + 4, 1, 4);
    put(&bytes, end + 8, (uint64_t)meta->step, 8);
    put(&bytes, end + 16, meta->run, 8);
    put(&bytes, end + 24, (uint64_t)meta->rank, 4);
    put(&bytes, end + 28, (uint64_t)meta->num_ranks, 4);
    put(&bytes, end + 32, fnv1a(bytes.data, header), 8);
    put(&bytes, end + 40, end + BLOCK, 8);
    return bytes;
}

static void check_bytes(int line, const char *path, const struct training_state_meta *meta)
{
    struct bytes expected = make_file(meta), found = load(path);
    check_at(line, found.size == expected.size && memcmp(found.data, expected.data, found.size) == 0,
             "the file has the format's bytes");
    free(expected.data);
    free(found.data);
}

static void test_format(void)
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
            check_bytes(__LINE__, joined(FOLDER "/rank-%05d-of-%05d.state", rank, ranks[r]), &meta);
        }
        remove_all("root");
    }
    for (int unaligned = 0; unaligned < 2; unaligned++) {
        const model_config *configs[] = {&tiny, &larger};
        for (int c = 0; c < 2; c++) {
            struct training_state_meta meta = meta_of(configs[c], 7, 0, 1);
            no_faults();
            WORKS(write_file("root", &meta, unaligned));
            CHECK(written_from_looked_for == !unaligned);
            check_bytes(__LINE__, RANK_0, &meta);
            CHECK(read_state("root") == 7);
            remove_all("root");
        }
    }
    struct training_state *state;
    struct training_state_meta meta = meta_of(&tiny, INT64_MAX, 0, 1);
    WORKS(write_file("root", &meta, false));
    WORKS(training_state_open("root", &state));
    check_bytes(__LINE__, "root/step-9223372036854775807/rank-00000-of-00001.state", training_state_meta(state));
    CHECK(strcmp(training_state_path(state), "root/step-9223372036854775807") == 0);
    CHECK(strcmp(training_state_passed_over(state), "") == 0);
    training_state_close(state);
    remove_all("root");
}

/* Past the page cache where the file system lets us, through it where it doesn't. */
static void test_direct(void)
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
    check_bytes(__LINE__, RANK_0, &meta);
    no_faults();
    most = BLOCK;
    interrupt_every = 2;
    WORKS(write_file("root", &meta, false));
    check_bytes(__LINE__, RANK_0, &meta);
    fail_call(CALL_RESERVE, -1, EOPNOTSUPP);
    WORKS(write_file("root", &meta, false));
    check_bytes(__LINE__, RANK_0, &meta);
    fail_call(CALL_RESERVE, 1, EINTR);
    WORKS(write_file("root", &meta, false));
    no_faults();
    remove_all("root");
}

/* ---- Arguments ---- */

static void test_arguments(void)
{
    struct training_state_writer *writer = (struct training_state_writer *)&checks;
    struct training_state_tensor tensors[MOST_TENSORS];
    const struct training_state_meta good = meta_of(&tiny, 7, 0, 1);
    const int count = tensors_of(&tiny, 0, 1, tensors);
    REFUSED(training_state_writer_open(NULL, &good, tensors, count, &writer), STARPULLM_INVALID_ARGUMENT,
            "root is NULL");
    CHECK(writer == NULL);
    REFUSED(training_state_writer_open("root", &good, tensors, -1, &writer), STARPULLM_INVALID_ARGUMENT,
            "root: ", "is -1, expected at least 0");
    REFUSED(training_state_writer_open("missing/root", &good, tensors, count, &writer), STARPULLM_FILE_ERROR,
            "missing/root: make the folder", "No such file");
    close(creat("file", 0644));
    REFUSED(training_state_writer_open("file", &good, tensors, count, &writer), STARPULLM_FILE_ERROR,
            "file: open the folder", "Not a directory");
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
        {offsetof(struct training_state_meta, rank), -1, 4, {"rank is -1", "expected at least 0"}},
        {offsetof(struct training_state_meta, rank), 1, 4, {"rank is 1", "less than the number of ranks (1)"}},
        {offsetof(struct training_state_meta, config.channels), 15, 4, {"channels is 15", "multiple of num_heads"}},
    };
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        struct training_state_meta meta = good;
        memcpy((char *)&meta + refusals[i].offset, &refusals[i].value, refusals[i].width);
        REFUSED(training_state_writer_open("root", &meta, tensors, count, &writer), STARPULLM_INVALID_ARGUMENT,
                "root: ", refusals[i].parts[0], refusals[i].parts[1]);
    }
    const struct training_state_tensor wrong[] = {
        {NUM_PARAMETERS, 0}, {(enum parameter) - 1, 0}, {PARAM_WTE, 1}, {PARAM_QKVW, 2}, {PARAM_QKVW, -1}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        tensors[1] = wrong[i];
        REFUSED(training_state_writer_open("root", &good, tensors, count, &writer), STARPULLM_INVALID_ARGUMENT, RANK_0,
                "tensor 1 is parameter ", "expected one of this model's");
    }
    tensors[1] = tensors[0];
    REFUSED(training_state_writer_open("root", &good, tensors, count, &writer), STARPULLM_INVALID_ARGUMENT, RANK_0,
            "tensor 1 is wte[0] again");
    /* A checkpoint of it fits into 64 bits, three of them don't. */
    struct training_state_meta huge = meta_of(&tiny, 7, 0, 1);
    huge.config = (model_config){1, 1, 1, 1, 1 << 29, INT32_MAX};
    huge.config.channels = 1 << 29;
    const struct training_state_tensor wte = {PARAM_WTE, 0};
    REFUSED(training_state_writer_open("root", &huge, &wte, 1, &writer), STARPULLM_INVALID_ARGUMENT, "too large");
    CHECK(!there("root"));

    WORKS(open_writer("root", &good, &writer));
    _Alignas(BLOCK) static float zeros[90 * 16];
    REFUSED(training_state_write(writer, -1, STARPULLM_M, zeros), STARPULLM_INVALID_ARGUMENT, RANK_0, "tensor -1");
    REFUSED(training_state_write(writer, count, STARPULLM_M, zeros), STARPULLM_INVALID_ARGUMENT, RANK_0,
            "tensors 0 to");
    REFUSED(training_state_write(writer, 0, STARPULLM_GRADS, zeros), STARPULLM_INVALID_ARGUMENT, RANK_0, "group 1");
    WORKS(training_state_write(writer, 0, STARPULLM_M, zeros));
    REFUSED(training_state_write(writer, 0, STARPULLM_M, zeros), STARPULLM_INVALID_STATE, RANK_0, "group 2 of wte[0]",
            "expected once");
    REFUSED(training_state_commit(writer), STARPULLM_INVALID_STATE, RANK_0, "group 0 of wte[0] hasn't been written");
    CHECK(there("root") && entries("root") == 0);

    REFUSED(training_state_open(NULL, &(struct training_state *){NULL}), STARPULLM_INVALID_ARGUMENT, "path is NULL");
    REFUSED(training_state_prune(NULL, 7, 1), STARPULLM_INVALID_ARGUMENT, "root is NULL");
    REFUSED(training_state_prune("root", 7, 0), STARPULLM_INVALID_ARGUMENT, "keep is 0", "at least 1");
    REFUSED(training_state_prune("missing", 7, 1), STARPULLM_FILE_ERROR, "missing: open the folder");
    training_state_discard(NULL);
    training_state_close(NULL);
    unlink("file");
}

/* ---- States that aren't whole ---- */

static void test_incomplete(void)
{
    remove_all("root");
    REFUSED(try_open("missing"), STARPULLM_FILE_ERROR, "missing: open the folder: No such file or directory");
    REFUSED(try_open("root"), STARPULLM_INVALID_FILE, "root: has no training state", "expected a folder named like");
    mkdir("root/step-7", 0755); /* not one of our names */
    mkdir("root/step-0000000000007", 0755);
    mkdir("root/step-00000000000x", 0755);
    REFUSED(try_open("root"), STARPULLM_INVALID_FILE, "root: has no training state");
    mkdir(FOLDER, 0755);
    REFUSED(try_open("root"), STARPULLM_INVALID_FILE, "root: no training state in it is complete (the newest: " FOLDER,
            "incomplete: no file named like");
    REFUSED(try_open(FOLDER), STARPULLM_INVALID_FILE, FOLDER ": incomplete: no file named like");
    remove_all("root");

    write_state("root", &tiny, 5, 2);
    write_state("root", &tiny, 7, 3);
    CHECK(read_state("root") == 7);
    unlink(FOLDER "/rank-00001-of-00003.state");
    REFUSED(try_open(FOLDER), STARPULLM_INVALID_FILE,
            FOLDER ": incomplete: rank-00001-of-00003.state is missing (2 of 3 files are there)");
    struct training_state *state;
    WORKS(training_state_open("root", &state));
    CHECK(training_state_meta(state)->step == 5);
    CHECK(strstr(training_state_passed_over(state), FOLDER ": incomplete: rank-00001-of-00003.state") != NULL);
    training_state_close(state);
    unlink("root/step-000000000005/rank-00001-of-00002.state");
    REFUSED(try_open("root"), STARPULLM_INVALID_FILE, "root: no training state in it is complete",
            "(the newest: " FOLDER, "rank-00001-of-00003.state");

    /* What another number of ranks left doesn't matter, unless it is as complete. */
    write_state("root", &tiny, 7, 1);
    CHECK(read_state("root") == 7);
    write_state("root", &tiny, 7, 3);
    REFUSED(try_open(FOLDER), STARPULLM_INVALID_FILE, FOLDER ": the files of 1 ranks are there and those of 3");
    remove_all("root");

    /* Files of two runs, of two steps, of two ranks, under each other's names. */
    struct training_state_meta meta = meta_of(&tiny, 7, 1, 2);
    write_state("root", &tiny, 7, 2);
    meta.run = 1;
    WORKS(write_file("root", &meta, false));
    REFUSED(try_open("root"), STARPULLM_INVALID_FILE, "rank-00001-of-00002.state: byte 56: run is 0x1, expected 0xfed",
            "as in rank 0's file");
    meta.run = meta_of(&tiny, 7, 1, 2).run;
    meta.beta2 = 0.5f;
    WORKS(write_file("root", &meta, false));
    REFUSED(try_open("root"), STARPULLM_INVALID_FILE, "byte 112: beta2 is 0.5, expected 0.999");
    write_state("root", &tiny, 7, 2);
    CHECK(read_state("root") == 7);
    write_state("root", &tiny, 9, 2);
    rename("root/step-000000000009/rank-00001-of-00002.state", FOLDER "/rank-00001-of-00002.state");
    REFUSED(try_open(FOLDER), STARPULLM_INVALID_FILE, "byte 48: step is 9, expected 7 (as in rank 0's file)");
    rename("root/step-000000000009/rank-00000-of-00002.state", FOLDER "/rank-00000-of-00002.state");
    REFUSED(try_open(FOLDER), STARPULLM_INVALID_FILE, "byte 48: step is 9, expected 7 (by its name)");
    remove_all("root");
    write_state("root", &tiny, 7, 2);
    rename(FOLDER "/rank-00001-of-00002.state", FOLDER "/rank-00000-of-00002.state");
    struct bytes bytes = load(FOLDER "/rank-00000-of-00002.state");
    save(FOLDER "/rank-00001-of-00002.state", &bytes, bytes.size);
    REFUSED(try_open("root"), STARPULLM_INVALID_FILE, "byte 32: rank is 1, expected 0 (by its name)");
    free(bytes.data);
    unlink(FOLDER "/rank-00001-of-00002.state");
    rename(FOLDER "/rank-00000-of-00002.state", RANK_0);
    REFUSED(try_open("root"), STARPULLM_INVALID_FILE, "byte 36: number of ranks is 2, expected 1 (by its name)");

    /* Each tensor once. */
    remove_all("root");
    struct training_state_writer *writer;
    struct training_state_tensor tensors[MOST_TENSORS];
    _Alignas(BLOCK) static float zeros[90 * 16];
    for (int fault = 0; fault < 2; fault++) {
        for (int32_t rank = 0; rank < 2; rank++) {
            meta = meta_of(&tiny, 7, rank, 2);
            int count = tensors_of(&tiny, rank, 2, tensors);
            if (rank == 1 && fault == 0)
                count--;
            if (rank == 1 && fault == 1)
                tensors[0] = (struct training_state_tensor){PARAM_WTE, 0};
            WORKS(training_state_writer_open("root", &meta, tensors, count, &writer));
            for (int i = 0; i < count; i++)
                for (int group = 0; group < GROUPS; group++)
                    WORKS(training_state_write(writer, i, groups[group], zeros));
            WORKS(training_state_commit(writer));
        }
        if (fault == 0)
            REFUSED(try_open("root"), STARPULLM_INVALID_FILE,
                    FOLDER ": its files have 27 tensors, expected the model's 28");
        else
            REFUSED(try_open("root"), STARPULLM_INVALID_FILE,
                    FOLDER ": wte[0] is in the files of rank 0 and of rank 1");
    }

    /* A folder that may have any name, as copied elsewhere. */
    remove_all("root");
    write_state("root", &tiny, 7, 2);
    CHECK(rename(FOLDER, "root/best") == 0);
    CHECK(read_state("root/best") == 7);
    remove_all("root");
}

static void test_damage(void)
{
    struct training_state_meta meta = meta_of(&tiny, 7, 0, 1);
    write_state("root", &tiny, 7, 1);
    struct bytes good = load(RANK_0);
    const size_t end = good.size - BLOCK;
    const struct {
        size_t position;
        uint64_t value;
        const char *parts[2];
    } damages[] = {
        {0, 0, {"byte 0: magic number is 0", "expected 20261121 (a training state)"}},
        {0, 20240326, {"byte 0: magic number is 20240326 (a model checkpoint)", "20261121"}},
        {4, 2, {"byte 4: version is 2", "expected 1"}},
        {8, 0, {"max_seq_len is 0", "expected at least 1"}},
        {8, 5, {"wpe[0] has 64 elements", "expected 80"}},
        {16, 3, {"the end has", "one of the two is damaged"}},
        {16, 1, {"layer of ln1w is 1", "expected 0 to 0"}},
        {20, 3, {"channels is 16", "multiple of num_heads (3)"}},
        {32, 1, {"rank is 1", "less than the number of ranks (1)"}},
        {36, 2, {"byte 36: number of ranks is 2", "expected 1 (by its name)"}},
        {40, 0, {"too long", "params, m and v of 0 tensors"}},
        {40, (uint32_t)-1, {"number of tensors is -1", "expected at least 0"}},
        {40, INT32_MAX, {"truncated", "2147483647 tensors"}},
        {40, 27, {"too long by 12288", "params, m and v of 27 tensors"}},
        {48, 8, {"byte 48: step is 8", "expected 7 (by its name)"}},
        {52, UINT32_MAX, {"step is -4294967289", "expected at least 0"}},
        {56, 1, {"the end has", "one of the two is damaged"}},
        {64, 9, {"the end has", "one of the two is damaged"}},
        {104, 0, {"the end has", "one of the two is damaged"}},
        {1020, 1, {"the end has", "one of the two is damaged"}},
        {1024, 16, {"byte 1024: parameter is number 16", "expected 0 to 15"}},
        {1024, UINT32_MAX, {"byte 1024: parameter is number -1", "expected 0 to 15"}},
        {1028, 1, {"byte 1028: layer of wte is 1", "expected 0 to 0"}},
        {1032, 5, {"byte 1032: wte[0] has 5 elements", "expected 1440"}},
        {1048, 0, {"byte 1048: group 2 of wte[0] begins at byte 0", "expected 12288"}},
        {end, 0, {"the end has 0x00000000", "expected 0x01352901"}},
        {end + 8, 0, {"the end has", "expected 0x00000007"}},
        {end + 4092, 1, {"the end has 0x00000001", "expected 0x00000000"}},
    };
    for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
        struct bytes bytes = load(RANK_0);
        memcpy(bytes.data, good.data, good.size);
        put(&bytes, damages[i].position, damages[i].value, 4);
        save(RANK_0, &bytes, bytes.size);
        REFUSED(try_open(FOLDER), STARPULLM_INVALID_FILE, RANK_0 ": ", damages[i].parts[0], damages[i].parts[1]);
        REFUSED(try_open("root"), STARPULLM_INVALID_FILE, "root: no training state", damages[i].parts[0]);
        free(bytes.data);
    }
    const size_t sizes[] = {0,     1,   1023,    1024,          1025,          BLOCK - 1,
                            BLOCK, end, end - 1, good.size - 1, good.size + 1, good.size + 64};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        save(RANK_0, &good, sizes[i]);
        REFUSED(try_open("root"), STARPULLM_INVALID_FILE, RANK_0 ": the file is ",
                sizes[i] < good.size ? "truncated" : "too long by");
    }
    unlink(RANK_0);
    mkdir(RANK_0, 0755);
    REFUSED(try_open("root"), STARPULLM_INVALID_FILE, RANK_0 ": is a directory");
    rmdir(RANK_0);

    /* Anything at all: refused for its content, or read as what it was. */
    int accepted = 0;
    enum { FILES = 2000 };
    save(RANK_0, &good, good.size);
    const int file = open(RANK_0, O_WRONLY);
    for (int i = 0; i < FILES; i++) {
        struct bytes bytes = {must(malloc(good.size + 64)), good.size};
        memcpy(bytes.data, good.data, good.size);
        for (uint64_t change = 0, changes = 1 + next_random(3); change < changes; change++) {
            static const uint32_t integers[] = {0, 1, 2, 3, 27, 28, 255, 65536, INT32_MAX, UINT32_MAX, 1u << 31};
            const size_t limits[] = {128, 2200, good.size};
            const size_t limit = limits[next_random(3)];
            size_t position = next_random(limit / 4) * 4;
            if (limit == good.size && next_random(2) == 0)
                position = end + next_random(16) * 4;
            put(&bytes, position,
                next_random(2) == 0 ? next_random(256) : integers[next_random(sizeof integers / sizeof integers[0])],
                4);
        }
        CHECK(pwrite(file, bytes.data, bytes.size, 0) == (ssize_t)bytes.size);
        status result = try_open(FOLDER);
        const bool same =
            memcmp(bytes.data, good.data, BLOCK) == 0 && memcmp(bytes.data + end, good.data + end, BLOCK) == 0;
        CHECK(result == (same ? STARPULLM_OK : STARPULLM_INVALID_FILE));
        accepted += result == STARPULLM_OK;
        free(bytes.data);
    }
    close(file);
    CHECK(accepted > FILES / 50 && accepted < FILES / 2);
    free(good.data);
    check_at(__LINE__, write_file("root", &meta, false) == STARPULLM_OK && read_state("root") == 7,
             "a save replaces a damaged file");
    remove_all("root");
}

static void test_reading_fails(void)
{
    struct training_state *state;
    struct reading reading = {.refuse = 5};
    write_state("root", &tiny, 7, 2);
    WORKS(training_state_open("root", &state));
    REFUSED(read_all(state, &reading), STARPULLM_RUNTIME_FAILURE, "refused");
    CHECK(reading.held == 0 && reading.tensors == 4 && reading.wrong == 0);
    reading = (struct reading){.skip = true};
    WORKS(read_all(state, &reading));
    CHECK(reading.held == 0 && reading.tensors == 84);
    REFUSED(training_state_read(state, &larger, &(struct training_state_destination){&reading, acquire, release}),
            STARPULLM_INVALID_FILE, FOLDER ": byte 12: vocab_size is 85, expected 1100 (this model's)");
    CHECK(reading.tensors == 84);

    /* Changed between the check and the reading. */
    struct training_state_meta meta = meta_of(&tiny, 7, 1, 2);
    meta.run++;
    WORKS(write_file("root", &meta, false));
    REFUSED(read_all(state, &reading), STARPULLM_INVALID_FILE, "rank-00001-of-00002.state: ", "the end has");
    unlink(FOLDER "/rank-00001-of-00002.state");
    REFUSED(read_all(state, &reading), STARPULLM_FILE_ERROR, "rank-00001-of-00002.state: open: No such file");
    CHECK(truncate(FOLDER "/rank-00000-of-00002.state", 5 * BLOCK) == 0);
    REFUSED(read_all(state, &reading), STARPULLM_INVALID_FILE, "rank-00000-of-00002.state: ", "when it was checked");
    CHECK(reading.held == 0);
    training_state_close(state);
    remove_all("root");
}

/* ---- Saves that fail ---- */

/* Whatever fails, what was there stays and nothing is added. */
static void failed_save(int line, const struct training_state_meta *meta, int error, const char *part)
{
    const int before = entries("root"), descriptors = open_descriptors();
    refused_at(line, write_file("root", meta, false), STARPULLM_FILE_ERROR,
               "root/step-000000000008/rank-00000-of-00001.state: ", part, (const char *)NULL);
    check_at(line, last_error_number() == error, "the errno value is the call's");
    no_faults();
    check_at(line, entries("root") == before && open_descriptors() == descriptors, "nothing is left behind");
    check_at(line, read_state("root") == 7, "the state before it is there, whole");
}

static void test_failing_calls(void)
{
    const struct training_state_meta meta = meta_of(&tiny, 8, 0, 1);
    write_state("root", &tiny, 7, 1);
    no_faults();
    WORKS(write_file("root", &meta, false));
    const int writes = faults[CALL_WRITE].calls, syncs = faults[CALL_SYNC].calls;
    WORKS(training_state_prune("root", 8, 1));
    CHECK(entries("root") == 1 && read_state("root") == 8);
    remove_all("root");
    write_state("root", &tiny, 7, 1);
    CHECK(writes == 28 * GROUPS + 2 && syncs == 3); /* header, tensors, end; root, file, folder */
    for (int at = 1; at <= writes; at += at < writes - 2 ? 7 : 1) {
        fail_call(CALL_WRITE, at, ENOSPC);
        failed_save(__LINE__, &meta, ENOSPC, "write to temporary file .rank-00000-of-00001.tmp: No space left");
        fail_call(CALL_WRITE, at, 0);
        failed_save(__LINE__, &meta, EIO, "write to temporary file");
    }
    fail_call(CALL_RESERVE, 1, ENOSPC);
    failed_save(__LINE__, &meta, ENOSPC, "reserve 364544 bytes for temporary file .rank-00000-of-00001.tmp: No space");
    fail_call(CALL_SYNC, 1, EIO);
    failed_save(__LINE__, &meta, EIO, "fsync of the folder that its folder is in");
    fail_call(CALL_SYNC, 2, EIO);
    failed_save(__LINE__, &meta, EIO, "fsync of temporary file");
    fail_call(CALL_RENAME, 1, EACCES);
    failed_save(__LINE__, &meta, EACCES, "rename temporary file");
    fail_call(CALL_SYNC, 3, EIO);
    REFUSED(write_file("root", &meta, false), STARPULLM_FILE_ERROR, "the file is in place, but a power failure");
    no_faults();
    CHECK(read_state("root") == 8);
    remove_all("root");
    rmdir("root");
    fail_call(CALL_SYNC, 1, EIO);
    REFUSED(write_file("root", &meta, false), STARPULLM_FILE_ERROR, "root: fsync of the folder that it is in");
    for (int at = 1; at <= 4; at++) { /* what doesn't know fsync of a folder, and interruptions */
        rmdir("root");
        fail_call(CALL_SYNC, at, at == 3 ? EINTR : EINVAL);
        WORKS(write_file("root", &meta, false));
        CHECK(read_state("root") == 8);
        remove_all("root");
    }
    no_faults();

    /* A tensor that couldn't be written may be tried again. */
    struct training_state_writer *writer;
    struct training_state_tensor tensors[MOST_TENSORS];
    tensors_of(&tiny, 0, 1, tensors);
    WORKS(open_writer("root", &meta, &writer));
    fail_call(CALL_WRITE, 1, ENOSPC);
    REFUSED(write_tensor(writer, &meta, 0, tensors[0], 0, false), STARPULLM_FILE_ERROR, "byte 4096: write to");
    no_faults();
    WORKS(write_all(writer, &meta, false));
    WORKS(training_state_commit(writer));
    CHECK(read_state("root") == 8);
    remove_all("root");
}

static void test_size_limit(void)
{
    const struct training_state_meta meta = meta_of(&tiny, 8, 0, 1);
    struct rlimit saved, limit;
    write_state("root", &tiny, 7, 1);
    CHECK(getrlimit(RLIMIT_FSIZE, &saved) == 0);
    for (int reserve = 0; reserve < 2; reserve++) {
        no_faults();
        if (!reserve)
            fail_call(CALL_RESERVE, -1, EOPNOTSUPP);
        limit = (struct rlimit){10 * BLOCK, saved.rlim_max};
        CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
        failed_save(__LINE__, &meta, EFBIG, reserve ? "reserve 364544 bytes" : "write to temporary file");
        CHECK(setrlimit(RLIMIT_FSIZE, &saved) == 0);
    }
    WORKS(write_file("root", &meta, false));
    CHECK(read_state("root") == 8);
    remove_all("root");
}

/* In a process with a file system of its own. Exit status 0: checked; 1: failed; 2: this machine doesn't allow it. */
static int on_small_disk(void)
{
    const struct training_state_meta meta = meta_of(&tiny, 8, 0, 1);
    if ((unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 || mkdir("disk", 0755) != 0 ||
        mount("tmpfs", "disk", "tmpfs", 0, "size=512k") != 0)
        return 2;
    failures = 0;
    if (chdir("disk") != 0)
        return 2;
    mkdir("root", 0755);
    write_state("root", &tiny, 7, 1);
    no_faults();
    failed_save(__LINE__, &meta, ENOSPC, "reserve 364544 bytes for temporary file");
    fail_call(CALL_RESERVE, -1, EOPNOTSUPP);
    failed_save(__LINE__, &meta, ENOSPC, "write to temporary file");
    remove_all("root");
    WORKS(write_file("root", &meta, false));
    CHECK(read_state("root") == 8);
    return failures == 0 ? 0 : 1;
}

static void test_full_disk(void)
{
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        const int result = on_small_disk();
        fflush(stdout);
        _exit(result);
    }
    int ended = 0;
    CHECK(waitpid(child, &ended, 0) == child && WIFEXITED(ended) && WEXITSTATUS(ended) != 1);
    if (WIFEXITED(ended) && WEXITSTATUS(ended) == 2)
        printf("test_training_state: no file system of its own: a full disk was only simulated\n");
    rmdir("disk");
}

/* ---- Several at once ---- */

static void test_lock(void)
{
    const struct training_state_meta meta = meta_of(&tiny, 7, 0, 1);
    struct training_state_writer *writer, *other;
    WORKS(open_writer("root", &meta, &writer));
    REFUSED(open_writer("root", &meta, &other), STARPULLM_FILE_ERROR, RANK_0,
            ".rank-00000-of-00001.tmp is being written by another process");
    WORKS(write_all(writer, &meta, false));
    WORKS(training_state_commit(writer));
    CHECK(read_state("root") == 7);

    /* What a killed process leaves is taken over. */
    int ready[2];
    CHECK(pipe(ready) == 0);
    const pid_t child = fork();
    if (child == 0) {
        const char byte = open_writer("root", &meta, &writer) == STARPULLM_OK;
        if (write(ready[1], &byte, 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    char byte = 0;
    CHECK(read(ready[0], &byte, 1) == 1 && byte == 1);
    REFUSED(open_writer("root", &meta, &other), STARPULLM_FILE_ERROR, "being written by another process");
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    close(ready[0]);
    close(ready[1]);
    CHECK(entries(FOLDER) == 2 && read_state("root") == 7);
    WORKS(write_file("root", &meta, false));
    CHECK(entries(FOLDER) == 1 && read_state("root") == 7);
    remove_all("root");
}

struct share {
    struct training_state_writer *writer;
    const struct training_state_meta *meta;
    int number;
    status result;
};

static void *write_share(void *argument)
{
    struct share *share = argument;
    struct training_state_tensor tensors[MOST_TENSORS];
    const int count = tensors_of(&share->meta->config, 0, 1, tensors);
    for (int i = 0; i < GROUPS * count && share->result == STARPULLM_OK; i++)
        if (i % 4 == share->number)
            share->result =
                write_tensor(share->writer, share->meta, i / GROUPS, tensors[i / GROUPS], i % GROUPS, i % 3 == 0);
    return NULL;
}

static void test_threads(void)
{
    const struct training_state_meta meta = meta_of(&tiny, 7, 0, 1);
    struct training_state_writer *writer;
    pthread_t threads[4];
    struct share shares[4];
    WORKS(open_writer("root", &meta, &writer));
    for (int i = 0; i < 4; i++) {
        shares[i] = (struct share){writer, &meta, i, STARPULLM_OK};
        CHECK(pthread_create(&threads[i], NULL, write_share, &shares[i]) == 0);
    }
    for (int i = 0; i < 4; i++)
        CHECK(pthread_join(threads[i], NULL) == 0 && shares[i].result == STARPULLM_OK);
    WORKS(training_state_commit(writer));
    check_bytes(__LINE__, RANK_0, &meta);
    remove_all("root");
}

/* ---- Removing old states ---- */

static bool has_step(int64_t step)
{
    return there(joined("root/step-%012" PRId64, step));
}

static void test_prune(void)
{
    for (int64_t step = 10; step <= 60; step += 10)
        write_state("root", &least, step, 2);
    unlink("root/step-000000000020/rank-00001-of-00002.state");
    unlink("root/step-000000000050/rank-00000-of-00002.state");
    mkdir("root/step-000000000045", 0755);
    mkdir("root/other", 0755);
    close(creat("root/step-000000000010/notes.txt", 0644));
    close(creat("root/step-000000000030/.rank-00001-of-00002.tmp", 0644));
    WORKS(training_state_prune("root", 60, 3)); /* 60, 40, 30 */
    CHECK(has_step(60) && !has_step(50) && !has_step(45) && has_step(40) && has_step(30) && !has_step(20));
    CHECK(entries("root/step-000000000010") == 1 && there("root/other")); /* not ours */
    CHECK(read_state("root") == 60);

    /* The step that was saved isn't complete yet: other ranks are still at it. */
    unlink("root/step-000000000060/rank-00001-of-00002.state");
    WORKS(training_state_prune("root", 60, 1));
    CHECK(has_step(60) && has_step(40) && !has_step(30) && read_state("root") == 40);

    /* Later steps are another run's. */
    for (int64_t step = 11; step <= 13; step++)
        write_state("root", &least, step, 1);
    WORKS(training_state_prune("root", 13, 2));
    CHECK(has_step(60) && has_step(40) && has_step(13) && has_step(12) && !has_step(11));
    WORKS(training_state_prune("root", 5, 1));
    CHECK(has_step(60) && has_step(40) && has_step(13) && has_step(12));

    /* Nothing is complete: nothing goes. */
    remove_all("root");
    write_state("root", &least, 7, 2);
    unlink(FOLDER "/rank-00000-of-00002.state");
    WORKS(training_state_prune("root", INT64_MAX, 1));
    CHECK(entries(FOLDER) == 1);
    remove_all("root");

    /* What can't be looked at isn't judged. */
    write_state("root", &least, 5, 1);
    CHECK(symlink("loop", "root/step-000000000007") == 0 && symlink("step-000000000007", "root/loop") == 0);
    REFUSED(training_state_prune("root", 7, 1), STARPULLM_FILE_ERROR, FOLDER);
    REFUSED(try_open("root"), STARPULLM_FILE_ERROR, FOLDER);
    remove_all("root");
}

static void test_prune_at_once(void)
{
    for (int64_t step = 1; step <= 40; step++)
        write_state("root", &least, step, 1);
    pid_t children[4];
    for (int i = 0; i < 4; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            bool good = true;
            for (int keep = 8; keep >= 1; keep--)
                good = good && training_state_prune("root", 40, keep) == STARPULLM_OK;
            if (!good)
                printf("pruning at once: %s\n", last_error());
            fflush(stdout);
            _exit(!good);
        }
    }
    while (has_step(39)) /* a reader in between always finds a state */
        CHECK(read_state("root") == 40);
    for (int i = 0; i < 4; i++) {
        int ended;
        CHECK(waitpid(children[i], &ended, 0) == children[i] && ended == 0);
    }
    CHECK(entries("root") == 1 && read_state("root") == 40);
    remove_all("root");
}

/* ---- Killed while saving ---- */

enum { KILLS = 50, KEPT = 2 };

/* What a run does, without the training: one rank of it. Ends only if something fails. */
static void save_on_and_on(int64_t step, uint64_t run, int32_t rank, int32_t num_ranks)
{
    for (;; step++) {
        struct training_state_meta meta = meta_of(&least, step, rank, num_ranks);
        meta.run = run;
        if (write_file("root", &meta, step % 2 == 0) != STARPULLM_OK)
            break;
        if (rank == 0 && training_state_prune("root", step, KEPT) != STARPULLM_OK)
            break;
    }
    printf("saving on and on, rank %d: %s\n", rank, last_error());
    fflush(stdout);
    _exit(1);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Until the state of a step is complete, and then for a random part of the time that a save takes. */
static void live(int64_t step, double save)
{
    const struct timespec moment = {0, 1000000};
    const double end = now() + 20;
    int64_t newest;
    for (;;) {
        struct training_state *state;
        newest = -1;
        if (training_state_open("root", &state) == STARPULLM_OK)
            newest = training_state_meta(state)->step;
        training_state_close(state);
        if (newest >= step || now() > end)
            break;
        nanosleep(&moment, NULL);
    }
    CHECK(newest >= step);
    const struct timespec rest = {0, (long)next_random((uint64_t)(1e9 * (save < 0.5 ? save : 0.5)) + 1)};
    nanosleep(&rest, NULL);
}

static void killed(int32_t num_ranks)
{
    int64_t newest = 0;
    int in_the_middle = 0;
    const int failures_before = failures;
    const double begin = now();
    write_state("root", &least, 0, num_ranks);
    const double save = now() - begin;
    for (int kills = 0; kills < KILLS; kills++) {
        pid_t children[3];
        fflush(stdout);
        for (int32_t rank = 0; rank < num_ranks; rank++) {
            children[rank] = fork();
            if (children[rank] == 0)
                save_on_and_on(newest + 1, (uint64_t)kills + 1, rank, num_ranks);
        }
        live(newest + (int64_t)next_random(3), save);
        for (int32_t rank = 0; rank < num_ranks; rank++) {
            int ended;
            kill(children[rank], SIGKILL);
            CHECK(waitpid(children[rank], &ended, 0) == children[rank]);
            CHECK(WIFSIGNALED(ended) && WTERMSIG(ended) == SIGKILL);
        }
        const int64_t found = read_state("root");
        CHECK(found >= newest);
        newest = found;
        in_the_middle += has_step(found + 1);
        if (failures > failures_before)
            break;
    }
    CHECK(newest >= KILLS / 2); /* it does get on */
    CHECK(in_the_middle > 0);   /* and was killed in the middle of a save */
    printf("test_training_state: %d ranks, %d kills: %" PRId64 " states, %d killed in the middle of a save\n",
           num_ranks, KILLS, newest, in_the_middle);
    write_state("root", &least, newest + 100, num_ranks);
    WORKS(training_state_prune("root", newest + 100, 1));
    CHECK(entries("root") == 1 && entries(joined("root/step-%012" PRId64, newest + 100)) == num_ranks);
    remove_all("root");
}

/* ---- The writer's thread ---- */

struct note {
    struct writer_job job;
    struct writer *writer;
    int number;
    status result;
    int *order; /* written behind the last number */
    struct note *then;
};

static int noted;

static status note_down(struct writer_job *job)
{
    struct note *note = (struct note *)job;
    if (note->order != NULL)
        note->order[noted++] = note->number;
    if (note->then != NULL)
        writer_enqueue(note->writer, &note->then->job);
    if (note->result == STARPULLM_OK)
        return STARPULLM_OK;
    return note->result == STARPULLM_FILE_ERROR ? fail_errno(note->result, ENOSPC, "note %d", note->number)
                                                : fail(note->result, "note %d", note->number);
}

static atomic_int counted;

static status count_and_free(struct writer_job *job)
{
    atomic_fetch_add(&counted, 1);
    free(job);
    return STARPULLM_OK;
}

static void *enqueue_many(void *argument)
{
    for (int i = 0; i < 1000; i++) {
        struct writer_job *job = must(malloc(sizeof *job));
        job->run = count_and_free;
        writer_enqueue(argument, job);
    }
    return NULL;
}

static void test_writer(void)
{
    struct writer *writer;
    struct note notes[6];
    int order[6];
    WORKS(writer_create(&writer));
    WORKS(writer_wait(writer));
    for (int i = 0; i < 6; i++)
        notes[i] = (struct note){.job = {.run = note_down}, .writer = writer, .number = i, .order = order};
    notes[1].result = STARPULLM_FILE_ERROR;
    notes[2].result = STARPULLM_INVALID_STATE;
    notes[4].then = &notes[5]; /* from a job */
    for (int i = 0; i < 5; i++)
        writer_enqueue(writer, &notes[i].job);
    REFUSED(writer_wait(writer), STARPULLM_FILE_ERROR, "note 1: No space left on device"); /* the first */
    CHECK(last_error_number() == ENOSPC);
    CHECK(noted == 6 && order[5] == 5);
    for (int i = 0; i < 5; i++)
        CHECK(order[i] == i);
    WORKS(writer_status(writer)); /* once */
    notes[3].result = STARPULLM_OUT_OF_MEMORY;
    notes[3].order = NULL;
    writer_enqueue(writer, &notes[3].job);
    status result;
    while ((result = writer_status(writer)) == STARPULLM_OK)
        sched_yield();
    REFUSED(result, STARPULLM_OUT_OF_MEMORY, "note 3");
    WORKS(writer_wait(writer));

    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, enqueue_many, writer) == 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    writer_destroy(writer); /* does what is queued first */
    CHECK(atomic_load(&counted) == 4000);
    writer_destroy(NULL);
}

struct save_job {
    struct writer_job job;
    struct training_state_meta meta;
    bool released;
};

static status save_in_job(struct writer_job *job)
{
    struct save_job *save_job = (struct save_job *)job;
    status result = write_file("root", &save_job->meta, false);
    save_job->released = true;
    return result;
}

/* A disk that fills up in the middle of a save that nobody waits for. */
static void test_failing_in_background(void)
{
    struct writer *writer;
    struct save_job first = {{save_in_job, NULL}, meta_of(&tiny, 7, 0, 1), false};
    struct save_job second = {{save_in_job, NULL}, meta_of(&tiny, 8, 0, 1), false};
    struct save_job third = {{save_in_job, NULL}, meta_of(&tiny, 9, 0, 1), false};
    WORKS(writer_create(&writer));
    writer_enqueue(writer, &first.job);
    WORKS(writer_wait(writer));
    fail_call(CALL_WRITE, 40, ENOSPC);
    writer_enqueue(writer, &second.job);
    REFUSED(writer_wait(writer), STARPULLM_FILE_ERROR, "root/step-000000000008/rank-00000-of-00001.state: byte ",
            "No space left on device");
    CHECK(last_error_number() == ENOSPC && second.released);
    CHECK(entries("root") == 1 && read_state("root") == 7);
    no_faults();
    writer_enqueue(writer, &third.job);
    WORKS(writer_wait(writer));
    CHECK(read_state("root") == 9);
    writer_destroy(writer);
    remove_all("root");
}

int main(int argc, char **argv)
{
    const char *under = argc > 1 ? argv[1] : getenv("TMPDIR");
    char folder[1024];
    snprintf(folder, sizeof folder, "%s/test_training_state-XXXXXX", under != NULL ? under : "/tmp");
    if (mkdtemp(folder) == NULL || chmod(folder, 0755) != 0 || chdir(folder) != 0) {
        printf("test_training_state: %s: %s\n", folder, strerror(errno));
        return 1;
    }
    char *home = must(realpath(".", NULL));
    const int before = open_descriptors();
    setvbuf(stdout, NULL, _IOLBF, 0); /* children inherit no half-written lines */
    signal(SIGXFSZ, SIG_IGN);
    test_writer();
    test_arguments();
    test_format();
    test_direct();
    test_incomplete();
    test_damage();
    test_reading_fails();
    test_failing_calls();
    test_size_limit();
    test_full_disk();
    test_lock();
    test_threads();
    test_prune();
    test_prune_at_once();
    killed(1);
    killed(3);
    test_failing_in_background();
    CHECK(open_descriptors() == before);

    remove_all(".");
    CHECK(entries(".") == 0);
    if (chdir("/") != 0 || rmdir(home) != 0)
        printf("test_training_state: %s could not be removed: %s\n", home, strerror(errno));
    free(home);
    printf("test_training_state: %d checks, %d failed\n", checks, failures);
    return failures == 0 ? 0 : 1;
}
