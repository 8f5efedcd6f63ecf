/* Reads and writes llm.c's model checkpoints, one parameter tensor of one layer at a time. session.c and api.c call
 * it. */
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
struct header_size {
    const char *name;
    int32_t value;
};

static void sizes_of(const model_config *config, struct header_size sizes[NUM_SIZES])
{
    sizes[0] = (struct header_size){"max_seq_len", config->max_seq_len};
    sizes[1] = (struct header_size){"vocab_size", config->vocab_size};
    sizes[2] = (struct header_size){"num_layers", config->num_layers};
    sizes[3] = (struct header_size){"num_heads", config->num_heads};
    sizes[4] = (struct header_size){"channels", config->channels};
    sizes[5] = (struct header_size){"padded_vocab_size", config->padded_vocab_size};
}

static int64_t parameter_position(const model_config *config, enum parameter p, int layer)
{
    return FILE_HEADER_BYTES + (int64_t)sizeof(float) * parameter_offset(config, p, layer);
}

static status read_config(const struct input_file *file, model_config *config)
{
    int32_t header[FILE_HEADER_INTS];
    status result = input_read_header(file, FORMAT_CHECKPOINT, header);
    if (result != STARPULLM_OK)
        return result;
    if (header[HEADER_VERSION] == VERSION_BFLOAT16)
        return fail(STARPULLM_INVALID_FILE,
                    "%s: byte 4: version is %d (bfloat16), expected 3 (float32): bfloat16 checkpoints can't be read",
                    file->path, VERSION_BFLOAT16);
    result = input_check_version(file, FORMAT_CHECKPOINT, header);
    if (result != STARPULLM_OK)
        return result;

    const int32_t *sizes = header + HEADER_CONFIG;
    *config = (model_config){
        .max_seq_len = sizes[0],
        .vocab_size = sizes[1],
        .num_layers = sizes[2],
        .num_heads = sizes[3],
        .channels = sizes[4],
        .padded_vocab_size = sizes[5],
    };
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
    status result = input_open(file, path);
    if (result != STARPULLM_OK)
        return result;
    result = read_config(file, config);
    if (result != STARPULLM_OK)
        input_close(file);
    return result;
}

status checkpoint_config(const char *path, model_config *config)
{
    struct input_file file;
    model_config found;
    if (config == NULL)
        return fail(STARPULLM_INVALID_ARGUMENT, "config is NULL, expected a place for the sizes");
    status result = open_checkpoint(&file, path, &found);
    if (result != STARPULLM_OK)
        return result;
    input_close(&file);
    *config = found;
    return STARPULLM_OK;
}

static status check_same(const char *path, const model_config *found_config, const model_config *expected_config)
{
    struct header_size found[NUM_SIZES], expected[NUM_SIZES];
    sizes_of(found_config, found);
    sizes_of(expected_config, expected);
    for (int i = 0; i < NUM_SIZES; i++)
        if (found[i].value != expected[i].value)
            return fail(STARPULLM_INVALID_FILE, "%s: byte %d: %s is %" PRId32 ", expected %" PRId32 " (this model's)",
                        path, 4 * (HEADER_CONFIG + i), found[i].name, found[i].value, expected[i].value);
    return STARPULLM_OK;
}

static status read_parameter(const struct input_file *file, const model_config *config, enum parameter p, int layer,
                             const struct checkpoint_destination *destination)
{
    float *values = NULL;
    status result = destination->acquire(destination->context, p, layer, &values);
    if (result != STARPULLM_OK)
        return result;
    if (values != NULL)
        result = input_read(file, values, sizeof values[0], tensor_elements(parameter_shape(config, p)),
                            parameter_position(config, p, layer));
    destination->release(destination->context, p, layer);
    return result;
}

status checkpoint_read(const char *path, const model_config *expected, const struct checkpoint_destination *destination)
{
    struct input_file file;
    model_config config;
    if (expected == NULL || destination == NULL)
        return fail(STARPULLM_INVALID_ARGUMENT, "%s is NULL", expected == NULL ? "config" : "destination");
    status result = open_checkpoint(&file, path, &config);
    if (result != STARPULLM_OK)
        return result;
    result = check_same(path, &config, expected);
    for (enum parameter p = 0; result == STARPULLM_OK && p < NUM_PARAMETERS; p++)
        for (int layer = 0; result == STARPULLM_OK && layer < parameter_instances(&config, p); layer++)
            result = read_parameter(&file, &config, p, layer, destination);
    input_close(&file);
    return result;
}

static status write_header(struct output_file *file, const model_config *config)
{
    int32_t header[FILE_HEADER_INTS] = {0};
    struct header_size sizes[NUM_SIZES];
    sizes_of(config, sizes);
    for (int i = 0; i < NUM_SIZES; i++)
        header[HEADER_CONFIG + i] = sizes[i].value;
    return output_write_header(file, FORMAT_CHECKPOINT, header);
}

static status write_parameter(struct output_file *file, const model_config *config, enum parameter p, int layer,
                              const struct checkpoint_source *source)
{
    const float *values = NULL;
    status result = source->acquire(source->context, p, layer, &values);
    if (result != STARPULLM_OK)
        return result;
    result = output_write(file, values, sizeof values[0], tensor_elements(parameter_shape(config, p)));
    source->release(source->context, p, layer);
    return result;
}

status checkpoint_write(const char *path, const model_config *config, const struct checkpoint_source *source)
{
    struct output_file file;
    if (config == NULL || source == NULL)
        return fail(STARPULLM_INVALID_ARGUMENT, "%s is NULL", config == NULL ? "config" : "source");
    status result = model_config_check(config, "config");
    if (result != STARPULLM_OK)
        return result;
    result = output_open(&file, path);
    if (result != STARPULLM_OK)
        return result;
    result = write_header(&file, config);
    for (enum parameter p = 0; result == STARPULLM_OK && p < NUM_PARAMETERS; p++)
        for (int layer = 0; result == STARPULLM_OK && layer < parameter_instances(config, p); layer++)
            result = write_parameter(&file, config, p, layer, source);
    if (result != STARPULLM_OK) {
        output_discard(&file);
        return result;
    }
    return output_commit(&file);
}
