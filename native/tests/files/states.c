/* Training states of known content. */
#include "states.h"

#include <stdarg.h>
#include <sys/mman.h>

/* ---- Folders and files ---- */

bool there(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}

const char *joined(const char *format, ...)
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

struct bytes load(const char *path)
{
    struct stat info;
    FILE *file = must(fopen(path, "rb"));
    if (fstat(fileno(file), &info) != 0)
        abort();
    struct bytes bytes = {must(malloc((size_t)info.st_size + 64)), (size_t)info.st_size, 0};
    if (fread(bytes.data, 1, bytes.size, file) != bytes.size)
        abort();
    fclose(file);
    memset(bytes.data + bytes.size, 0x5a, 64);
    return bytes;
}

void put(struct bytes *bytes, size_t position, uint64_t value, size_t width)
{
    for (size_t i = 0; i < width; i++)
        bytes->data[position + i] = (unsigned char)(value >> 8 * i);
}

/* ---- States of known content ---- */

const model_config tiny = {
    .max_seq_len = 4, .vocab_size = 85, .num_layers = 2, .num_heads = 2, .channels = 16, .padded_vocab_size = 90};
const model_config least = {
    .max_seq_len = 1, .vocab_size = 1, .num_layers = 1, .num_heads = 1, .channels = 8, .padded_vocab_size = 160};
const model_config larger = {
    .max_seq_len = 4, .vocab_size = 1100, .num_layers = 1, .num_heads = 2, .channels = 256, .padded_vocab_size = 1100};
const enum starpullm_group groups[] = {STARPULLM_PARAMS, STARPULLM_M, STARPULLM_V};

struct training_state_meta meta_of(const model_config *config, int64_t step, int32_t rank, int32_t num_ranks)
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
                                        .arithmetic = STARPULLM_NO_CONTRACT};
}

/* Bits of all kinds, NaN and subnormals included, that depend on everything. */
uint32_t value_bits(const struct training_state_meta *meta, int group, enum parameter p, int layer, int64_t i)
{
    uint64_t x = (uint64_t)meta->step * 0x9e3779b97f4a7c15u ^ meta->run;
    x = (x ^ (uint64_t)(group * 1000003 + (int)p * 1009 + layer)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27 ^ (uint64_t)i) * 0x94d049bb133111ebu;
    return (uint32_t)(x >> 32);
}

/* All tensors of the model in the checkpoint's order, but only those of one rank: number r, r + R, r + 2R, ... */
int tensors_of(const model_config *config, int32_t rank, int32_t num_ranks,
               struct training_state_tensor tensors[MOST_TENSORS])
{
    int count = 0, number = 0;
    for (enum parameter p = 0; p < NUM_PARAMETERS; p++)
        for (int layer = 0; layer < parameter_instances(config, p); layer++)
            if (number++ % num_ranks == rank)
                tensors[count++] = (struct training_state_tensor){p, layer};
    return count;
}

int64_t elements_of(const model_config *config, enum parameter p)
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
status write_tensor(struct training_state_writer *writer, const struct training_state_meta *meta, int index,
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
    status result = training_state_write(writer, index, group, values);
    munmap(memory, bytes);
    return result;
}

status write_all(struct training_state_writer *writer, const struct training_state_meta *meta, bool unaligned)
{
    struct training_state_tensor tensors[MOST_TENSORS];
    const int count = tensors_of(&meta->config, meta->rank, meta->num_ranks, tensors);
    for (int i = count - 1; i >= 0; i--)
        for (int group = 0; group < GROUPS; group++)
            TRY(write_tensor(writer, meta, i, tensors[i], group, unaligned));
    return STARPULLM_OK;
}

struct state_root open_root(const char *path)
{
    WORKS(training_state_make_folder(path));
    const struct state_root root = {(char *)path, open(path, O_RDONLY | O_DIRECTORY)};
    CHECK(root.descriptor >= 0);
    return root;
}

void close_root(const struct state_root *root)
{
    close(root->descriptor);
}

status open_writer(const struct state_root *root, const struct training_state_meta *meta,
                   struct training_state_writer **writer)
{
    struct training_state_tensor tensors[MOST_TENSORS];
    struct training_state_meta own = *meta;
    own.num_tensors = tensors_of(&meta->config, meta->rank, meta->num_ranks, tensors);
    return training_state_writer_open(root, &own, tensors, writer);
}

static status write_in(const struct state_root *root, const struct training_state_meta *meta, bool unaligned)
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

status write_file(const char *root, const struct training_state_meta *meta, bool unaligned)
{
    TRY(training_state_make_folder(root));
    const struct state_root opened = open_root(root);
    const status result = write_in(&opened, meta, unaligned);
    close_root(&opened);
    return result;
}

status prune(const char *root, int64_t step, int keep)
{
    const struct state_root opened = open_root(root);
    const status result = training_state_prune(&opened, step, keep);
    close_root(&opened);
    return result;
}

void write_state(const char *root, const model_config *config, int64_t step, int32_t num_ranks)
{
    for (int32_t rank = 0; rank < num_ranks; rank++) {
        struct training_state_meta meta = meta_of(config, step, rank, num_ranks);
        WORKS(write_file(root, &meta, false));
    }
}

/* ---- Reading them back ---- */

status acquire(void *context, enum starpullm_group group, enum parameter p, int layer, float **values)
{
    struct reading *reading = context;
    (void)group;
    (void)layer;
    if (reading->refuse > 0 && --reading->refuse == 0)
        return fail(STARPULLM_RUNTIME_FAILURE, "refused");
    reading->tensors++;
    *values = NULL;
    if (reading->skip)
        return STARPULLM_OK;
    reading->held++;
    *values = reading->values = must(malloc((size_t)elements_of(&reading->meta->config, p) * sizeof *reading->values));
    return STARPULLM_OK;
}

void release(void *context, enum starpullm_group group, enum parameter p, int layer)
{
    struct reading *reading = context;
    int number = 0;
    bool same = true;
    reading->held--;
    while (groups[number] != group)
        number++;
    for (int64_t i = 0; i < elements_of(&reading->meta->config, p); i++) {
        uint32_t bits = value_bits(reading->meta, number, p, layer, i);
        same = same && memcmp(&bits, reading->values + i, sizeof bits) == 0;
    }
    reading->wrong += !same;
    free(reading->values);
}

status read_all(struct training_state *state, struct reading *reading)
{
    reading->meta = &state->meta;
    return training_state_read(state, &state->meta.config, &(struct tensor_buffers){reading, acquire, release});
}

/* That the path has a state of this step, whole. Returns the state of no step as -1. */
int64_t read_state(const char *path)
{
    struct training_state *state;
    struct reading reading = {0};
    if (training_state_open(path, &state) != STARPULLM_OK)
        return -1;
    const int64_t step = state->meta.step;
    WORKS(read_all(state, &reading));
    int expected = 0;
    for (enum parameter p = 0; p < NUM_PARAMETERS; p++)
        expected += GROUPS * parameter_instances(&state->meta.config, p);
    CHECK(reading.tensors == expected && reading.wrong == 0 && reading.held == 0);
    training_state_close(state);
    return step;
}

status try_open(const char *path)
{
    struct training_state *state = (struct training_state *)&checks;
    status result = training_state_open(path, &state);
    CHECK((result == STARPULLM_OK) == (state != NULL));
    training_state_close(state);
    return result;
}
