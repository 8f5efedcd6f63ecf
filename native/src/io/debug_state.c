/* llm.c's debug state: a batch with the logits, loss and parameter gradients that PyTorch computed for it.
 *
 * Its header has B and T only, so the model's sizes come from its checkpoint; a file that doesn't have exactly the size
 * that follows from both is refused, as is T > maxT. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>

#include "arguments.h"
#include "io/file.h"
#include "model/tensors.h"

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
    TRY(input_read_header(file, FORMAT_DEBUG_STATE, header));
    TRY(input_check_version(file, FORMAT_DEBUG_STATE, header));
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
    TRY(model_config_check(config, "config"));
    TRY(input_open(file, path));
    const status code = check_header(file, config, layout);
    if (code != STARPULLM_OK)
        input_close(file);
    return code;
}

status starpullm_debug_state_size(const char *path, const struct starpullm_model_config *config, int64_t *batch_size,
                                  int64_t *seq_len)
{
    CHECK_POINTER(path);
    CHECK_POINTER(config);
    CHECK_POINTER(batch_size);
    CHECK_POINTER(seq_len);
    struct input_file file;
    struct layout layout;
    TRY(open_debug_state(&file, path, config, &layout));
    input_close(&file);
    *batch_size = layout.batch_size;
    *seq_len = layout.seq_len;
    return STARPULLM_OK;
}

static status read_section(const struct input_file *file, const struct layout *layout, enum section section,
                           void *values)
{
    if (!values)
        return STARPULLM_OK;
    return input_read(file, values, VALUE_BYTES, layout->count[section], layout->offset[section]);
}

static status read_tokens(const struct input_file *file, const struct layout *layout, enum section section,
                          int32_t vocab_size, int32_t *tokens)
{
    TRY(read_section(file, layout, section, tokens));
    for (int64_t i = 0; tokens && i < layout->count[section]; i++)
        if (tokens[i] < 0 || tokens[i] >= vocab_size)
            return fail(STARPULLM_INVALID_TOKEN,
                        "%s: byte %" PRId64 ": token id is %" PRId32 ", expected 0 to %" PRId32 " (vocab_size - 1)",
                        file->path, layout->offset[section] + VALUE_BYTES * i, tokens[i], vocab_size - 1);
    return STARPULLM_OK;
}

/* The outputs that aren't NULL; after a failure some of them may have been filled. */
struct outputs {
    int32_t *inputs, *targets;
    float *logits, *loss, *grads;
};

static status read_outputs(const struct input_file *file, const struct layout *layout, int32_t vocab_size,
                           const struct outputs *outputs)
{
    TRY(read_tokens(file, layout, INPUTS, vocab_size, outputs->inputs));
    TRY(read_tokens(file, layout, TARGETS, vocab_size, outputs->targets));
    TRY(read_section(file, layout, LOGITS, outputs->logits));
    TRY(read_section(file, layout, LOSS, outputs->loss));
    return read_section(file, layout, GRADS, outputs->grads);
}

status starpullm_debug_state_read(const char *path, const struct starpullm_model_config *config, int32_t *inputs,
                                  int32_t *targets, float *logits, float *loss, float *grads)
{
    CHECK_POINTER(path);
    CHECK_POINTER(config);
    struct input_file file;
    struct layout layout;
    TRY(open_debug_state(&file, path, config, &layout));
    const struct outputs outputs = {inputs, targets, logits, loss, grads};
    const status code = read_outputs(&file, &layout, config->vocab_size, &outputs);
    input_close(&file);
    return code;
}
