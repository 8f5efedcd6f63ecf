/* Reads and writes llm.c's model checkpoints. */
#include "io/checkpoint.h"

#include <inttypes.h>
#include <stdio.h>

#include "io/file.h"

enum {
    VERSION_BFLOAT16 = 5,
    HEADER_CONFIG = 2, /* position of the first size in the header */
    NUM_SIZES = 6,
};

/* The header's sizes, in its order. */
static const struct {
    const char *name;
    size_t offset; /* in model_config */
} sizes[NUM_SIZES] = {
    {"max_seq_len", offsetof(model_config, max_seq_len)},
    {"vocab_size", offsetof(model_config, vocab_size)},
    {"num_layers", offsetof(model_config, num_layers)},
    {"num_heads", offsetof(model_config, num_heads)},
    {"channels", offsetof(model_config, channels)},
    {"padded_vocab_size", offsetof(model_config, padded_vocab_size)},
};

static int32_t *size_of(const model_config *config, int number)
{
    return (int32_t *)((char *)config + sizes[number].offset);
}

static int64_t parameter_position(const model_config *config, enum parameter p, int layer)
{
    return FILE_HEADER_BYTES + (int64_t)sizeof(float) * parameter_offset(config, p, layer);
}

static status read_config(const struct input_file *file, model_config *config)
{
    int32_t header[FILE_HEADER_INTS];
    TRY(input_read_header(file, FORMAT_CHECKPOINT, header));
    if (header[HEADER_VERSION] == VERSION_BFLOAT16)
        return fail(STARPULLM_INVALID_FILE,
                    "%s: byte 4: version is %d (bfloat16), expected 3 (float32): bfloat16 checkpoints can't be read",
                    file->path, VERSION_BFLOAT16);
    TRY(input_check_version(file, FORMAT_CHECKPOINT, header));
    for (int i = 0; i < NUM_SIZES; i++)
        *size_of(config, i) = header[HEADER_CONFIG + i];
    if (model_config_check(config, "bytes 8 to 31") != STARPULLM_OK)
        return fail(STARPULLM_INVALID_FILE, "%s: %s", file->path, last_error());

    char sizes_text[160];
    snprintf(sizes_text, sizeof sizes_text,
             "max_seq_len %" PRId32 ", num_layers %" PRId32 ", channels %" PRId32 ", padded_vocab_size %" PRId32,
             config->max_seq_len, config->num_layers, config->channels, config->padded_vocab_size);
    return input_check_size(file, parameter_position(config, NUM_PARAMETERS, 0), sizes_text);
}

/* On success the file is open. */
static status open_checkpoint(struct input_file *file, const char *path, model_config *config)
{
    TRY(input_open(file, path));
    const status code = read_config(file, config);
    if (code != STARPULLM_OK)
        input_close(file);
    return code;
}

status checkpoint_config(const char *path, model_config *config)
{
    struct input_file file;
    model_config found;
    if (!config)
        return fail(STARPULLM_INVALID_ARGUMENT, "config is NULL, expected a place for the sizes");
    TRY(open_checkpoint(&file, path, &found));
    input_close(&file);
    *config = found;
    return STARPULLM_OK;
}

static status check_same(const char *path, const model_config *found, const model_config *expected)
{
    for (int i = 0; i < NUM_SIZES; i++)
        if (*size_of(found, i) != *size_of(expected, i))
            return fail(STARPULLM_INVALID_FILE, "%s: byte %d: %s is %" PRId32 ", expected %" PRId32 " (this model's)",
                        path, 4 * (HEADER_CONFIG + i), sizes[i].name, *size_of(found, i), *size_of(expected, i));
    return STARPULLM_OK;
}

static status read_parameter(const struct input_file *file, const model_config *config, enum parameter p, int layer,
                             const struct tensor_destination *destination)
{
    float *values = NULL;
    TRY(destination->acquire(destination->context, STARPULLM_PARAMS, p, layer, &values));
    status code = STARPULLM_OK;
    if (values)
        code = input_read(file, values, sizeof values[0], tensor_elements(parameter_shape(config, p)),
                          parameter_position(config, p, layer));
    destination->release(destination->context, STARPULLM_PARAMS, p, layer);
    return code;
}

static status read_parameters(const struct input_file *file, const model_config *config,
                              const struct tensor_destination *destination)
{
    for (enum parameter p = 0; p < NUM_PARAMETERS; p++)
        for (int layer = 0; layer < parameter_instances(config, p); layer++)
            TRY(read_parameter(file, config, p, layer, destination));
    return STARPULLM_OK;
}

status checkpoint_read(const char *path, const model_config *expected, const struct tensor_destination *destination)
{
    struct input_file file;
    model_config config;
    if (!expected || !destination)
        return fail(STARPULLM_INVALID_ARGUMENT, "%s is NULL", expected ? "destination" : "config");
    TRY(open_checkpoint(&file, path, &config));
    status code = check_same(path, &config, expected);
    if (code == STARPULLM_OK)
        code = read_parameters(&file, &config, destination);
    input_close(&file);
    return code;
}

static status write_parameter(struct output_file *file, const model_config *config, enum parameter p, int layer,
                              const struct checkpoint_source *source)
{
    const float *values = NULL;
    TRY(source->acquire(source->context, p, layer, &values));
    const status code = output_write(file, values, sizeof values[0], tensor_elements(parameter_shape(config, p)));
    source->release(source->context, p, layer);
    return code;
}

static status write_model(struct output_file *file, const model_config *config, const struct checkpoint_source *source)
{
    int32_t header[FILE_HEADER_INTS] = {0};
    for (int i = 0; i < NUM_SIZES; i++)
        header[HEADER_CONFIG + i] = *size_of(config, i);
    TRY(output_write_header(file, FORMAT_CHECKPOINT, header));
    for (enum parameter p = 0; p < NUM_PARAMETERS; p++)
        for (int layer = 0; layer < parameter_instances(config, p); layer++)
            TRY(write_parameter(file, config, p, layer, source));
    return STARPULLM_OK;
}

status checkpoint_write(const char *path, const model_config *config, const struct checkpoint_source *source)
{
    struct output_file file;
    if (!config || !source)
        return fail(STARPULLM_INVALID_ARGUMENT, "%s is NULL", config ? "source" : "config");
    TRY(model_config_check(config, "config"));
    TRY(output_open(&file, path));
    const status code = write_model(&file, config, source);
    if (code == STARPULLM_OK)
        return output_commit(&file);
    output_discard(&file);
    return code;
}
