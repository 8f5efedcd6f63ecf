/* Reads and writes llm.c's model checkpoints. */
#include "io/checkpoint.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "io/file.h"

enum { HEADER_CONFIG = 2 }; /* position of the first size in the header, which has them in model_config's order */

static int64_t parameter_position(const model_config *config, enum parameter p, int layer)
{
    return FILE_HEADER_BYTES + (int64_t)sizeof(float) * parameter_offset(config, p, layer);
}

static status read_config(const struct input_file *file, model_config *config)
{
    int32_t header[FILE_HEADER_INTS];
    TRY(input_read_header(file, FORMAT_CHECKPOINT, header));
    memcpy(config, header + HEADER_CONFIG, sizeof *config);
    if (model_config_check(config, "bytes 8 to 31") != STARPULLM_OK)
        return invalid_file("%s: %s", file->path, starpullm_last_error());

    char sizes_text[160];
    snprintf(sizes_text, sizeof sizes_text,
             "max_seq_len %" PRId32 ", num_layers %" PRId32 ", channels %" PRId32 ", padded_vocab_size %" PRId32,
             config->max_seq_len, config->num_layers, config->channels, config->padded_vocab_size);
    return input_check_size(file, parameter_position(config, NUM_PARAMETERS, 0), sizes_text);
}

/* On success the file is open. */
static status open_checkpoint(struct input_file *file, const char *path, model_config *config)
{
    TRY(input_open(file, AT_FDCWD, path, path));
    const status code = read_config(file, config);
    if (code != STARPULLM_OK)
        input_close(file);
    return code;
}

status checkpoint_config(const char *path, model_config *config)
{
    struct input_file file;
    model_config found;
    TRY(open_checkpoint(&file, path, &found));
    input_close(&file);
    *config = found;
    return STARPULLM_OK;
}

status check_same_model(const char *path, const model_config *found, const model_config *expected, const char *whose)
{
    int32_t sizes[2][MODEL_SIZES];
    memcpy(sizes[0], found, sizeof *found);
    memcpy(sizes[1], expected, sizeof *expected);
    for (int i = 0; i < MODEL_SIZES; i++)
        if (sizes[0][i] != sizes[1][i])
            return invalid_file("%s: byte %d: %s is %" PRId32 ", expected %" PRId32 " (%s)", path,
                                4 * (HEADER_CONFIG + i), model_size_names[i], sizes[0][i], sizes[1][i], whose);
    return STARPULLM_OK;
}

static status read_parameters(const struct input_file *file, const model_config *config,
                              const struct tensor_buffers *buffers)
{
    for (enum parameter p = 0; p < NUM_PARAMETERS; p++)
        for (int layer = 0; layer < parameter_instances(config, p); layer++)
            TRY(input_read_tensor(file,
                                  &(struct stored_tensor){STARPULLM_PARAMS, p, layer, parameter_elements(config, p),
                                                          parameter_position(config, p, layer), NULL},
                                  buffers));
    return STARPULLM_OK;
}

status checkpoint_read(const char *path, const model_config *expected, const struct tensor_buffers *buffers)
{
    struct input_file file;
    model_config config;
    TRY(open_checkpoint(&file, path, &config));
    status code = check_same_model(path, &config, expected, "this model's");
    if (code == STARPULLM_OK)
        code = read_parameters(&file, &config, buffers);
    input_close(&file);
    return code;
}

static status write_parameter(const struct output_file *file, const model_config *config, enum parameter p, int layer,
                              const struct tensor_buffers *buffers)
{
    float *values;
    TRY(buffers->acquire(buffers->context, STARPULLM_PARAMS, p, layer, &values));
    const status code = output_write(file, values, parameter_elements(config, p) * (int64_t)sizeof values[0],
                                     parameter_position(config, p, layer));
    buffers->release(buffers->context, STARPULLM_PARAMS, p, layer);
    return code;
}

static status write_model(const struct output_file *file, const model_config *config,
                          const struct tensor_buffers *buffers)
{
    int32_t header[FILE_HEADER_INTS] = {0};
    stamp_header(FORMAT_CHECKPOINT, header);
    memcpy(header + HEADER_CONFIG, config, sizeof *config);
    TRY(output_write(file, header, FILE_HEADER_BYTES, 0));
    for (enum parameter p = 0; p < NUM_PARAMETERS; p++)
        for (int layer = 0; layer < parameter_instances(config, p); layer++)
            TRY(write_parameter(file, config, p, layer, buffers));
    return STARPULLM_OK;
}

status checkpoint_write(const char *path, const model_config *config, const struct tensor_buffers *buffers)
{
    struct output_file file;
    TRY(output_open(&file, path));
    const status code = write_model(&file, config, buffers);
    if (code == STARPULLM_OK)
        return output_commit(&file);
    output_discard(&file);
    return code;
}
