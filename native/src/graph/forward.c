/* The forward pass and the loss of one sub-batch, in the order of numerics.md, "Forward". */
#include "graph/graph.h"

static status layernorm_forward(const struct layer *at, const struct layernorm_tensors *t, struct data *inp)
{
    const struct sizes n = sizes_of(at->context);
    return submit_layernorm_forward(place_of(at), act(at, t->out), act(at, t->mean), act(at, t->rstd), inp,
                                    param(at, t->weight), param(at, t->bias), n.N, n.C);
}

static status matmul_forward(const struct layer *at, const struct matmul_tensors *t)
{
    const struct matmul_sizes m = matmul_sizes_of(at->context, t->weight);
    return submit_matmul_forward(place_of(at), act(at, t->out), act(at, t->inp), param(at, t->weight),
                                 param(at, t->bias), sizes_of(at->context).N, m.C, m.OC);
}

static status block_forward(const struct layer *at)
{
    const struct sizes n = sizes_of(at->context);
    const struct task_place place = place_of(at);
    struct data *residual = block_input(at), *residual2 = act(at, ACT_RESIDUAL2);

    TRY(layernorm_forward(at, &layernorm_1, residual));
    TRY(matmul_forward(at, &matmul_qkv));
    TRY(submit_attention_forward(place, act(at, ACT_ATTY), act(at, ACT_PREATT), act(at, ACT_ATT), act(at, ACT_QKV), n.B,
                                 n.T, n.C, n.NH));
    TRY(matmul_forward(at, &matmul_attproj));
    TRY(submit_residual_forward(place, residual2, residual, act(at, ACT_ATTPROJ), n.N * n.C));
    TRY(layernorm_forward(at, &layernorm_2, residual2));
    TRY(matmul_forward(at, &matmul_fc));
    TRY(submit_gelu_forward(place, act(at, ACT_FCH_GELU), act(at, ACT_FCH), n.N * 4 * n.C));
    TRY(matmul_forward(at, &matmul_fcproj));
    return submit_residual_forward(place, act(at, ACT_RESIDUAL3), residual2, act(at, ACT_FCPROJ), n.N * n.C);
}

status forward_pass(const struct graph_context *context, int s)
{
    const struct graph_options *g = context->options;
    const struct sizes n = sizes_of(context);
    const int L = g->config.num_layers;
    const struct layer at = {context, s, NO_LAYER}, last = {context, s, L - 1};
    const struct task_place place = place_of(&at);
    struct data *wte = param(&at, PARAM_WTE), *logits = act(&at, ACT_LOGITS);

    TRY(submit_encoder_forward(place, act(&at, ACT_ENCODED), handles_inputs(g->handles, context->slot, s), wte,
                               param(&at, PARAM_WPE), n.B, n.T, n.C));
    for (int l = 0; l < L; l++)
        TRY(block_forward(&(struct layer){context, s, l}));
    TRY(layernorm_forward(&at, &layernorm_final, act(&last, ACT_RESIDUAL3)));
    TRY(submit_matmul_forward(place, logits, act(&at, ACT_LNF), wte, NULL, n.N, n.C, n.Vp));
    return submit_softmax_forward(place, act(&at, ACT_PROBS), logits, n.N, n.V, n.Vp);
}

/* The mean loss is one ordered sum over the whole batch: each sub-batch continues it, the last divides it. */
status loss_pass(const struct graph_context *context, int s)
{
    const struct graph_options *g = context->options;
    const struct sizes n = sizes_of(context);
    const struct layer at = {context, s, NO_LAYER};
    struct data *losses = act(&at, ACT_LOSSES);
    const float divisor = s == g->sub_batches - 1 ? (float)(n.N * (size_t)g->sub_batches) : 0.0f;

    TRY(submit_crossentropy_forward(place_of(&at), losses, act(&at, ACT_PROBS),
                                    handles_targets(g->handles, context->slot, s), n.N, n.Vp));
    return submit_mean_loss(place_of(&at), handles_mean_loss(g->handles, context->slot), losses, n.N, divisor,
                            s == 0 ? SUM_FROM_ZERO : SUM_CONTINUES);
}
