/* The tables that tensors.def makes, and the sizes that follow from them. */
#include "model/tensors.h"

#include <inttypes.h>
#include <string.h>

const char *const model_size_names[MODEL_SIZES] = {"max_seq_len", "vocab_size", "num_layers",
                                                   "num_heads",   "channels",   "padded_vocab_size"};

const char *const group_names[STARPULLM_NUM_GROUPS] = {"params", "grads", "m", "v", "activations", "activation_grads"};

const struct matmul_tensors matmuls[NUM_MATMULS] = {
    [MATMUL_QKV] = {ACT_QKV, ACT_LN1, PARAM_QKVW, PARAM_QKVB},
    [MATMUL_ATTPROJ] = {ACT_ATTPROJ, ACT_ATTY, PARAM_ATTPROJW, PARAM_ATTPROJB},
    [MATMUL_FC] = {ACT_FCH, ACT_LN2, PARAM_FCW, PARAM_FCB},
    [MATMUL_FCPROJ] = {ACT_FCPROJ, ACT_FCH_GELU, PARAM_FCPROJW, PARAM_FCPROJB},
    [MATMUL_LOGITS] = {ACT_LOGITS, ACT_LNF, PARAM_WTE, NUM_PARAMETERS},
};

/* The sizes that shapes are made of. */
enum letter { END, B, T, C, C_3, C_4, NH, VP, MAX_T };

const struct tensor parameters[NUM_PARAMETERS] = {
#define PARAMETER(id, name_, place_, ...) {.name = #name_, .place = place_, .shape = {__VA_ARGS__}},
#include "model/tensors.def"
};

const struct tensor activations[NUM_ACTIVATIONS] = {
#define ACTIVATION(id, name, place, lifetime, gradient, ...) {#name, place, {__VA_ARGS__}, lifetime, gradient},
#include "model/tensors.def"
};

struct tensor_shape tensor_shape(const struct tensor *tensor, const model_config *config, int64_t batch_size,
                                 int64_t seq_len)
{
    const int64_t channels = config->channels;
    const int64_t sizes[] = {
        [B] = batch_size,
        [T] = seq_len,
        [C] = channels,
        [C_3] = 3 * channels,
        [C_4] = 4 * channels,
        [NH] = config->num_heads,
        [VP] = config->padded_vocab_size,
        [MAX_T] = config->max_seq_len,
    };
    struct tensor_shape shape = {0};
    for (; shape.num_dims < TENSOR_MAX_DIMS && tensor->shape[shape.num_dims] != END; shape.num_dims++)
        shape.dims[shape.num_dims] = sizes[tensor->shape[shape.num_dims]];
    return shape;
}

int tensor_instances(const struct tensor *tensor, const model_config *config)
{
    return tensor->place == BLOCK ? config->num_layers : 1;
}

/* Bytes of all instances of all tensors in the table, as float32; false if they leave 64 bits. */
static bool bytes_of_all(const struct tensor *table, int count, const model_config *config, int64_t batch_size,
                         int64_t seq_len, int64_t *bytes)
{
    *bytes = 0;
    for (int i = 0; i < count; i++) {
        struct tensor_shape shape = tensor_shape(&table[i], config, batch_size, seq_len);
        int64_t size = (int64_t)sizeof(float);
        if (__builtin_mul_overflow(size, tensor_instances(&table[i], config), &size))
            return false;
        for (int d = 0; d < shape.num_dims; d++)
            if (__builtin_mul_overflow(size, shape.dims[d], &size))
                return false;
        if (__builtin_add_overflow(*bytes, size, bytes))
            return false;
    }
    return true;
}

status model_config_check(const model_config *config, const char *where)
{
    int32_t sizes[MODEL_SIZES];
    memcpy(sizes, config, sizeof sizes);
    for (int i = 0; i < MODEL_SIZES; i++)
        if (sizes[i] < 1)
            return invalid_argument("%s: %s is %" PRId32 ", expected at least 1", where, model_size_names[i], sizes[i]);
    if (config->channels % config->num_heads != 0)
        return invalid_argument("%s: channels is %" PRId32 ", expected a multiple of num_heads (%" PRId32 ")", where,
                                config->channels, config->num_heads);
    if (config->padded_vocab_size < config->vocab_size)
        return invalid_argument("%s: padded_vocab_size is %" PRId32 ", expected at least vocab_size (%" PRId32 ")",
                                where, config->padded_vocab_size, config->vocab_size);

    const int64_t header_bytes = 1024; /* of a checkpoint (docs/formats.md) */
    int64_t bytes;
    if (!bytes_of_all(parameters, NUM_PARAMETERS, config, 0, 0, &bytes) || bytes > INT64_MAX - header_bytes)
        return invalid_argument(
            "%s: a checkpoint with max_seq_len %" PRId32 ", num_layers %" PRId32 ", channels %" PRId32
            ", padded_vocab_size %" PRId32 " is too large, expected at most %" PRId64 " bytes",
            where, config->max_seq_len, config->num_layers, config->channels, config->padded_vocab_size, INT64_MAX);
    return STARPULLM_OK;
}

struct tensor_shape parameter_shape(const model_config *config, enum parameter p)
{
    return tensor_shape(&parameters[p], config, 0, 0);
}

int64_t tensor_elements(struct tensor_shape shape)
{
    int64_t elements = 1;
    for (int d = 0; d < shape.num_dims; d++)
        elements *= shape.dims[d];
    return elements;
}

int64_t parameter_elements(const model_config *config, enum parameter p)
{
    return tensor_elements(parameter_shape(config, p));
}

int parameter_instances(const model_config *config, enum parameter p)
{
    return tensor_instances(&parameters[p], config);
}

int64_t parameter_number(const model_config *config, enum parameter p, int layer)
{
    int64_t number = layer;
    for (enum parameter before = 0; before < p; before++)
        number += parameter_instances(config, before);
    return number;
}

int64_t parameter_offset(const model_config *config, enum parameter p, int layer)
{
    int64_t offset = 0;
    for (enum parameter before = 0; before < p; before++)
        offset += parameter_instances(config, before) * parameter_elements(config, before);
    return p == NUM_PARAMETERS ? offset : offset + layer * parameter_elements(config, p);
}

status activations_check(const model_config *config, int64_t batch_size, int64_t seq_len)
{
    int64_t bytes;
    if (!bytes_of_all(activations, NUM_ACTIVATIONS, config, batch_size, seq_len, &bytes))
        return invalid_argument("activations with batch_size %" PRId64 " and seq_len %" PRId64
                                " are too large, expected at most %" PRId64 " bytes",
                                batch_size, seq_len, INT64_MAX);
    return STARPULLM_OK;
}
