/* Header, table, trailer and names of a training state's file, as docs/formats.md has them. */
#include "io/training_state_format.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const enum starpullm_group state_groups[STATE_PARTS] = {STARPULLM_PARAMS, STARPULLM_M, STARPULLM_V};

enum { MAX_FIELD_TEXT = 32 };

/* The header's fields after magic and version. A field takes one word or two, with the bits that it has in memory. */
static const struct field {
    const char *name;
    int word;
    enum { INT32, INT64, HEX64, FLOAT32 } kind;
    enum { MODEL, SAVE, RANK } shared_by; /* RANK: each has its own */
    size_t offset;                        /* in struct training_state_meta */
} fields[] = {
#define FIELD(name, word, kind, shared_by, member) \
    {name, word, kind, shared_by, offsetof(struct training_state_meta, member)}
    FIELD("max_seq_len", 2, INT32, MODEL, config.max_seq_len),
    FIELD("vocab_size", 3, INT32, MODEL, config.vocab_size),
    FIELD("num_layers", 4, INT32, MODEL, config.num_layers),
    FIELD("num_heads", 5, INT32, MODEL, config.num_heads),
    FIELD("channels", 6, INT32, MODEL, config.channels),
    FIELD("padded_vocab_size", 7, INT32, MODEL, config.padded_vocab_size),
    FIELD("rank", 8, INT32, RANK, rank),
    FIELD("number of ranks", 9, INT32, SAVE, num_ranks),
    FIELD("step", 12, INT64, SAVE, step),
    FIELD("run", 14, HEX64, SAVE, run),
    FIELD("number of batches", 16, INT64, SAVE, batches),
    FIELD("batch size", 18, INT64, SAVE, batch_size),
    FIELD("sequence length", 20, INT64, SAVE, seq_len),
    FIELD("seed", 22, INT64, SAVE, seed),
    FIELD("data id", 24, HEX64, SAVE, data_id),
    FIELD("learning rate", 26, FLOAT32, SAVE, learning_rate),
    FIELD("beta1", 27, FLOAT32, SAVE, beta1),
    FIELD("beta2", 28, FLOAT32, SAVE, beta2),
    FIELD("eps", 29, FLOAT32, SAVE, eps),
    FIELD("weight decay", 30, FLOAT32, SAVE, weight_decay),
    FIELD("matmuls by BLAS", 31, INT32, SAVE, blas),
#undef FIELD
};
enum { NUM_FIELDS = sizeof fields / sizeof fields[0] };

/* ---- Words ---- */

static void put_int64(int32_t *word, int64_t value)
{
    word[0] = (int32_t)(uint32_t)((uint64_t)value & UINT32_MAX);
    word[1] = (int32_t)(uint32_t)((uint64_t)value >> 32);
}

static int64_t get_int64(const int32_t *word)
{
    return (int64_t)((uint64_t)(uint32_t)word[1] << 32 | (uint32_t)word[0]);
}

static bool two_words(const struct field *field)
{
    return field->kind == INT64 || field->kind == HEX64;
}

static void put_field(int32_t *words, const struct field *field, const struct training_state_meta *meta)
{
    const char *member = (const char *)meta + field->offset;
    int64_t value;
    if (!two_words(field)) {
        memcpy(words + field->word, member, sizeof words[0]);
        return;
    }
    memcpy(&value, member, sizeof value);
    put_int64(words + field->word, value);
}

static void get_field(struct training_state_meta *meta, const struct field *field, const int32_t *words)
{
    char *member = (char *)meta + field->offset;
    const int64_t value = get_int64(words + field->word);
    if (two_words(field))
        memcpy(member, &value, sizeof value);
    else
        memcpy(member, words + field->word, sizeof words[0]);
}

static const char *field_text(char text[MAX_FIELD_TEXT], const struct field *field,
                              const struct training_state_meta *meta)
{
    union {
        int32_t int32;
        int64_t int64;
        uint64_t hex64;
        float float32;
    } value;
    memcpy(&value, (const char *)meta + field->offset, two_words(field) ? 8 : 4);
    if (field->kind == INT32)
        snprintf(text, MAX_FIELD_TEXT, "%" PRId32, value.int32);
    else if (field->kind == INT64)
        snprintf(text, MAX_FIELD_TEXT, "%" PRId64, value.int64);
    else if (field->kind == HEX64)
        snprintf(text, MAX_FIELD_TEXT, "0x%" PRIx64, value.hex64);
    else
        snprintf(text, MAX_FIELD_TEXT, "%.9g", (double)value.float32);
    return text;
}

/* ---- Header and table ---- */

int64_t state_blocks(int64_t bytes)
{
    return (bytes + STATE_BLOCK - 1) / STATE_BLOCK * STATE_BLOCK;
}

int64_t state_header_bytes(int count)
{
    return state_blocks(FILE_HEADER_BYTES + (int64_t)count * STATE_ENTRY_WORDS * (int64_t)sizeof(int32_t));
}

status state_lay_out(const model_config *config, struct state_entry *entries, int count, int64_t *file_bytes,
                     const char *where)
{
    int64_t end = state_header_bytes(count);
    bool fits = true;
    for (int i = 0; i < count; i++) {
        entries[i].elements = tensor_elements(parameter_shape(config, entries[i].parameter));
        for (int part = 0; part < STATE_PARTS && fits; part++) {
            int64_t bytes = entries[i].elements * (int64_t)sizeof(float);
            entries[i].positions[part] = end;
            fits = bytes <= INT64_MAX - STATE_BLOCK && !__builtin_add_overflow(end, state_blocks(bytes), &end);
        }
    }
    if (!fits || end > INT64_MAX - STATE_BLOCK)
        return fail(STARPULLM_INVALID_ARGUMENT,
                    "%s: the params, m and v of %d tensors are too large, expected at most %" PRId64 " bytes", where,
                    count, INT64_MAX);
    *file_bytes = end + STATE_BLOCK;
    return STARPULLM_OK;
}

status state_meta_check(const struct training_state_meta *meta, status code, const char *where)
{
    const struct {
        const char *name;
        int64_t value, least;
    } numbers[] = {
        {"step", meta->step, 0},
        {"number of batches", meta->batches, 0},
        {"batch size", meta->batch_size, 1},
        {"sequence length", meta->seq_len, 1},
        {"number of ranks", meta->num_ranks, 1},
        {"rank", meta->rank, 0},
    };
    if (model_config_check(&meta->config, where) != STARPULLM_OK)
        return fail(code, "%s", last_error());
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (numbers[i].value < numbers[i].least)
            return fail(code, "%s: %s is %" PRId64 ", expected at least %" PRId64, where, numbers[i].name,
                        numbers[i].value, numbers[i].least);
    if (meta->blas != 0 && meta->blas != 1)
        return fail(code, "%s: matmuls by BLAS is %" PRId32 ", expected 0 or 1", where, meta->blas);
    if (meta->rank >= meta->num_ranks)
        return fail(code, "%s: rank is %" PRId32 ", expected less than the number of ranks (%" PRId32 ")", where,
                    meta->rank, meta->num_ranks);
    return STARPULLM_OK;
}

void state_encode(int32_t *words, const struct training_state_meta *meta, const struct state_entry *entries, int count)
{
    memset(words, 0, (size_t)state_header_bytes(count));
    stamp_header(FORMAT_TRAINING_STATE, words);
    for (int f = 0; f < NUM_FIELDS; f++)
        put_field(words, &fields[f], meta);
    words[STATE_WORD_TENSORS] = count;
    for (int i = 0; i < count; i++) {
        int32_t *entry = words + FILE_HEADER_INTS + i * STATE_ENTRY_WORDS;
        entry[0] = (int32_t)entries[i].parameter;
        entry[1] = entries[i].layer;
        put_int64(entry + 2, entries[i].elements);
        for (int part = 0; part < STATE_PARTS; part++)
            put_int64(entry + 4 + 2 * part, entries[i].positions[part]);
    }
}

void state_decode(struct training_state_meta *meta, const int32_t *words)
{
    memset(meta, 0, sizeof *meta);
    for (int f = 0; f < NUM_FIELDS; f++)
        get_field(meta, &fields[f], words);
}

status state_compare(const char *path, const struct training_state_meta *found,
                     const struct training_state_meta *expected, bool only_model, const char *whose)
{
    char found_text[MAX_FIELD_TEXT], expected_text[MAX_FIELD_TEXT];
    for (int f = 0; f < NUM_FIELDS; f++) {
        const struct field *field = &fields[f];
        if (field->shared_by == RANK || (only_model && field->shared_by != MODEL))
            continue;
        if (memcmp((const char *)found + field->offset, (const char *)expected + field->offset,
                   two_words(field) ? 8 : 4) != 0)
            return fail(STARPULLM_INVALID_FILE, "%s: byte %d: %s is %s, expected %s (%s)", path, 4 * field->word,
                        field->name, field_text(found_text, field, found), field_text(expected_text, field, expected),
                        whose);
    }
    return STARPULLM_OK;
}

/* ---- Trailer ---- */

uint64_t state_fingerprint(const int32_t *words, int64_t bytes)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (int64_t i = 0; i < bytes; i++) {
        hash ^= (uint32_t)words[i / 4] >> i % 4 * 8 & 0xff; /* the file's bytes, whatever the machine's order is */
        hash *= UINT64_C(0x100000001b3);
    }
    return hash;
}

void state_encode_trailer(int32_t words[STATE_BLOCK_WORDS], const struct training_state_meta *meta,
                          uint64_t fingerprint, int64_t file_bytes)
{
    memset(words, 0, STATE_BLOCK);
    stamp_header(FORMAT_TRAINING_STATE, words);
    put_int64(words + 2, meta->step);
    put_int64(words + 4, (int64_t)meta->run);
    words[6] = meta->rank;
    words[7] = meta->num_ranks;
    put_int64(words + 8, (int64_t)fingerprint);
    put_int64(words + 10, file_bytes);
}

/* ---- Names: parsing accepts exactly what is generated ---- */

void state_folder_name(char name[STATE_NAME_BYTES], int64_t step)
{
    snprintf(name, STATE_NAME_BYTES, "step-%012" PRId64, step);
}

bool state_folder_parse(const char *name, int64_t *step)
{
    char same[STATE_NAME_BYTES];
    if (sscanf(name, "step-%" SCNd64, step) != 1 || *step < 0)
        return false;
    state_folder_name(same, *step);
    return strcmp(name, same) == 0;
}

void state_file_name(char name[STATE_NAME_BYTES], int32_t rank, int32_t num_ranks)
{
    snprintf(name, STATE_NAME_BYTES, "rank-%05" PRId32 "-of-%05" PRId32 ".state", rank, num_ranks);
}

bool state_file_parse(const char *name, int32_t *rank, int32_t *num_ranks)
{
    char same[STATE_NAME_BYTES];
    if (sscanf(name, "rank-%" SCNd32 "-of-%" SCNd32, rank, num_ranks) != 2 || *rank < 0 || *rank >= *num_ranks)
        return false;
    state_file_name(same, *rank, *num_ranks);
    return strcmp(name, same) == 0;
}

void state_temporary_name(char name[STATE_NAME_BYTES], int32_t rank, int32_t num_ranks)
{
    snprintf(name, STATE_NAME_BYTES, ".rank-%05" PRId32 "-of-%05" PRId32 ".tmp", rank, num_ranks);
}

bool state_temporary_parse(const char *name)
{
    char same[STATE_NAME_BYTES];
    int32_t rank, num_ranks;
    if (sscanf(name, ".rank-%" SCNd32 "-of-%" SCNd32, &rank, &num_ranks) != 2)
        return false;
    state_temporary_name(same, rank, num_ranks);
    return strcmp(name, same) == 0;
}

int64_t state_instance(const model_config *config, enum parameter p, int layer)
{
    int64_t index = layer;
    for (enum parameter before = 0; before < p; before++)
        index += parameter_instances(config, before);
    return index;
}
