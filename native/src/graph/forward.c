/* The forward pass and the loss of one sub-batch, in the order of numerics.md, "Forward". */
#include "graph/graph.h"

static status layernorm_forward(const struct layer *at, const struct layernorm_tensors *t, struct data *inp)
{
    const struct sizes n = sizes_of(at->context);
    return SUBMIT(layernorm_forward, attributes_of(at), .out = act(at, t->out), .mean = act(at, t->mean),
                  .rstd = act(at, t->rstd), .inp = inp, .weight = param(at, t->weight), .bias = param(at, t->bias),
                  .N = n.N, .C = n.C);
}

static status matmul_forward(const struct layer *at, const struct matmul_tensors *t)
{
    const struct matmul_sizes m = matmul_sizes_of(at->context, t->weight);
    return SUBMIT(matmul_forward, attributes_of(at), .out = act(at, t->out), .inp = act(at, t->inp),
                  .weight = param(at, t->weight), .bias = param(at, t->bias), .N = sizes_of(at->context).N, .C = m.C,
                  .OC = m.OC);
}

static status residual_forward(const struct layer *at, enum activation out, struct data *a, enum activation b)
{
    const struct sizes n = sizes_of(at->context);
    return SUBMIT(residual_forward, attributes_of(at), .out = act(at, out), .a = a, .b = act(at, b),
                  .count = n.N * n.C);
}

status attention_of_block(const struct layer *at)
{
    const struct sizes n = sizes_of(at->context);
    return SUBMIT(attention_forward, attributes_of(at), .out = act(at, ACT_ATTY), .preatt = act(at, ACT_PREATT),
                  .att = act(at, ACT_ATT), .qkv = act(at, ACT_QKV), .B = n.B, .T = n.T, .C = n.C, .NH = n.NH);
}

status inside_of_block(const struct layer *at)
{
    const struct sizes n = sizes_of(at->context);
    TRY(layernorm_forward(at, &layernorm_1, block_input(at)));
    TRY(matmul_forward(at, &matmuls[MATMUL_QKV]));
    TRY(attention_of_block(at));
    TRY(matmul_forward(at, &matmuls[MATMUL_ATTPROJ]));
    TRY(residual_forward(at, ACT_RESIDUAL2, block_input(at), ACT_ATTPROJ));
    TRY(layernorm_forward(at, &layernorm_2, act(at, ACT_RESIDUAL2)));
    TRY(matmul_forward(at, &matmuls[MATMUL_FC]));
    return SUBMIT(gelu_forward, attributes_of(at), .out = act(at, ACT_FCH_GELU), .inp = act(at, ACT_FCH),
                  .count = n.N * 4 * n.C);
}

static status block_forward(const struct layer *at)
{
    TRY(inside_of_block(at));
    TRY(matmul_forward(at, &matmuls[MATMUL_FCPROJ]));
    return residual_forward(at, ACT_RESIDUAL3, act(at, ACT_RESIDUAL2), ACT_FCPROJ);
}

static status encoder(const struct layer *at)
{
    const struct graph_context *context = at->context;
    const struct sizes n = sizes_of(context);
    return SUBMIT(encoder_forward, attributes_of(at), .out = act(at, ACT_ENCODED),
                  .tokens = handles_inputs(context->handles, context->slot, at->s), .wte = param(at, PARAM_WTE),
                  .wpe = param(at, PARAM_WPE), .B = n.B, .T = n.T, .C = n.C);
}

static status head(const struct layer *at)
{
    const struct sizes n = sizes_of(at->context);
    TRY(layernorm_forward(at, &layernorm_final, block_input(at)));
    TRY(matmul_forward(at, &matmuls[MATMUL_LOGITS]));
    return SUBMIT(softmax_forward, attributes_of(at), .probs = act(at, ACT_PROBS), .logits = act(at, ACT_LOGITS),
                  .N = n.N, .V = n.V, .Vp = n.Vp);
}

status forward_pass(const struct graph_context *context, int s, int stage)
{
    if (stage == 0)
        TRY(encoder(&(struct layer){context, s, ENCODER}));
    for (int l = first_block(context, stage); l < end_of_blocks(context, stage); l++)
        TRY(block_forward(&(struct layer){context, s, l}));
    return has_head(context, stage) ? head(&(struct layer){context, s, HEAD}) : STARPULLM_OK;
}

/* The mean loss is one ordered sum over the whole batch: each sub-batch continues it, the last divides it. */
status loss_pass(const struct graph_context *context, int s, int stage)
{
    if (!has_head(context, stage))
        return STARPULLM_OK;
    const struct workload *g = context->work;
    const struct sizes n = sizes_of(context);
    const struct layer at = {context, s, HEAD};
    struct data *losses = act(&at, ACT_LOSSES);
    const struct sum mean = {handles_mean_loss(context->handles, context->slot),
                             s == 0 ? ACCUMULATION_STARTS : ACCUMULATION_CONTINUES};
    const float divisor = s == g->placement.sub_batches - 1 ? (float)(n.N * (size_t)g->placement.sub_batches) : 0.0f;

    TRY(SUBMIT(crossentropy_forward, attributes_of(&at), .losses = losses, .probs = act(&at, ACT_PROBS),
               .targets = handles_targets(context->handles, context->slot, s), .N = n.N, .Vp = n.Vp));
    return SUBMIT(mean_loss, attributes_of(&at), .mean = mean, .losses = losses, .N = n.N, .divisor = divisor);
}
