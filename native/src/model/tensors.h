/* The model's tensors (tensors.def): every one's name, place in the model, order in the checkpoint and shape. Nothing
 * else in the library knows a tensor's shape.
 *
 * Size letters, here and everywhere: B batch, T sequence length, C channels, NH heads, L layers, V vocabulary,
 * Vp padded vocabulary, maxT the longest sequence the position table has. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

typedef struct starpullm_model_config model_config;

/* The names of its sizes, in their order. */
enum { MODEL_SIZES = sizeof(model_config) / sizeof(int32_t) };
extern const char *const model_size_names[MODEL_SIZES];

/* Refuses sizes that are not positive, C not divisible by NH, Vp < V, and sizes whose byte counts leave 64 bits
 * (a model's checkpoint must fit into INT64_MAX bytes). `where` names the file or argument in the sentence. */
status model_config_check(const model_config *config, const char *where);

/* Parameters, in the checkpoint's order. Gradients, m and v have the same names and shapes. */
enum parameter {
#define PARAMETER(id, ...) PARAM_##id,
#include "model/tensors.def"
    NUM_PARAMETERS
};

/* Activations, in llm.c's order of execution. Their gradients have the same names and shapes. */
enum activation {
#define ACTIVATION(id, ...) ACT_##id,
#include "model/tensors.def"
    NUM_ACTIVATIONS
};

/* The names of enum starpullm_group. */
extern const char *const group_names[STARPULLM_NUM_GROUPS];

/* The matmuls and their tensors; the weight (OC,C) has their sizes. That of the logits has no bias: NUM_PARAMETERS. */
enum matmul { MATMUL_QKV, MATMUL_ATTPROJ, MATMUL_FC, MATMUL_FCPROJ, MATMUL_LOGITS, NUM_MATMULS };
struct matmul_tensors {
    enum activation out, inp;
    enum parameter weight, bias;
};
extern const struct matmul_tensors matmuls[NUM_MATMULS];

enum { TENSOR_MAX_DIMS = 4 };

struct tensor_shape {
    int num_dims;
    int64_t dims[TENSOR_MAX_DIMS];
};

/* Where a tensor or a task is in the model: before the blocks, in a block, or after the blocks. The place of a tensor
 * that each block has is BLOCK, that of such a block its number. */
enum place { HEAD = -2, ENCODER = -1, BLOCK = 0 };

/* Who reads an activation of a block last. */
enum lifetime {
    FORWARD,   /* the block's forward pass */
    ATTENTION, /* its backward pass, which computes it again with STARPULLM_RECOMPUTE_ATTENTION and _BLOCK */
    BACKWARD,  /* likewise with _BLOCK alone */
    NEXT_BLOCK /* another block's */
};

/* READ_BY_WEIGHTS: the gradient of a weight is computed from the activation's. */
enum gradient { NO_GRADIENT, GRADIENT, READ_BY_WEIGHTS };

struct tensor {
    const char *name;
    enum place place;
    unsigned char shape[TENSOR_MAX_DIMS]; /* of tensors.c's letters; of one block's tensor */
    enum lifetime lifetime;               /* of activations */
    enum gradient gradient;
};
extern const struct tensor parameters[NUM_PARAMETERS], activations[NUM_ACTIVATIONS];

/* Shapes of one layer's tensor. Activations are (B,T,…) with the B and T given here; preatt and att are (B,NH,T,T). */
struct tensor_shape tensor_shape(const struct tensor *tensor, const model_config *config, int64_t B, int64_t T);
struct tensor_shape parameter_shape(const model_config *config, enum parameter p);

/* Number of elements; model_config_check() and activations_check() have made sure that it fits. */
int64_t tensor_elements(struct tensor_shape shape);
int64_t parameter_elements(const model_config *config, enum parameter p);

/* Number of instances: L for a tensor of blocks, else 1. */
int tensor_instances(const struct tensor *tensor, const model_config *config);
int parameter_instances(const model_config *config, enum parameter p);

/* Number of the instance (p, layer) of all of them, in the checkpoint's order; how many there are for NUM_PARAMETERS,
 * 0.
 */
int64_t parameter_number(const model_config *config, enum parameter p, int layer);

/* Elements of the parameters before (p, layer) in the checkpoint's body; of all of them for NUM_PARAMETERS, 0. */
int64_t parameter_offset(const model_config *config, enum parameter p, int layer);

/* Refuses positive B, T whose activations' byte counts leave 64 bits. */
status activations_check(const model_config *config, int64_t B, int64_t T);
