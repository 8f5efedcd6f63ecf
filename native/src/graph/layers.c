/* A layer's tensors, its sizes and the attributes of its tasks under the short names that the passes are written in. */
#include "graph/graph.h"

const struct layernorm_tensors layernorm_1 = {ACT_LN1, ACT_LN1_MEAN, ACT_LN1_RSTD, PARAM_LN1W, PARAM_LN1B};
const struct layernorm_tensors layernorm_2 = {ACT_LN2, ACT_LN2_MEAN, ACT_LN2_RSTD, PARAM_LN2W, PARAM_LN2B};
const struct layernorm_tensors layernorm_final = {ACT_LNF, ACT_LNF_MEAN, ACT_LNF_RSTD, PARAM_LNFW, PARAM_LNFB};

status for_each_parameter_at(const struct graph_context *context, int place, visit_parameter *visit)
{
    for (int p = 0; p < NUM_PARAMETERS; p++)
        if ((int)parameters[p].place == (place < BLOCK ? place : BLOCK))
            TRY(visit(context, p, place));
    return STARPULLM_OK;
}

status for_each_parameter(const struct graph_context *context, visit_parameter *visit)
{
    TRY(for_each_parameter_at(context, ENCODER, visit));
    for (int l = 0; l < context->work->config.num_layers; l++)
        TRY(for_each_parameter_at(context, l, visit));
    return for_each_parameter_at(context, HEAD, visit);
}

struct data *param(const struct layer *at, enum parameter p)
{
    const struct handles *handles = at->context->handles;
    return p == NUM_PARAMETERS ? NULL : handles_parameter(handles, STARPULLM_PARAMS, p, at->l);
}

struct data *act(const struct layer *at, enum activation a)
{
    return handles_activation(at->context->handles, STARPULLM_ACTIVATIONS, a, at->l, at->s);
}

struct data *act_grad(const struct layer *at, enum activation a)
{
    return handles_activation(at->context->handles, STARPULLM_ACTIVATION_GRADS, a, at->l, at->s);
}

static struct layer below(const struct layer *at)
{
    const int l = at->l == HEAD ? at->context->work->config.num_layers : at->l;
    return (struct layer){at->context, at->s, l - 1};
}

struct data *block_input(const struct layer *block)
{
    const struct layer before = below(block);
    return block->l == 0 ? act(block, ACT_ENCODED) : act(&before, ACT_RESIDUAL3);
}

struct data *block_input_grad(const struct layer *block)
{
    const struct layer before = below(block);
    return block->l == 0 ? act_grad(block, ACT_ENCODED) : act_grad(&before, ACT_RESIDUAL3);
}

int first_block(const struct graph_context *context, int stage)
{
    return context->work->placement.first_blocks[stage];
}

int end_of_blocks(const struct graph_context *context, int stage)
{
    return context->work->placement.first_blocks[stage + 1];
}

bool has_head(const struct graph_context *context, int stage)
{
    return stage == context->work->placement.stages - 1;
}

struct task_attributes attributes_of(const struct layer *at)
{
    const int home = home_of(&at->context->work->placement, at->s, at->l);
    return (struct task_attributes){at->context->iteration, at->s, at->l, home, at->context->priority};
}

struct task_attributes attributes_on_rank(const struct graph_context *context, int rank, int l)
{
    return (struct task_attributes){context->iteration, -1, l, rank, PRIORITY_DEFAULT};
}

struct sizes sizes_of(const struct graph_context *context)
{
    const struct workload *g = context->work;
    return (struct sizes){
        .B = g->B,
        .T = g->T,
        .N = g->B * g->T,
        .C = (size_t)g->config.channels,
        .NH = (size_t)g->config.num_heads,
        .V = (size_t)g->config.vocab_size,
        .Vp = (size_t)g->config.padded_vocab_size,
        .maxT = (size_t)g->config.max_seq_len,
    };
}

struct matmul_sizes matmul_sizes_of(const struct graph_context *context, enum parameter weight)
{
    const struct tensor_shape shape = parameter_shape(&context->work->config, weight);
    return (struct matmul_sizes){.C = (size_t)shape.dims[1], .OC = (size_t)shape.dims[0]};
}
