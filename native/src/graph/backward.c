/* The backward pass of one sub-batch, in the order of numerics.md, "Backward".
 *
 * dresidual is the gradient of the residual stream that enters a block: residual3's of the block below, or encoded's
 * below the first block. Without keep_activations residual3's gradient is one buffer for all blocks: residual_backward
 * reads the block's own gradient before it writes that of the block below. */
#include "graph/graph.h"

/* The matmul's gradients: of its input in one task, of its weight and bias in another. */
static status matmul_backward(const struct layer *at, const struct matmul_tensors *t)
{
    const size_t N = sizes_of(at->context).N;
    const struct matmul_sizes m = matmul_sizes_of(at->context, t->weight);
    struct task_place place = place_of(at);
    struct data *dout = act_grad(at, t->out);
    struct contribution dweight, dbias;
    TRY(prepare_contribution(at, t->weight, FIRST_SWEEP, &dweight));
    TRY(prepare_contribution(at, t->bias, FIRST_SWEEP, &dbias));
    TRY(submit_matmul_backward_input(place, act_grad(at, t->inp), dout, param(at, t->weight), N, m.C, m.OC,
                                     SUM_FROM_ZERO));
    if (at->l == 0) /* the other workers compute these while one updates wte, before the next forward pass begins */
        place.priority = PRIORITY_LATER;
    return submit_matmul_backward_weight(place, dweight.data, dbias.data, dout, act(at, t->inp), N, m.C, m.OC,
                                         dweight.accumulation);
}

static status layernorm_backward(const struct layer *at, const struct layernorm_tensors *t, struct data *dinp,
                                 struct data *inp, enum sum_start dinp_start)
{
    const struct sizes n = sizes_of(at->context);
    const struct task_place place = place_of(at);
    struct data *dout = act_grad(at, t->out), *mean = act(at, t->mean), *rstd = act(at, t->rstd);
    struct contribution dweight, dbias;
    TRY(prepare_contribution(at, t->weight, FIRST_SWEEP, &dweight));
    TRY(prepare_contribution(at, t->bias, FIRST_SWEEP, &dbias));
    TRY(submit_layernorm_backward_input(place, dinp, dout, inp, mean, rstd, param(at, t->weight), n.N, n.C,
                                        dinp_start));
    return submit_layernorm_backward_weight(place, dweight.data, dbias.data, dout, inp, mean, rstd, n.N, n.C,
                                            dweight.accumulation);
}

static status block_backward(const struct layer *at)
{
    const struct sizes n = sizes_of(at->context);
    const struct task_place place = place_of(at);
    struct data *dresidual = block_input_grad(at), *dresidual2 = act_grad(at, ACT_RESIDUAL2);

    TRY(submit_residual_backward(place, dresidual2, act_grad(at, ACT_FCPROJ), act_grad(at, ACT_RESIDUAL3), n.N * n.C,
                                 SUM_FROM_ZERO));
    TRY(matmul_backward(at, &matmul_fcproj));
    TRY(submit_gelu_backward(place, act_grad(at, ACT_FCH), act_grad(at, ACT_FCH_GELU), act(at, ACT_FCH), n.N * 4 * n.C,
                             SUM_FROM_ZERO));
    TRY(matmul_backward(at, &matmul_fc));
    TRY(layernorm_backward(at, &layernorm_2, dresidual2, act(at, ACT_RESIDUAL2), SUM_CONTINUES));
    TRY(submit_residual_backward(place, dresidual, act_grad(at, ACT_ATTPROJ), dresidual2, n.N * n.C, SUM_FROM_ZERO));
    TRY(matmul_backward(at, &matmul_attproj));
    TRY(submit_attention_backward(place, act_grad(at, ACT_QKV), act_grad(at, ACT_PREATT), act_grad(at, ACT_ATT),
                                  act_grad(at, ACT_ATTY), act(at, ACT_QKV), act(at, ACT_ATT), n.B, n.T, n.C, n.NH));
    TRY(matmul_backward(at, &matmul_qkv));
    return layernorm_backward(at, &layernorm_1, dresidual, block_input(at), SUM_CONTINUES);
}

status backward_pass(const struct graph_context *context, int s)
{
    const struct graph_options *g = context->options;
    const struct sizes n = sizes_of(context);
    const int L = g->config.num_layers;
    const struct layer at = {context, s, NO_LAYER}, last = {context, s, L - 1};
    const struct task_place place = place_of(&at);
    struct data *dlogits = act_grad(&at, ACT_LOGITS);
    struct contribution dwte;

    TRY(prepare_contribution(&at, PARAM_WTE, FIRST_SWEEP, &dwte));
    TRY(submit_crossentropy_softmax_backward(place, dlogits, act_grad(&at, ACT_LOSSES), act(&at, ACT_PROBS),
                                             handles_targets(g->handles, context->slot, s), n.N, n.V, n.Vp,
                                             SUM_FROM_ZERO));
    TRY(submit_matmul_backward_input(place, act_grad(&at, ACT_LNF), dlogits, param(&at, PARAM_WTE), n.N, n.C, n.Vp,
                                     SUM_FROM_ZERO));
    TRY(submit_matmul_backward_weight(place, dwte.data, NULL, dlogits, act(&at, ACT_LNF), n.N, n.C, n.Vp,
                                      dwte.accumulation));
    TRY(layernorm_backward(&at, &layernorm_final, act_grad(&last, ACT_RESIDUAL3), act(&last, ACT_RESIDUAL3),
                           SUM_FROM_ZERO));
    for (int l = L - 1; l >= 0; l--)
        TRY(block_backward(&(struct layer){context, s, l}));
    return STARPULLM_OK;
}

status encoder_backward_pass(const struct graph_context *context, int s)
{
    const struct sizes n = sizes_of(context);
    const struct layer at = {context, s, NO_LAYER};
    struct contribution dwte, dwpe;
    TRY(prepare_contribution(&at, PARAM_WTE, SECOND_SWEEP, &dwte));
    TRY(prepare_contribution(&at, PARAM_WPE, FIRST_SWEEP, &dwpe));
    return submit_encoder_backward(place_of(&at), dwte.data, dwpe.data, act_grad(&at, ACT_ENCODED),
                                   handles_inputs(context->options->handles, context->slot, s), n.B, n.T, n.C, n.maxT,
                                   dwte.accumulation, dwpe.accumulation);
}
