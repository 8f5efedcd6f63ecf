/* The backward pass of one sub-batch as a task flow, in the order of numerics.md, "Backward". Called by graph/step.c.
 *
 * dresidual names the gradient of the residual stream: residual3's of the block above, and below the first block
 * encoded's. Where keep_activations is off all blocks' residual3 share one gradient buffer: residual_backward has read
 * the block's own before it writes the one below. */
#include "graph/graph.h"

/* The matmul's gradients: of its input in one task, of its weight and bias in another. */
static status matmul_backward(const struct graph_context *context, struct task_place place, struct data *dinp,
                              struct data *dout, struct data *inp, enum parameter weight, enum parameter bias, int l,
                              int s, size_t N, size_t C, size_t OC)
{
    struct contribution dweight, dbias;
    TRY(gradient_contribution(context, weight, l, s, FIRST_PASS, &dweight));
    TRY(gradient_contribution(context, bias, l, s, FIRST_PASS, &dbias));
    TRY(submit_matmul_backward_input(place, dinp, dout, param(context, weight, l), N, C, OC, SUM_FROM_ZERO));
    if (l == 0) /* all that the other workers have to do while one updates wte, before the next forward pass */
        place.priority = PRIORITY_LATER;
    return submit_matmul_backward_weight(place, dweight.data, dbias.data, dout, inp, N, C, OC, dweight.accumulation);
}

static status layernorm_backward(const struct graph_context *context, struct task_place place, struct data *dinp,
                                 struct data *dout, struct data *inp, struct data *mean, struct data *rstd,
                                 enum parameter weight, enum parameter bias, int l, int s, enum sum_start dinp_start)
{
    const size_t N = context->options->B * context->options->T, C = (size_t)context->options->config.channels;
    struct contribution dweight, dbias;
    TRY(gradient_contribution(context, weight, l, s, FIRST_PASS, &dweight));
    TRY(gradient_contribution(context, bias, l, s, FIRST_PASS, &dbias));
    TRY(submit_layernorm_backward_input(place, dinp, dout, inp, mean, rstd, param(context, weight, l), N, C,
                                        dinp_start));
    return submit_layernorm_backward_weight(place, dweight.data, dbias.data, dout, inp, mean, rstd, N, C,
                                            dweight.accumulation);
}

static status block_backward(const struct graph_context *context, int l, int s)
{
    const struct graph_options *g = context->options;
    const size_t B = g->B, T = g->T, N = B * T, C = (size_t)g->config.channels, NH = (size_t)g->config.num_heads;
    const struct task_place place = place_of(context, s, l);
    struct data *residual = l == 0 ? act(context, ACT_ENCODED, 0, s) : act(context, ACT_RESIDUAL3, l - 1, s);
    struct data *dresidual = l == 0 ? act_grad(context, ACT_ENCODED, 0, s) : act_grad(context, ACT_RESIDUAL3, l - 1, s);
    struct data *dresidual3 = act_grad(context, ACT_RESIDUAL3, l, s), *dfcproj = act_grad(context, ACT_FCPROJ, l, s);
    struct data *dfch_gelu = act_grad(context, ACT_FCH_GELU, l, s), *dfch = act_grad(context, ACT_FCH, l, s);
    struct data *dln2 = act_grad(context, ACT_LN2, l, s), *dresidual2 = act_grad(context, ACT_RESIDUAL2, l, s);
    struct data *dattproj = act_grad(context, ACT_ATTPROJ, l, s), *datty = act_grad(context, ACT_ATTY, l, s);
    struct data *dqkv = act_grad(context, ACT_QKV, l, s), *dln1 = act_grad(context, ACT_LN1, l, s);

    TRY(submit_residual_backward(place, dresidual2, dfcproj, dresidual3, N * C, SUM_FROM_ZERO));
    TRY(matmul_backward(context, place, dfch_gelu, dfcproj, act(context, ACT_FCH_GELU, l, s), PARAM_FCPROJW,
                        PARAM_FCPROJB, l, s, N, 4 * C, C));
    TRY(submit_gelu_backward(place, dfch, dfch_gelu, act(context, ACT_FCH, l, s), N * 4 * C, SUM_FROM_ZERO));
    TRY(matmul_backward(context, place, dln2, dfch, act(context, ACT_LN2, l, s), PARAM_FCW, PARAM_FCB, l, s, N, C,
                        4 * C));
    TRY(layernorm_backward(context, place, dresidual2, dln2, act(context, ACT_RESIDUAL2, l, s),
                           act(context, ACT_LN2_MEAN, l, s), act(context, ACT_LN2_RSTD, l, s), PARAM_LN2W, PARAM_LN2B,
                           l, s, SUM_CONTINUES));
    TRY(submit_residual_backward(place, dresidual, dattproj, dresidual2, N * C, SUM_FROM_ZERO));
    TRY(matmul_backward(context, place, datty, dattproj, act(context, ACT_ATTY, l, s), PARAM_ATTPROJW, PARAM_ATTPROJB,
                        l, s, N, C, C));
    TRY(submit_attention_backward(place, dqkv, act_grad(context, ACT_PREATT, l, s), act_grad(context, ACT_ATT, l, s),
                                  datty, act(context, ACT_QKV, l, s), act(context, ACT_ATT, l, s), B, T, C, NH));
    TRY(matmul_backward(context, place, dln1, dqkv, act(context, ACT_LN1, l, s), PARAM_QKVW, PARAM_QKVB, l, s, N, C,
                        3 * C));
    return layernorm_backward(context, place, dresidual, dln1, residual, act(context, ACT_LN1_MEAN, l, s),
                              act(context, ACT_LN1_RSTD, l, s), PARAM_LN1W, PARAM_LN1B, l, s, SUM_CONTINUES);
}

status backward_pass(const struct graph_context *context, int s)
{
    const struct graph_options *g = context->options;
    const size_t N = g->B * g->T, C = (size_t)g->config.channels;
    const size_t V = (size_t)g->config.vocab_size, Vp = (size_t)g->config.padded_vocab_size;
    const int last = g->config.num_layers - 1;
    const struct task_place place = place_of(context, s, -1);
    struct data *dlogits = act_grad(context, ACT_LOGITS, 0, s), *dlnf = act_grad(context, ACT_LNF, 0, s);
    struct contribution dwte;

    TRY(gradient_contribution(context, PARAM_WTE, 0, s, FIRST_PASS, &dwte));
    TRY(submit_crossentropy_softmax_backward(place, dlogits, act_grad(context, ACT_LOSSES, 0, s),
                                             act(context, ACT_PROBS, 0, s),
                                             handles_targets(g->handles, context->slot, s), N, V, Vp, SUM_FROM_ZERO));
    TRY(submit_matmul_backward_input(place, dlnf, dlogits, param(context, PARAM_WTE, 0), N, C, Vp, SUM_FROM_ZERO));
    TRY(submit_matmul_backward_weight(place, dwte.data, NULL, dlogits, act(context, ACT_LNF, 0, s), N, C, Vp,
                                      dwte.accumulation));
    TRY(layernorm_backward(context, place, act_grad(context, ACT_RESIDUAL3, last, s), dlnf,
                           act(context, ACT_RESIDUAL3, last, s), act(context, ACT_LNF_MEAN, 0, s),
                           act(context, ACT_LNF_RSTD, 0, s), PARAM_LNFW, PARAM_LNFB, 0, s, SUM_FROM_ZERO));
    for (int l = last; l >= 0; l--)
        TRY(block_backward(context, l, s));
    return STARPULLM_OK;
}

status encoder_backward_pass(const struct graph_context *context, int s)
{
    const struct graph_options *g = context->options;
    struct contribution dwte, dwpe;
    TRY(gradient_contribution(context, PARAM_WTE, 0, s, SECOND_PASS, &dwte));
    TRY(gradient_contribution(context, PARAM_WPE, 0, s, FIRST_PASS, &dwpe));
    return submit_encoder_backward(place_of(context, s, -1), dwte.data, dwpe.data, act_grad(context, ACT_ENCODED, 0, s),
                                   handles_inputs(g->handles, context->slot, s), g->B, g->T, (size_t)g->config.channels,
                                   (size_t)g->config.max_seq_len, dwte.accumulation, dwpe.accumulation);
}
