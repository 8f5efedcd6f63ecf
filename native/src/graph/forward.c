/* The forward pass and the loss of one sub-batch as a task flow, in the order of numerics.md, "Forward".
 * Called by graph/step.c. */
#include "graph/graph.h"

#include "defects.h"

static status submit_block(const struct flow *flow, int l, int s)
{
    const struct graph *g = flow->graph;
    const size_t B = g->B, T = g->T, N = B * T, C = (size_t)g->config.channels, NH = (size_t)g->config.num_heads;
    const struct task_place place = place_of(flow, s, l);
    struct data *residual = l == 0 ? act(flow, ACT_ENCODED, 0, s) : act(flow, ACT_RESIDUAL3, l - 1, s);
    struct data *ln1 = act(flow, ACT_LN1, l, s), *qkv = act(flow, ACT_QKV, l, s);
    struct data *atty = act(flow, ACT_ATTY, l, s), *attproj = act(flow, ACT_ATTPROJ, l, s);
    struct data *residual2 = act(flow, ACT_RESIDUAL2, l, s), *ln2 = act(flow, ACT_LN2, l, s);
    struct data *fch = act(flow, ACT_FCH, l, s), *fch_gelu = act(flow, ACT_FCH_GELU, l, s);
    struct data *fcproj = act(flow, ACT_FCPROJ, l, s), *residual3 = act(flow, ACT_RESIDUAL3, l, s);

    TRY(submit_layernorm_forward(place, ln1, act(flow, ACT_LN1_MEAN, l, s), act(flow, ACT_LN1_RSTD, l, s), residual,
                                 param(flow, PARAM_LN1W, l), param(flow, PARAM_LN1B, l), N, C));
    TRY(submit_matmul_forward(place, qkv, ln1, param(flow, PARAM_QKVW, l), param(flow, PARAM_QKVB, l), N, C, 3 * C));
    TRY(submit_attention_forward(place, atty, act(flow, ACT_PREATT, l, s), act(flow, ACT_ATT, l, s), qkv, B, T, C, NH));
    TRY(submit_matmul_forward(place, attproj, atty, param(flow, PARAM_ATTPROJW, l), param(flow, PARAM_ATTPROJB, l), N,
                              C, C));
    TRY(submit_residual_forward(place, residual2, residual, attproj, N * C));
    TRY(submit_layernorm_forward(place, ln2, act(flow, ACT_LN2_MEAN, l, s), act(flow, ACT_LN2_RSTD, l, s), residual2,
                                 param(flow, PARAM_LN2W, l), param(flow, PARAM_LN2B, l), N, C));
    TRY(submit_matmul_forward(place, fch, ln2, param(flow, PARAM_FCW, l), param(flow, PARAM_FCB, l), N, C, 4 * C));
    TRY(submit_gelu_forward(place, fch_gelu, fch, N * 4 * C));
    TRY(submit_matmul_forward(place, fcproj, fch_gelu, param(flow, PARAM_FCPROJW, l), param(flow, PARAM_FCPROJB, l), N,
                              4 * C, C));
    return submit_residual_forward(place, residual3, residual2, fcproj, N * C);
}

status submit_forward(const struct flow *flow, int s)
{
    const struct graph *g = flow->graph;
    const size_t N = g->B * g->T, C = (size_t)g->config.channels;
    const size_t V = (size_t)g->config.vocab_size, Vp = (size_t)g->config.padded_vocab_size;
    const int last = g->config.num_layers - 1;
    const struct task_place place = place_of(flow, s, -1);
    struct data *wte = param(flow, PARAM_WTE, 0);
    struct data *lnf = act(flow, ACT_LNF, 0, s), *logits = act(flow, ACT_LOGITS, 0, s);

    TRY(submit_encoder_forward(place, act(flow, ACT_ENCODED, 0, s),
                               handles_inputs(g->handles, flow->slot, DEFECT(sub_batch_tokens) ? 0 : s), wte,
                               param(flow, PARAM_WPE, 0), g->B, g->T, C));
    for (int l = 0; l <= last; l++)
        TRY(submit_block(flow, l, s));
    TRY(submit_layernorm_forward(place, lnf, act(flow, ACT_LNF_MEAN, 0, s), act(flow, ACT_LNF_RSTD, 0, s),
                                 act(flow, ACT_RESIDUAL3, last, s), param(flow, PARAM_LNFW, 0),
                                 param(flow, PARAM_LNFB, 0), N, C));
    TRY(submit_matmul_forward(place, logits, lnf, wte, NULL, N, C, Vp));
    if (DEFECT(stale_probabilities) && flow->submission->number > 0)
        return STARPULLM_OK;
    return submit_softmax_forward(place, act(flow, ACT_PROBS, 0, s), logits, N, V, Vp);
}

/* The mean loss is one ordered sum over the whole batch: each sub-batch continues it, the last divides. */
status submit_losses(const struct flow *flow, int s)
{
    const struct graph *g = flow->graph;
    const size_t N = g->B * g->T;
    const struct task_place place = place_of(flow, s, -1);
    struct data *losses = act(flow, ACT_LOSSES, 0, s);
    const float divisor =
        s == g->sub_batches - 1 ? (float)(N * (size_t)(DEFECT(mean_loss_divisor) ? 1 : g->sub_batches)) : 0.0f;

    TRY(submit_crossentropy_forward(place, losses, act(flow, ACT_PROBS, 0, s),
                                    handles_targets(g->handles, flow->slot, s), N,
                                    (size_t)g->config.padded_vocab_size));
    return submit_mean_loss(place, handles_mean_loss(g->handles, flow->slot), losses, N, divisor,
                            s == 0 ? SUM_FROM_ZERO : SUM_CONTINUES);
}
