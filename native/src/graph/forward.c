/* The forward pass and the loss of one sub-batch as a task flow, in the order of numerics.md, "Forward".
 * Called by graph/step.c. */
#include "graph/graph.h"

static status block_forward(const struct graph_context *context, int l, int s)
{
    const struct graph_options *g = context->options;
    const size_t B = g->B, T = g->T, N = B * T, C = (size_t)g->config.channels, NH = (size_t)g->config.num_heads;
    const struct task_place place = place_of(context, s, l);
    struct data *residual = l == 0 ? act(context, ACT_ENCODED, 0, s) : act(context, ACT_RESIDUAL3, l - 1, s);
    struct data *ln1 = act(context, ACT_LN1, l, s), *qkv = act(context, ACT_QKV, l, s);
    struct data *atty = act(context, ACT_ATTY, l, s), *attproj = act(context, ACT_ATTPROJ, l, s);
    struct data *residual2 = act(context, ACT_RESIDUAL2, l, s), *ln2 = act(context, ACT_LN2, l, s);
    struct data *fch = act(context, ACT_FCH, l, s), *fch_gelu = act(context, ACT_FCH_GELU, l, s);
    struct data *fcproj = act(context, ACT_FCPROJ, l, s), *residual3 = act(context, ACT_RESIDUAL3, l, s);

    TRY(submit_layernorm_forward(place, ln1, act(context, ACT_LN1_MEAN, l, s), act(context, ACT_LN1_RSTD, l, s),
                                 residual, param(context, PARAM_LN1W, l), param(context, PARAM_LN1B, l), N, C));
    TRY(submit_matmul_forward(place, qkv, ln1, param(context, PARAM_QKVW, l), param(context, PARAM_QKVB, l), N, C,
                              3 * C));
    TRY(submit_attention_forward(place, atty, act(context, ACT_PREATT, l, s), act(context, ACT_ATT, l, s), qkv, B, T, C,
                                 NH));
    TRY(submit_matmul_forward(place, attproj, atty, param(context, PARAM_ATTPROJW, l),
                              param(context, PARAM_ATTPROJB, l), N, C, C));
    TRY(submit_residual_forward(place, residual2, residual, attproj, N * C));
    TRY(submit_layernorm_forward(place, ln2, act(context, ACT_LN2_MEAN, l, s), act(context, ACT_LN2_RSTD, l, s),
                                 residual2, param(context, PARAM_LN2W, l), param(context, PARAM_LN2B, l), N, C));
    TRY(submit_matmul_forward(place, fch, ln2, param(context, PARAM_FCW, l), param(context, PARAM_FCB, l), N, C,
                              4 * C));
    TRY(submit_gelu_forward(place, fch_gelu, fch, N * 4 * C));
    TRY(submit_matmul_forward(place, fcproj, fch_gelu, param(context, PARAM_FCPROJW, l),
                              param(context, PARAM_FCPROJB, l), N, 4 * C, C));
    return submit_residual_forward(place, residual3, residual2, fcproj, N * C);
}

status forward_pass(const struct graph_context *context, int s)
{
    const struct graph_options *g = context->options;
    const size_t N = g->B * g->T, C = (size_t)g->config.channels;
    const size_t V = (size_t)g->config.vocab_size, Vp = (size_t)g->config.padded_vocab_size;
    const int last = g->config.num_layers - 1;
    const struct task_place place = place_of(context, s, -1);
    struct data *wte = param(context, PARAM_WTE, 0);
    struct data *lnf = act(context, ACT_LNF, 0, s), *logits = act(context, ACT_LOGITS, 0, s);

    TRY(submit_encoder_forward(place, act(context, ACT_ENCODED, 0, s), handles_inputs(g->handles, context->slot, s),
                               wte, param(context, PARAM_WPE, 0), g->B, g->T, C));
    for (int l = 0; l <= last; l++)
        TRY(block_forward(context, l, s));
    TRY(submit_layernorm_forward(place, lnf, act(context, ACT_LNF_MEAN, 0, s), act(context, ACT_LNF_RSTD, 0, s),
                                 act(context, ACT_RESIDUAL3, last, s), param(context, PARAM_LNFW, 0),
                                 param(context, PARAM_LNFB, 0), N, C));
    TRY(submit_matmul_forward(place, logits, lnf, wte, NULL, N, C, Vp));
    return submit_softmax_forward(place, act(context, ACT_PROBS, 0, s), logits, N, V, Vp);
}

/* The mean loss is one ordered sum over the whole batch: each sub-batch continues it, the last divides. */
status loss_pass(const struct graph_context *context, int s)
{
    const struct graph_options *g = context->options;
    const size_t N = g->B * g->T;
    const struct task_place place = place_of(context, s, -1);
    struct data *losses = act(context, ACT_LOSSES, 0, s);
    const float divisor = s == g->sub_batches - 1 ? (float)(N * (size_t)g->sub_batches) : 0.0f;

    TRY(submit_crossentropy_forward(place, losses, act(context, ACT_PROBS, 0, s),
                                    handles_targets(g->handles, context->slot, s), N,
                                    (size_t)g->config.padded_vocab_size));
    return submit_mean_loss(place, handles_mean_loss(g->handles, context->slot), losses, N, divisor,
                            s == 0 ? SUM_FROM_ZERO : SUM_CONTINUES);
}
