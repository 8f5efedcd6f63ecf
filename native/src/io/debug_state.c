/* Reads llm.c's debug state. api.c exports it; the parity check compares a step against it. */
#include "io/debug_state.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>

#include "io/file.h"

enum { HEADER_BATCH_SIZE = 2, HEADER_SEQ_LEN = 3, VALUE_BYTES = 4 /* int32 and float alike */ };

/* The body's arrays in the file's order: number of values and first byte. */
enum section { INPUTS, TARGETS, LOGITS, LOSS, GRADS, NUM_SECTIONS };

struct layout {
    int64_t batch_size, seq_len;
    int64_t count[NUM_SECTIONS];
    int64_t offset[NUM_SECTIONS + 1]; /* the last one is the file's size */
};

/* False if the sizes leave 64 bits. */
static bool lay_out(struct layout *layout, const model_config *config, int64_t batch_size, int64_t seq_len)
{
    layout->batch_size = batch_size;
    layout->seq_len = seq_len;
    int64_t tokens = batch_size * seq_len; /* both are positive int32 in the header */
    int64_t logits;
    if (__builtin_mul_overflow(tokens, config->vocab_size, &logits))
        return false;
    layout->count[INPUTS] = tokens;
    layout->count[TARGETS] = tokens;
    layout->count[LOGITS] = logits;
    layout->count[LOSS] = 1;
    layout->count[GRADS] = parameters_total(config);
    layout->offset[0] = FILE_HEADER_BYTES;
    for (int s = 0; s < NUM_SECTIONS; s++) {
        int64_t bytes;
        if (__builtin_mul_overflow(layout->count[s], VALUE_BYTES, &bytes) ||
            __builtin_add_overflow(layout->offset[s], bytes, &layout->offset[s + 1]))
            return false;
    }
    return true;
}

static status check_header(const struct input_file *file, const model_config *config, struct layout *layout)
{
    int32_t header[FILE_HEADER_INTS];
    status result = input_read_header(file, FORMAT_DEBUG_STATE, header);
    if (result == STARPULLM_OK)
        result = input_check_version(file, FORMAT_DEBUG_STATE, header);
    if (result != STARPULLM_OK)
        return result;
    int32_t batch_size = header[HEADER_BATCH_SIZE], seq_len = header[HEADER_SEQ_LEN];
    if (batch_size < 1)
        return fail(STARPULLM_INVALID_FILE, "%s: byte 8: batch size is %" PRId32 ", expected at least 1", file->path,
                    batch_size);
    if (seq_len < 1 || seq_len > config->max_seq_len)
        return fail(STARPULLM_INVALID_FILE,
                    "%s: byte 12: sequence length is %" PRId32 ", expected 1 to %" PRId32 " (the model's max_seq_len)",
                    file->path, seq_len, config->max_seq_len);
    char what[160];
    snprintf(what, sizeof what,
             "batch size %" PRId32 ", sequence length %" PRId32 ", and a model with vocab_size %" PRId32 " and %" PRId64
             " parameters",
             batch_size, seq_len, config->vocab_size, parameters_total(config));
    if (!lay_out(layout, config, batch_size, seq_len))
        return fail(STARPULLM_INVALID_FILE,
                    "%s: bytes 8 to 15: a debug state with %s is too large, expected at most %" PRId64 " bytes",
                    file->path, what, INT64_MAX);
    return input_check_size(file, layout->offset[NUM_SECTIONS], what);
}

/* On success the file is open. */
static status open_debug_state(struct input_file *file, const char *path, const model_config *config,
                               struct layout *layout)
{
    if (config == NULL)
        return fail(STARPULLM_INVALID_ARGUMENT, "config is NULL, expected the model's sizes");
    status result = model_config_check(config, "config");
    if (result != STARPULLM_OK)
        return result;
    result = input_open(file, path);
    if (result != STARPULLM_OK)
        return result;
    result = check_header(file, config, layout);
    if (result != STARPULLM_OK)
        input_close(file);
    return result;
}

status debug_state_size(const char *path, const model_config *config, int64_t *batch_size, int64_t *seq_len)
{
    struct input_file file;
    struct layout layout;
    if (batch_size == NULL || seq_len == NULL)
        return fail(STARPULLM_INVALID_ARGUMENT, "%s is NULL", batch_size == NULL ? "batch_size" : "seq_len");
    status result = open_debug_state(&file, path, config, &layout);
    if (result != STARPULLM_OK)
        return result;
    input_close(&file);
    *batch_size = layout.batch_size;
    *seq_len = layout.seq_len;
    return STARPULLM_OK;
}

static status read_section(const struct input_file *file, const struct layout *layout, enum section section,
                           void *values)
{
    if (values == NULL)
        return STARPULLM_OK;
    return input_read(file, values, VALUE_BYTES, layout->count[section], layout->offset[section]);
}

static status read_tokens(const struct input_file *file, const struct layout *layout, enum section section,
                          int32_t vocab_size, int32_t *tokens)
{
    status result = read_section(file, layout, section, tokens);
    for (int64_t i = 0; result == STARPULLM_OK && tokens != NULL && i < layout->count[section]; i++)
        if (tokens[i] < 0 || tokens[i] >= vocab_size)
            result = fail(STARPULLM_INVALID_TOKEN,
                          "%s: byte %" PRId64 ": token id is %" PRId32 ", expected 0 to %" PRId32 " (vocab_size - 1)",
                          file->path, layout->offset[section] + VALUE_BYTES * i, tokens[i], vocab_size - 1);
    return result;
}

status debug_state_read(const char *path, const model_config *config, int32_t *inputs, int32_t *targets, float *logits,
                        float *loss, float *grads)
{
    struct input_file file;
    struct layout layout;
    status result = open_debug_state(&file, path, config, &layout);
    if (result != STARPULLM_OK)
        return result;
    result = read_tokens(&file, &layout, INPUTS, config->vocab_size, inputs);
    if (result == STARPULLM_OK)
        result = read_tokens(&file, &layout, TARGETS, config->vocab_size, targets);
    if (result == STARPULLM_OK)
        result = read_section(&file, &layout, LOGITS, logits);
    if (result == STARPULLM_OK)
        result = read_section(&file, &layout, LOSS, loss);
    if (result == STARPULLM_OK)
        result = read_section(&file, &layout, GRADS, grads);
    input_close(&file);
    return result;
}
