/* Tests of status.c, model/tensors.c and io/: every refusal with its sentence, byte-for-byte reading and writing, and
 * interrupted, short and failing system calls. ctest runs it with an optional argument, the folder to work under. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/checkpoint.h"
#include "io/debug_state.h"
#include "io/file.h"
#include "io/tokens.h"
#include "model/tensors.h"
#include "status.h"

/* ---- Harness ---- */

static int checks, failures;

static void check_at(int line, bool passed, const char *what)
{
    checks++;
    if (passed)
        return;
    failures++;
    printf("test_files.c:%d: failed: %s\n    last error: %s\n", line, what, last_error());
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

static struct {
    size_t most;         /* bytes in one call; 0: no limit */
    int interrupt_every; /* every n-th call fails with EINTR; 0: none */
    int fail_at;         /* the n-th call fails, counted from 1; 0: none */
    int error;           /* its errno; 0: the call moves no byte */
    int calls;
} faults;
static int fsync_fail_at, fsync_calls;
static int fsync_error;

static bool fault(size_t *size, ssize_t *result)
{
    faults.calls++;
    if (faults.interrupt_every > 0 && faults.calls % faults.interrupt_every == 0) {
        errno = EINTR;
        *result = -1;
        return true;
    }
    if (faults.fail_at > 0 && faults.calls == faults.fail_at) {
        errno = faults.error;
        *result = faults.error != 0 ? -1 : 0;
        return true;
    }
    if (faults.most > 0 && *size > faults.most)
        *size = faults.most;
    return false;
}

ssize_t pread(int descriptor, void *values, size_t size, off_t offset)
{
    ssize_t result;
    if (fault(&size, &result))
        return result;
    if (lseek(descriptor, offset, SEEK_SET) < 0)
        return -1;
    return read(descriptor, values, size);
}

ssize_t write(int descriptor, const void *values, size_t size)
{
    ssize_t result;
    if (fault(&size, &result))
        return result;
    result = pwrite(descriptor, values, size, lseek(descriptor, 0, SEEK_CUR));
    if (result > 0)
        lseek(descriptor, result, SEEK_CUR);
    return result;
}

int fsync(int descriptor)
{
    struct stat info;
    if (++fsync_calls == fsync_fail_at) {
        errno = fsync_error;
        return -1;
    }
    return fstat(descriptor, &info);
}

static void no_faults(void)
{
    memset(&faults, 0, sizeof faults);
    fsync_fail_at = fsync_calls = fsync_error = 0;
}

/* ---- Files made byte by byte, independently of the library ---- */

struct bytes {
    unsigned char *data;
    size_t size, room;
};

static void *must(void *memory)
{
    if (memory == NULL)
        abort();
    return memory;
}

static void put(struct bytes *bytes, uint64_t value, size_t width)
{
    if (bytes->size + width > bytes->room) {
        bytes->room = 2 * bytes->room + 4096;
        bytes->data = must(realloc(bytes->data, bytes->room));
    }
    for (size_t i = 0; i < width; i++)
        bytes->data[bytes->size++] = (unsigned char)(value >> 8 * i);
}

static void put_int(struct bytes *bytes, int64_t value)
{
    put(bytes, (uint64_t)value, 4);
}

static void put_float(struct bytes *bytes, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put(bytes, bits, 4);
}

static void set_int(struct bytes *bytes, size_t index, int32_t value)
{
    for (size_t i = 0; i < 4; i++)
        bytes->data[4 * index + i] = (unsigned char)((uint32_t)value >> 8 * i);
}

static void put_header(struct bytes *bytes, const int32_t *values, size_t count)
{
    for (size_t i = 0; i < 256; i++)
        put_int(bytes, i < count ? values[i] : 0);
}

/* A new file each time: overwriting one makes some file systems write to disk at once. */
static void save_part(const char *path, const struct bytes *bytes, size_t size)
{
    unlink(path);
    FILE *file = must(fopen(path, "wb"));
    if (fwrite(bytes->data, 1, size, file) != size || fclose(file) != 0)
        abort();
}

static void save(const char *path, const struct bytes *bytes)
{
    save_part(path, bytes, bytes->size);
}

static bool has_bytes(const char *path, const struct bytes *bytes)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return false;
    unsigned char *found = must(malloc(bytes->size + 1));
    size_t size = fread(found, 1, bytes->size + 1, file);
    bool same = size == bytes->size && memcmp(found, bytes->data, size) == 0;
    free(found);
    fclose(file);
    return same;
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
            chmod(path, 0700);
            remove_all(path);
            rmdir(path);
        } else {
            unlink(path);
        }
    }
    closedir(opened);
}

/* What is neither a regular file nor absent. */
static void make_special_files(void)
{
    if (mkdir("folder", 0755) != 0 || mkfifo("fifo", 0644) != 0 || mknod("socket", S_IFSOCK | 0644, 0) != 0)
        abort();
}

static uint64_t random_state = 1;

static uint64_t next_random(uint64_t limit)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % limit;
}

/* ---- status.c ---- */

static void *fail_in_thread(void *unused)
{
    (void)unused;
    bool empty = last_error()[0] == '\0' && last_error_number() == 0;
    fail_errno(STARPULLM_FILE_ERROR, ENOSPC, "another thread");
    return empty ? &failures : NULL;
}

static void test_status(void)
{
    CHECK(strcmp(last_error(), "") == 0 && last_error_number() == 0);
    CHECK(fail(STARPULLM_INVALID_TOKEN, "byte %d of %s", 7, "a file") == STARPULLM_INVALID_TOKEN);
    CHECK(strcmp(last_error(), "byte 7 of a file") == 0 && last_error_number() == 0);
    CHECK(fail_errno(STARPULLM_FILE_ERROR, ENOENT, "%s: open", "a") == STARPULLM_FILE_ERROR);
    CHECK(strcmp(last_error(), "a: open: No such file or directory") == 0 && last_error_number() == ENOENT);

    fail(STARPULLM_INVALID_FILE, "b: %s", last_error());
    CHECK(strcmp(last_error(), "b: a: open: No such file or directory") == 0 && last_error_number() == 0);

    char *longest = must(malloc(100001));
    memset(longest, 'x', 100000);
    longest[100000] = '\0';
    fail(STARPULLM_INVALID_ARGUMENT, "%s", longest);
    CHECK(strlen(last_error()) > 8000 && strcmp(last_error() + strlen(last_error()) - 4, "x...") == 0);
    fail_errno(STARPULLM_FILE_ERROR, ENOENT, "%s", longest);
    CHECK(strstr(last_error(), "x...: No such file or directory") != NULL);
    free(longest);

    pthread_t thread;
    void *was_empty = NULL;
    fail(STARPULLM_INVALID_ARGUMENT, "this thread");
    CHECK(pthread_create(&thread, NULL, fail_in_thread, NULL) == 0 && pthread_join(thread, &was_empty) == 0);
    CHECK(was_empty != NULL);
    CHECK(strcmp(last_error(), "this thread") == 0 && last_error_number() == 0);
}

/* ---- model/tensors.c ---- */

static const model_config tiny = {
    .max_seq_len = 3, .vocab_size = 5, .num_layers = 2, .num_heads = 2, .channels = 4, .padded_vocab_size = 6};
enum { TINY_PARAMETERS = 6 * 4 + 3 * 4 + 2 * (12 * 4 * 4 + 13 * 4) + 2 * 4 };

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
    CHECK(parameters_total(&tiny) == offset);

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
    CHECK(parameters_total(&gpt2) == 124475904);

    WORKS(model_config_check(&tiny, "tiny"));
    WORKS(model_config_check(&gpt2, "gpt2"));
    WORKS(activations_check(&gpt2, 4, 1024));
    REFUSED(activations_check(&tiny, 0, 1), STARPULLM_INVALID_ARGUMENT, "batch_size is 0", "expected at least 1");
    REFUSED(activations_check(&tiny, 1, -2), STARPULLM_INVALID_ARGUMENT, "seq_len is -2", "expected at least 1");
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
    CHECK(1024 + 4 * parameters_total(&largest) == INT64_MAX - 7);
    CHECK(parameters_total(&too_large) == (INT64_C(1) << 61) - 256);
    REFUSED(model_config_check(&too_large, "too_large"), STARPULLM_INVALID_ARGUMENT, "too_large: a checkpoint with",
            "num_layers 296796807", "expected at most 9223372036854775807 bytes");
}

/* ---- io/checkpoint.c ---- */

/* Every parameter is its index in the body, wherever the format puts it. */
static struct bytes make_checkpoint(const model_config *config)
{
    int32_t header[] = {20240326,
                        3,
                        config->max_seq_len,
                        config->vocab_size,
                        config->num_layers,
                        config->num_heads,
                        config->channels,
                        config->padded_vocab_size};
    int64_t Vp = config->padded_vocab_size, maxT = config->max_seq_len, L = config->num_layers, C = config->channels;
    int64_t attention = 3 * C * C + 3 * C + C * C + C, mlp = 4 * C * C + 4 * C + C * 4 * C + C;
    int64_t body = Vp * C + maxT * C + L * (C + C + attention + C + C + mlp) + C + C;
    struct bytes bytes = {0};
    put_header(&bytes, header, sizeof header / sizeof header[0]);
    for (int64_t i = 0; i < body; i++)
        put_float(&bytes, (float)i);
    return bytes;
}

/* Gives a buffer of exactly the right size for each acquire, and can interfere before it does. */
struct parameters {
    const model_config *config;
    int acquired, released;
    int64_t position; /* of the next parameter in the body, if they come in order */
    bool wrong;       /* a value or the order was */
    int interfere_at; /* number of the acquire, from 0 */
    status (*interfere)(void);
    int skip_odd; /* destinations that aren't wanted */
    float *values;
};

static status acquire(struct parameters *parameters, enum parameter p, int layer)
{
    if (parameters->interfere != NULL && parameters->acquired == parameters->interfere_at) {
        status result = parameters->interfere();
        if (result != STARPULLM_OK)
            return result;
    }
    parameters->wrong |= parameters->acquired != parameters->released;
    parameters->wrong |= parameter_offset(parameters->config, p, layer) != parameters->position;
    parameters->acquired++;
    int64_t elements = tensor_elements(parameter_shape(parameters->config, p));
    parameters->values = must(malloc((size_t)elements * sizeof(float)));
    return STARPULLM_OK;
}

static void release(struct parameters *parameters, enum parameter p)
{
    parameters->released++;
    parameters->position += tensor_elements(parameter_shape(parameters->config, p));
    free(parameters->values);
    parameters->values = NULL;
}

static status acquire_destination(void *context, enum parameter p, int layer, float **values)
{
    struct parameters *parameters = context;
    status result = acquire(parameters, p, layer);
    *values = parameters->skip_odd && p % 2 == 1 ? NULL : parameters->values;
    return result;
}

static void release_destination(void *context, enum parameter p, int layer)
{
    struct parameters *parameters = context;
    (void)layer;
    int64_t elements = tensor_elements(parameter_shape(parameters->config, p));
    for (int64_t i = 0; i < elements && !(parameters->skip_odd && p % 2 == 1); i++)
        parameters->wrong |= parameters->values[i] != (float)(parameters->position + i);
    release(parameters, p);
}

static status acquire_source(void *context, enum parameter p, int layer, const float **values)
{
    struct parameters *parameters = context;
    status result = acquire(parameters, p, layer);
    if (result != STARPULLM_OK)
        return result;
    int64_t elements = tensor_elements(parameter_shape(parameters->config, p));
    for (int64_t i = 0; i < elements; i++)
        parameters->values[i] = (float)(parameters->position + i);
    *values = parameters->values;
    return STARPULLM_OK;
}

static void release_source(void *context, enum parameter p, int layer)
{
    (void)layer;
    release(context, p);
}

static status read_into(const char *path, const model_config *config, struct parameters *parameters)
{
    struct checkpoint_destination destination = {parameters, acquire_destination, release_destination};
    parameters->config = config;
    status result = checkpoint_read(path, config, &destination);
    CHECK(parameters->acquired == parameters->released);
    return result;
}

static status read_checkpoint(const char *path, const model_config *config)
{
    struct parameters parameters = {0};
    return read_into(path, config, &parameters);
}

static status write_from(const char *path, const model_config *config, struct parameters *parameters)
{
    struct checkpoint_source source = {parameters, acquire_source, release_source};
    parameters->config = config;
    status result = checkpoint_write(path, config, &source);
    CHECK(parameters->acquired == parameters->released && !parameters->wrong);
    return result;
}

static status write_checkpoint(const char *path, const model_config *config)
{
    struct parameters parameters = {0};
    return write_from(path, config, &parameters);
}

static void test_checkpoint_read(void)
{
    struct bytes bytes = make_checkpoint(&tiny);
    save("model.bin", &bytes);

    model_config config;
    WORKS(checkpoint_config("model.bin", &config));
    CHECK(memcmp(&config, &tiny, sizeof config) == 0);
    struct parameters parameters = {0};
    WORKS(read_into("model.bin", &tiny, &parameters));
    CHECK(!parameters.wrong && parameters.position == parameters_total(&tiny) && parameters.released == 4 + 12 * 2);

    struct parameters half = {.skip_odd = 1};
    WORKS(read_into("model.bin", &tiny, &half));
    CHECK(!half.wrong && half.position == parameters_total(&tiny));

    /* Each of its lengths but the right one, so every boundary of the header and of every tensor, and beyond. */
    put_float(&bytes, 0);
    put_float(&bytes, 0);
    size_t right = bytes.size - 8;
    char found[64], expected[64], difference[64];
    memset(&config, 0x55, sizeof config);
    for (size_t size = 0; size <= bytes.size; size++) {
        if (size == right)
            continue;
        save_part("model.bin", &bytes, size);
        snprintf(found, sizeof found, "is %zu bytes", size);
        snprintf(expected, sizeof expected, size < 1024 ? "expected at least 1024" : "expected %zu ", right);
        if (size > right)
            snprintf(difference, sizeof difference, "too long by %zu bytes", size - right);
        else if (size >= 1024)
            snprintf(difference, sizeof difference, "truncated, %zu bytes are missing", right - size);
        else
            snprintf(difference, sizeof difference, "truncated, at least %zu bytes are missing", 1024 - size);
        REFUSED(checkpoint_config("model.bin", &config), STARPULLM_INVALID_FILE, "model.bin: ", found, expected,
                difference);
        REFUSED(read_checkpoint("model.bin", &tiny), STARPULLM_INVALID_FILE, "model.bin: ", found, expected,
                difference);
    }
    model_config untouched;
    memset(&untouched, 0x55, sizeof untouched);
    CHECK(memcmp(&config, &untouched, sizeof config) == 0);
    free(bytes.data);
}

static void test_checkpoint_header(void)
{
    const int32_t least = INT32_MIN, most = INT32_MAX;
    const struct {
        size_t index;
        int32_t value;
        const char *parts[3];
    } refusals[] = {
        {0, 0, {"byte 0: magic number is 0, ", "expected 20240326 (a model checkpoint)"}},
        {0, -1, {"byte 0: magic number is -1, ", "expected 20240326"}},
        {0, 20240327, {"byte 0: magic number is 20240327 (a debug state)", "expected 20240326 (a model checkpoint)"}},
        {0, 20240328, {"byte 0: magic number is 20240328 (a tokenizer)", "expected 20240326"}},
        {0, 20240520, {"byte 0: magic number is 20240520 (a token file)", "expected 20240326"}},
        {1, 0, {"byte 4: version is 0", "expected 3"}},
        {1, 1, {"byte 4: version is 1", "expected 3"}},
        {1, 2, {"byte 4: version is 2", "expected 3"}},
        {1, 4, {"byte 4: version is 4", "expected 3"}},
        {1, 5, {"byte 4: version is 5 (bfloat16)", "expected 3 (float32)", "bfloat16 checkpoints can't be read"}},
        {1, least, {"byte 4: version is -2147483648", "expected 3"}},
        {2, 0, {"bytes 8 to 31: max_seq_len is 0", "expected at least 1"}},
        {3, 0, {"bytes 8 to 31: vocab_size is 0", "expected at least 1"}},
        {4, 0, {"bytes 8 to 31: num_layers is 0", "expected at least 1"}},
        {5, 0, {"bytes 8 to 31: num_heads is 0", "expected at least 1"}},
        {6, 0, {"bytes 8 to 31: channels is 0", "expected at least 1"}},
        {7, 0, {"bytes 8 to 31: padded_vocab_size is 0", "expected at least 1"}},
        {2, -3, {"max_seq_len is -3", "expected at least 1"}},
        {3, -5, {"vocab_size is -5", "expected at least 1"}},
        {4, -2, {"num_layers is -2", "expected at least 1"}},
        {5, -2, {"num_heads is -2", "expected at least 1"}},
        {6, -4, {"channels is -4", "expected at least 1"}},
        {7, least, {"padded_vocab_size is -2147483648", "expected at least 1"}},
        {5, 3, {"channels is 4", "expected a multiple of num_heads (3)"}},
        {5, 8, {"channels is 4", "expected a multiple of num_heads (8)"}},
        {7, 4, {"padded_vocab_size is 4", "expected at least vocab_size (5)"}},
        {3, 7, {"padded_vocab_size is 6", "expected at least vocab_size (7)"}},
        {2, 4, {"expected 3168 (max_seq_len 4, num_layers 2, channels 4, padded_vocab_size 6)", "truncated, 16 bytes"}},
        {2, 2, {"expected 3136", "too long by 16 bytes"}},
        {4, most, {"truncated", "num_layers 2147483647"}},
        {6, most - 1, {"bytes 8 to 31: a checkpoint with", "channels 2147483646", "at most 9223372036854775807"}},
    };
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        struct bytes bytes = make_checkpoint(&tiny);
        set_int(&bytes, refusals[i].index, refusals[i].value);
        save("model.bin", &bytes);
        free(bytes.data);
        model_config config;
        const char *const *parts = refusals[i].parts;
        REFUSED(checkpoint_config("model.bin", &config), STARPULLM_INVALID_FILE, "model.bin: ", parts[0], parts[1],
                parts[2]);
        REFUSED(read_checkpoint("model.bin", &tiny), STARPULLM_INVALID_FILE, "model.bin: ", parts[0], parts[1],
                parts[2]);
    }

    /* What follows the sizes in the header means nothing. */
    struct bytes bytes = make_checkpoint(&tiny);
    set_int(&bytes, 8, -1);
    set_int(&bytes, 255, -1);
    save("model.bin", &bytes);
    free(bytes.data);
    WORKS(read_checkpoint("model.bin", &tiny));

    /* A model other than the caller's buffers were made for, of the same size (V) and of another (the rest). */
    static const char *const names[] = {"max_seq_len", "vocab_size", "num_layers",
                                        "num_heads",   "channels",   "padded_vocab_size"};
    for (int i = 0; i < 6; i++) {
        int32_t sizes[6];
        model_config other;
        memcpy(sizes, &tiny, sizeof sizes);
        sizes[i] = i == 1 || i == 3 ? 1 : 2 * sizes[i];
        memcpy(&other, sizes, sizeof other);
        struct bytes different = make_checkpoint(&other);
        save("other.bin", &different);
        free(different.data);
        char where[64], limit[32];
        snprintf(where, sizeof where, "other.bin: byte %d: %s is %d", 8 + 4 * i, names[i], sizes[i]);
        memcpy(sizes, &tiny, sizeof sizes);
        snprintf(limit, sizeof limit, "expected %d ", sizes[i]);
        REFUSED(read_checkpoint("other.bin", &tiny), STARPULLM_INVALID_FILE, where, limit);
    }
}

static status truncate_model(void)
{
    return truncate("model.bin", 1500) == 0 ? STARPULLM_OK : STARPULLM_FILE_ERROR;
}

static status refuse(void)
{
    return fail(STARPULLM_RUNTIME_FAILURE, "no access to the data");
}

static void test_checkpoint_reading_fails(void)
{
    struct bytes bytes = make_checkpoint(&tiny);
    model_config config;
    REFUSED(checkpoint_config(NULL, &config), STARPULLM_INVALID_ARGUMENT, "path is NULL");
    REFUSED(checkpoint_config("model.bin", NULL), STARPULLM_INVALID_ARGUMENT, "config is NULL");
    REFUSED(read_checkpoint(NULL, &tiny), STARPULLM_INVALID_ARGUMENT, "path is NULL");
    REFUSED(read_checkpoint("model.bin", NULL), STARPULLM_INVALID_ARGUMENT, "config is NULL");
    REFUSED(checkpoint_read("model.bin", &tiny, NULL), STARPULLM_INVALID_ARGUMENT, "destination is NULL");
    REFUSED(checkpoint_config("nothing.bin", &config), STARPULLM_FILE_ERROR,
            "nothing.bin: open: No such file or directory");
    CHECK(last_error_number() == ENOENT);
    REFUSED(checkpoint_config("", &config), STARPULLM_FILE_ERROR, "open: No such file or directory");

    alarm(20); /* a FIFO without a writer would wait for ever */
    REFUSED(checkpoint_config("folder", &config), STARPULLM_INVALID_FILE, "folder: is a directory",
            "expected a regular file");
    REFUSED(checkpoint_config("fifo", &config), STARPULLM_INVALID_FILE, "fifo: is a FIFO", "expected a regular file");
    REFUSED(checkpoint_config("socket", &config), STARPULLM_INVALID_FILE, "is a socket", "expected a regular file");
    REFUSED(checkpoint_config("/dev/null", &config), STARPULLM_INVALID_FILE, "is a character device", "expected a reg");
    alarm(0);

    for (size_t most = 1; most < 8; most++) {
        save("model.bin", &bytes);
        faults.most = most;
        faults.interrupt_every = 3;
        struct parameters parameters = {0};
        WORKS(read_into("model.bin", &tiny, &parameters));
        CHECK(!parameters.wrong);
        no_faults();
    }

    save("model.bin", &bytes);
    for (int call = 1; call <= 3; call++) { /* header, wte, wpe */
        faults.fail_at = call;
        faults.error = EIO;
        const char *where = call == 1 ? "byte 0: read" : call == 2 ? "byte 1024: read" : "byte 1120: read";
        REFUSED(read_checkpoint("model.bin", &tiny), STARPULLM_FILE_ERROR, "model.bin: ", where, "Input/output error");
        CHECK(last_error_number() == EIO);
        no_faults();
    }
    struct parameters shrinking = {.interfere = truncate_model, .interfere_at = 7};
    REFUSED(read_into("model.bin", &tiny, &shrinking), STARPULLM_INVALID_FILE, "model.bin: byte 1500",
            "expected 116 more bytes", "truncated");
    CHECK(shrinking.acquired == 8);

    save("model.bin", &bytes);
    struct parameters refusing = {.interfere = refuse, .interfere_at = 5};
    REFUSED(read_into("model.bin", &tiny, &refusing), STARPULLM_RUNTIME_FAILURE, "no access to the data");
    CHECK(refusing.acquired == 5);
    free(bytes.data);
}

static mode_t mode_of(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 ? info.st_mode & 07777 : (mode_t)-1;
}

static void test_checkpoint_write(void)
{
    struct bytes bytes = make_checkpoint(&tiny);
    mode_t mask = umask(027);
    unlink("new.bin");
    WORKS(write_checkpoint("new.bin", &tiny));
    CHECK(has_bytes("new.bin", &bytes) && mode_of("new.bin") == 0640);
    struct parameters parameters = {0};
    WORKS(read_into("new.bin", &tiny, &parameters));
    CHECK(!parameters.wrong);

    chmod("new.bin", 0604);
    WORKS(write_checkpoint("new.bin", &tiny));
    CHECK(has_bytes("new.bin", &bytes) && mode_of("new.bin") == 0604);
    umask(mask);

    /* A link stays a link; the file that it names is replaced, in its own folder. */
    unlink("folder/target.bin");
    save_part("folder/target.bin", &bytes, 9);
    CHECK(symlink("folder/target.bin", "link.bin") == 0);
    WORKS(write_checkpoint("link.bin", &tiny));
    struct stat info;
    CHECK(lstat("link.bin", &info) == 0 && S_ISLNK(info.st_mode));
    CHECK(has_bytes("folder/target.bin", &bytes) && entries("folder") == 1);
    unlink("folder/target.bin");
    REFUSED(write_checkpoint("link.bin", &tiny), STARPULLM_FILE_ERROR, "link.bin: follow the symbolic link",
            "No such file or directory");
    unlink("link.bin");

    char absolute[2048], *here = must(realpath(".", NULL));
    snprintf(absolute, sizeof absolute, "%s/folder/new.bin", here);
    free(here);
    WORKS(write_checkpoint(absolute, &tiny));
    CHECK(has_bytes("folder/new.bin", &bytes) && entries("folder") == 1);
    unlink("folder/new.bin");

    char longest[256]; /* the longest name leaves no room for a suffix */
    memset(longest, 'n', 255);
    longest[255] = '\0';
    WORKS(write_checkpoint(longest, &tiny));
    CHECK(has_bytes(longest, &bytes));
    unlink(longest);

    for (size_t most = 1; most < 8; most++) {
        faults.most = most;
        faults.interrupt_every = 3;
        WORKS(write_checkpoint("new.bin", &tiny));
        no_faults();
        CHECK(has_bytes("new.bin", &bytes));
    }

    /* An odd model, larger than one conversion buffer and in several layers. */
    model_config odd = {13, 97, 2, 5, 160, 101};
    struct bytes larger = make_checkpoint(&odd);
    WORKS(write_checkpoint("new.bin", &odd));
    CHECK(has_bytes("new.bin", &larger));
    free(larger.data);
    free(bytes.data);
}

static status replace_by_folder(void)
{
    return unlink("w/model.bin") == 0 && mkdir("w/model.bin", 0755) == 0 ? STARPULLM_OK : STARPULLM_FILE_ERROR;
}

static status remove_temporaries(void)
{
    remove_all("w");
    return STARPULLM_OK;
}

/* That the write was refused, the old file is whole and nothing else is in its folder. */
static void old_file_survives(int line, const struct bytes *old)
{
    check_at(line, has_bytes("w/model.bin", old), "the old file is whole");
    check_at(line, entries("w") == 1, "no temporary file is left");
}

static void test_checkpoint_writing_fails(void)
{
    struct bytes old = {0};
    put_header(&old, &(int32_t){77}, 1);
    mkdir("w", 0755);
    save("w/model.bin", &old);
    const size_t size = 1024 + 4 * TINY_PARAMETERS;

    /* A full disk, as good as: the file may not grow beyond a limit. */
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit, saved;
    CHECK(getrlimit(RLIMIT_FSIZE, &saved) == 0);
    limit = saved;
    const size_t limits[] = {0, 1, 1023, 1024, 1025, 1120, size / 2, size - 1};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        char where[64];
        limit.rlim_cur = limits[i];
        snprintf(where, sizeof where, "byte %zu: write to temporary file .starpullm-", limits[i]);
        fflush(stdout);
        CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
        status result = write_checkpoint("w/model.bin", &tiny);
        CHECK(setrlimit(RLIMIT_FSIZE, &saved) == 0);
        REFUSED(result, STARPULLM_FILE_ERROR, "w/model.bin: ", where, "File too large");
        CHECK(last_error_number() == EFBIG);
        old_file_survives(__LINE__, &old);
    }

    no_faults();
    for (int call = 1; call <= 29; call++) { /* the header and 28 parameters */
        faults.fail_at = call;
        faults.error = ENOSPC;
        status result = write_checkpoint("w/model.bin", &tiny);
        no_faults();
        REFUSED(result, STARPULLM_FILE_ERROR, "w/model.bin: byte ", "write", "No space left on device");
        CHECK(last_error_number() == ENOSPC);
        old_file_survives(__LINE__, &old);
    }
    faults.fail_at = 2;
    REFUSED(write_checkpoint("w/model.bin", &tiny), STARPULLM_FILE_ERROR, "byte 1024: write", "Input/output error");
    no_faults();
    old_file_survives(__LINE__, &old);

    fsync_fail_at = 1;
    fsync_error = EIO;
    REFUSED(write_checkpoint("w/model.bin", &tiny), STARPULLM_FILE_ERROR, "w/model.bin: fsync of temporary file",
            "Input/output error");
    no_faults();
    old_file_survives(__LINE__, &old);

    struct parameters refusing = {.interfere = refuse, .interfere_at = 9};
    REFUSED(write_from("w/model.bin", &tiny, &refusing), STARPULLM_RUNTIME_FAILURE, "no access to the data");
    old_file_survives(__LINE__, &old);

    /* The folder's fsync comes too late to keep the old file, and the sentence says so. */
    fsync_fail_at = 2;
    fsync_error = EIO;
    REFUSED(write_checkpoint("w/model.bin", &tiny), STARPULLM_FILE_ERROR, "w/model.bin: the new file is in place",
            "Input/output error");
    no_faults();
    struct bytes bytes = make_checkpoint(&tiny);
    old_file_survives(__LINE__, &bytes);
    fsync_fail_at = 2;
    fsync_error = EINVAL; /* a file system that doesn't know it */
    WORKS(write_checkpoint("w/model.bin", &tiny));
    fsync_fail_at = 1;
    fsync_calls = 0;
    fsync_error = EINTR;
    WORKS(write_checkpoint("w/model.bin", &tiny));
    no_faults();

    struct parameters changing = {.interfere = replace_by_folder, .interfere_at = 3};
    REFUSED(write_from("w/model.bin", &tiny, &changing), STARPULLM_FILE_ERROR, "w/model.bin: rename temporary file",
            "Is a directory");
    CHECK(entries("w") == 1);
    struct parameters vanishing = {.interfere = remove_temporaries, .interfere_at = 3};
    rmdir("w/model.bin");
    REFUSED(write_from("w/model.bin", &tiny, &vanishing), STARPULLM_FILE_ERROR, "w/model.bin: rename temporary file",
            "No such file or directory");
    CHECK(entries("w") == 0);

    alarm(20);
    REFUSED(write_checkpoint("folder", &tiny), STARPULLM_INVALID_FILE, "folder: is a directory", "expected a regular");
    REFUSED(write_checkpoint("fifo", &tiny), STARPULLM_INVALID_FILE, "fifo: is a FIFO", "expected a regular file");
    REFUSED(write_checkpoint("/dev/null", &tiny), STARPULLM_INVALID_FILE, "/dev/null: is a character device");
    alarm(0);
    REFUSED(write_checkpoint("w/none/model.bin", &tiny), STARPULLM_FILE_ERROR, "w/none/model.bin: open folder w/none",
            "No such file or directory");
    REFUSED(write_checkpoint("fifo/model.bin", &tiny), STARPULLM_FILE_ERROR, "fifo/model.bin: ", "Not a directory");
    REFUSED(write_checkpoint("", &tiny), STARPULLM_INVALID_ARGUMENT, "names no file");
    REFUSED(write_checkpoint("w/new/", &tiny), STARPULLM_INVALID_ARGUMENT, "w/new/: names no file", "expected");
    REFUSED(write_checkpoint(NULL, &tiny), STARPULLM_INVALID_ARGUMENT, "path is NULL");
    REFUSED(checkpoint_write("w/model.bin", NULL, NULL), STARPULLM_INVALID_ARGUMENT, "config is NULL");
    REFUSED(checkpoint_write("w/model.bin", &tiny, NULL), STARPULLM_INVALID_ARGUMENT, "source is NULL");
    model_config wrong = tiny;
    wrong.num_heads = 3;
    REFUSED(write_checkpoint("w/model.bin", &wrong), STARPULLM_INVALID_ARGUMENT, "config: channels is 4",
            "expected a multiple of num_heads (3)");
    CHECK(entries("w") == 0);
    free(bytes.data);
    free(old.data);
}

/* As another user if this one may do everything. */
static void test_permissions(void)
{
    struct bytes bytes = make_checkpoint(&tiny);
    uid_t user = geteuid();
    if (mkdir("closed", 0755) != 0)
        abort();
    save("closed/model.bin", &bytes);
    save("closed/secret.bin", &bytes);
    chmod("closed/secret.bin", 0);
    chmod("closed", 0555);
    const uid_t nobody = 65534;
    if (user == 0 && seteuid(nobody) != 0) {
        printf("test_files: permissions not tested: root can't become another user\n");
    } else {
        REFUSED(write_checkpoint("closed/new.bin", &tiny), STARPULLM_FILE_ERROR,
                "closed/new.bin: ", "Permission denied");
        CHECK(last_error_number() == EACCES);
        REFUSED(write_checkpoint("closed/model.bin", &tiny), STARPULLM_FILE_ERROR,
                "closed/model.bin: ", "Permission denied");
        REFUSED(read_checkpoint("closed/secret.bin", &tiny), STARPULLM_FILE_ERROR, "closed/secret.bin: open",
                "Permission denied");
        if (seteuid(user) != 0)
            abort();
        chmod("closed", 0777);
        if (user == 0 && seteuid(nobody) != 0)
            abort();
        REFUSED(write_checkpoint("closed/secret.bin", &tiny), STARPULLM_FILE_ERROR, "closed/secret.bin: ",
                "Permission denied"); /* write-protected: renaming over it would have been possible */
        if (seteuid(user) != 0)
            abort();
    }
    CHECK(entries("closed") == 2 && has_bytes("closed/model.bin", &bytes));
    chmod("closed", 0755);
    free(bytes.data);
}

/* ---- io/tokens.c ---- */

static struct bytes make_tokens(int32_t count, const uint16_t *ids)
{
    int32_t header[] = {20240520, 1, count};
    struct bytes bytes = {0};
    put_header(&bytes, header, 3);
    for (int32_t i = 0; i < count; i++)
        put(&bytes, ids[i], 2);
    return bytes;
}

static void random_ids(uint16_t *ids, int count, uint16_t limit)
{
    for (int i = 0; i < count; i++)
        ids[i] = (uint16_t)next_random(limit);
}

static struct starpullm_tokens_options options_for(const char *const *paths, size_t num_paths, int64_t B, int64_t T)
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
    status result = tokens_open(options, &tokens);
    CHECK((tokens != NULL) == (result == STARPULLM_OK));
    tokens_close(tokens);
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

static void test_tokens_order(void)
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
            WORKS(tokens_open(&options, &all));
            options.batch_size = B;
            options.num_ranks = ranks;
            for (options.rank = 0; options.rank < ranks; options.rank++)
                WORKS(tokens_open(&options, &of_rank[options.rank]));
            struct literal literals[4];
            for (int r = 0; r < ranks; r++)
                literals[r] = (struct literal){shards, counts, num_shards, 0, 0};

            bool same_as_literal = true, same_as_one_rank = true;
            for (int step = 0; step < STEPS; step++) {
                int32_t one[2][32], found[2][8], expected[2][8];
                if (step % 7 == 3)
                    faults.most = 5, faults.interrupt_every = 2;
                WORKS(tokens_next(all, one[0], one[1]));
                for (int r = 0; r < ranks; r++) {
                    WORKS(tokens_next(of_rank[r], found[0], found[1]));
                    literal_next(&literals[r], expected[0], expected[1], B, T, r, ranks);
                    same_as_literal &= memcmp(found, expected, sizeof found) == 0;
                    same_as_one_rank &= memcmp(found[0], one[0] + 8 * r, sizeof found[0]) == 0;
                    same_as_one_rank &= memcmp(found[1], one[1] + 8 * r, sizeof found[1]) == 0;
                }
                no_faults();
            }
            CHECK(same_as_literal);
            CHECK(same_as_one_rank);
            tokens_close(all);
            for (int r = 0; r < ranks; r++)
                tokens_close(of_rank[r]);
        }
}

static void test_tokens_refused(void)
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

    REFUSED(tokens_open(NULL, &tokens), STARPULLM_INVALID_ARGUMENT, "options is NULL");
    REFUSED(tokens_open(&good, NULL), STARPULLM_INVALID_ARGUMENT, "tokens is NULL");
    tokens_close(NULL);

    static const char *const missing[] = {"a.bin", NULL};
#define WITH(change, ...)                                                       \
    do {                                                                        \
        options = good;                                                         \
        change;                                                                 \
        REFUSED(try_tokens(&options), STARPULLM_INVALID_ARGUMENT, __VA_ARGS__); \
    } while (0)
    WITH(options.size = 8, "options: size is 8", "expected ");
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

static void test_tokens_next_fails(void)
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
    WORKS(tokens_open(&options, &tokens));
    REFUSED(tokens_next(NULL, inputs, targets), STARPULLM_INVALID_ARGUMENT, "tokens is NULL");
    REFUSED(tokens_next(tokens, NULL, targets), STARPULLM_INVALID_ARGUMENT, "inputs is NULL");
    REFUSED(tokens_next(tokens, inputs, NULL), STARPULLM_INVALID_ARGUMENT, "targets is NULL");
    WORKS(tokens_next(tokens, inputs, targets));
    for (int attempt = 0; attempt < 3; attempt++)
        REFUSED(tokens_next(tokens, inputs, targets), STARPULLM_INVALID_TOKEN, "a.bin: byte 1074: token id is 61",
                "expected less than 61");
    CHECK(inputs[0] == ids[0][0] && targets[19] == ids[0][20]);
    tokens_close(tokens);
    options.vocab_size = 62;
    WORKS(tokens_open(&options, &tokens));
    WORKS(tokens_next(tokens, inputs, targets));
    WORKS(tokens_next(tokens, inputs, targets));
    CHECK(inputs[0] == ids[0][20] && inputs[5] == 61);

    /* The next shard vanishes, comes back shorter, is something else, comes back. */
    unlink("b.bin");
    REFUSED(tokens_next(tokens, inputs, targets), STARPULLM_FILE_ERROR, "b.bin: open: No such file or directory");
    struct bytes shorter = make_tokens(40, ids[1]), enough = make_tokens(30, ids[1]);
    save("b.bin", &enough);
    REFUSED(tokens_next(tokens, inputs, targets), STARPULLM_INVALID_FILE, "b.bin: byte 8: number of tokens is 30",
            "expected 41");
    save_part("b.bin", &shorter, shorter.size - 1);
    REFUSED(tokens_next(tokens, inputs, targets), STARPULLM_INVALID_FILE, "b.bin: the file is 1103 bytes",
            "expected 1104");
    unlink("b.bin");
    mkfifo("b.bin", 0644);
    REFUSED(tokens_next(tokens, inputs, targets), STARPULLM_INVALID_FILE, "b.bin: is a FIFO");
    unlink("b.bin");
    save("b.bin", &bytes[1]);
    WORKS(tokens_next(tokens, inputs, targets));
    CHECK(inputs[0] == ids[1][0]);

    /* The open shard may be removed, but not cut. */
    unlink("b.bin");
    WORKS(tokens_next(tokens, inputs, targets));
    CHECK(inputs[0] == ids[1][20]);
    WORKS(tokens_next(tokens, inputs, targets));
    CHECK(inputs[0] == ids[0][0]);
    CHECK(truncate("a.bin", 1080) == 0);
    REFUSED(tokens_next(tokens, inputs, targets), STARPULLM_INVALID_FILE, "a.bin: byte 1080", "expected 26 more bytes",
            "truncated");
    no_faults();
    faults.fail_at = 1;
    faults.error = EIO;
    REFUSED(tokens_next(tokens, inputs, targets), STARPULLM_FILE_ERROR, "a.bin: byte 1064: read", "Input/output error");
    no_faults();
    tokens_close(tokens);
    free(shorter.data);
    free(enough.data);
    free(bytes[0].data);
    free(bytes[1].data);
}

/* Tokens beyond 2 GB, in a file with a hole. */
static void test_tokens_far(void)
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
        WORKS(tokens_open(&options, &tokens));
        WORKS(tokens_next(tokens, &input, &target));
        CHECK(input == 0 && target == 0);
        WORKS(tokens_next(tokens, &input, &target));
        CHECK(input == 0x1234 && target == 0x5678);
        WORKS(tokens_next(tokens, &input, &target)); /* from the start again */
        CHECK(input == 0 && target == 0);
        tokens_close(tokens);
        options.vocab_size = 0x5678;
        WORKS(tokens_open(&options, &tokens));
        WORKS(tokens_next(tokens, &input, &target));
        REFUSED(tokens_next(tokens, &input, &target), STARPULLM_INVALID_TOKEN,
                "far.bin: byte 2800001024: ", "token id is 22136", "expected less than 22136");
        tokens_close(tokens);
    }
    if (descriptor >= 0)
        close(descriptor);
    unlink("far.bin");
}

/* ---- io/debug_state.c ---- */

enum { STATE_B = 2, STATE_T = 3, STATE_N = STATE_B * STATE_T };

/* For tiny: tokens n % V, then each float its index in its section, and loss 5.25. */
static struct bytes make_debug_state(void)
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

static status read_state(const model_config *config)
{
    int64_t batch_size = -1, seq_len = -1;
    status result = debug_state_size("state.bin", config, &batch_size, &seq_len);
    CHECK((batch_size > 0) == (result == STARPULLM_OK) && (seq_len > 0) == (result == STARPULLM_OK));
    if (result != STARPULLM_OK) {
        char sentence[512];
        snprintf(sentence, sizeof sentence, "%s", last_error());
        CHECK(debug_state_read("state.bin", config, NULL, NULL, NULL, NULL, NULL) == result);
        CHECK(strcmp(sentence, last_error()) == 0);
        return result;
    }
    size_t N = (size_t)(batch_size * seq_len), total = (size_t)parameters_total(config);
    int32_t *inputs = must(malloc(N * sizeof inputs[0])), *targets = must(malloc(N * sizeof targets[0]));
    float *logits = must(malloc(N * (size_t)config->vocab_size * sizeof logits[0]));
    float *grads = must(malloc(total * sizeof grads[0])), loss = 0;
    result = debug_state_read("state.bin", config, inputs, targets, logits, &loss, grads);
    free(inputs);
    free(targets);
    free(logits);
    free(grads);
    return result;
}

static void test_debug_state(void)
{
    struct bytes bytes = make_debug_state();
    save("state.bin", &bytes);
    CHECK(parameters_total(&tiny) == TINY_PARAMETERS);
    WORKS(read_state(&tiny));

    int64_t batch_size, seq_len;
    int32_t inputs[STATE_N], targets[STATE_N];
    float logits[STATE_N * 5], loss, grads[TINY_PARAMETERS];
    WORKS(debug_state_size("state.bin", &tiny, &batch_size, &seq_len));
    CHECK(batch_size == STATE_B && seq_len == STATE_T);
    WORKS(debug_state_read("state.bin", &tiny, inputs, NULL, NULL, NULL, NULL));
    WORKS(debug_state_read("state.bin", &tiny, NULL, targets, NULL, NULL, NULL));
    WORKS(debug_state_read("state.bin", &tiny, NULL, NULL, logits, NULL, NULL));
    WORKS(debug_state_read("state.bin", &tiny, NULL, NULL, NULL, &loss, NULL));
    faults.most = 3, faults.interrupt_every = 2;
    WORKS(debug_state_read("state.bin", &tiny, NULL, NULL, NULL, NULL, grads));
    no_faults();
    bool same = loss == 5.25f;
    for (int i = 0; i < STATE_N; i++)
        same &= inputs[i] == i % 5 && targets[i] == (i + STATE_N) % 5;
    for (int i = 0; i < STATE_N * 5; i++)
        same &= logits[i] == (float)i;
    for (int i = 0; i < TINY_PARAMETERS; i++)
        same &= grads[i] == (float)-i;
    CHECK(same);

    REFUSED(debug_state_size(NULL, &tiny, &batch_size, &seq_len), STARPULLM_INVALID_ARGUMENT, "path is NULL");
    REFUSED(debug_state_size("state.bin", NULL, &batch_size, &seq_len), STARPULLM_INVALID_ARGUMENT, "config is NULL");
    REFUSED(debug_state_size("state.bin", &tiny, NULL, &seq_len), STARPULLM_INVALID_ARGUMENT, "batch_size is NULL");
    REFUSED(debug_state_size("state.bin", &tiny, &batch_size, NULL), STARPULLM_INVALID_ARGUMENT, "seq_len is NULL");
    REFUSED(debug_state_read("fifo", &tiny, NULL, NULL, NULL, NULL, NULL), STARPULLM_INVALID_FILE, "fifo: is a FIFO");
    REFUSED(debug_state_read("nothing.bin", &tiny, NULL, NULL, NULL, NULL, NULL), STARPULLM_FILE_ERROR,
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

/* ---- Random damage ---- */

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

static void test_damaged_files(void)
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
            result = tokens_open(&options, &tokens);
            for (int step = 0; result == STARPULLM_OK && step < 6; step++)
                result = tokens_next(tokens, inputs, targets);
            tokens_close(tokens);
        } else {
            result = read_state(&tiny);
        }
        accepted[format] += result == STARPULLM_OK;
        check_at(__LINE__,
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

/* What runs on machines of the other byte order only. */
static void test_reverse_bytes(void)
{
    unsigned char four[] = {1, 2, 3, 4, 5, 6, 7, 8}, two[] = {1, 2, 3, 4};
    reverse_bytes(four, 4, 2);
    reverse_bytes(two, 2, 2);
    CHECK(memcmp(four, (unsigned char[]){4, 3, 2, 1, 8, 7, 6, 5}, 8) == 0);
    CHECK(memcmp(two, (unsigned char[]){2, 1, 4, 3}, 4) == 0);
}

int main(int argc, char **argv)
{
    const char *under = argc > 1 ? argv[1] : getenv("TMPDIR");
    char folder[1024];
    snprintf(folder, sizeof folder, "%s/test_files-XXXXXX", under != NULL ? under : "/tmp");
    if (mkdtemp(folder) == NULL || chmod(folder, 0755) != 0 || chdir(folder) != 0) {
        printf("test_files: %s: %s\n", folder, strerror(errno));
        return 1;
    }
    char *home = must(realpath(".", NULL));
    int before = open_descriptors();
    test_status();
    test_tensors();
    test_largest_model();
    test_reverse_bytes();
    make_special_files();
    test_checkpoint_read();
    test_checkpoint_header();
    test_checkpoint_reading_fails();
    test_checkpoint_write();
    test_checkpoint_writing_fails();
    test_permissions();
    test_tokens_order();
    test_tokens_refused();
    test_tokens_next_fails();
    test_tokens_far();
    test_debug_state();
    test_damaged_files();
    CHECK(open_descriptors() == before);

    remove_all(".");
    CHECK(entries(".") == 0);
    if (chdir("/") != 0 || rmdir(home) != 0)
        printf("test_files: %s could not be removed: %s\n", home, strerror(errno));
    free(home);
    printf("test_files: %d checks, %d failed\n", checks, failures);
    return failures == 0 ? 0 : 1;
}
