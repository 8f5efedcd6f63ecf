/* The backward pass of one sub-batch, in the order of numerics.md, "Backward".
 *
 * dresidual is the gradient of the residual stream that enters a block: residual3's of the block below, or encoded's
 * below the first block. Without keep_activations residual3's gradient is one buffer for all blocks: residual_backward
 * reads the block's own gradient before it writes that of the block below. */
#include "graph/graph.h"

static struct task_attributes attributes_of_weights(const struct layer *at)
{
    struct task_attributes attributes = attributes_of(at);
    attributes.priority = pass_priority(at->context->work, STARPULLM_WEIGHTS, at->s);
    return attributes;
}

/* The gradients of a matmul's weight and, if it has one, its bias: a task for each tile. */
static status matmul_weight(const struct layer *at, const struct matmul_tensors *t)
{
    const size_t N = sizes_of(at->context).N;
    const struct matmul_sizes m = matmul_sizes_of(at->context, t->weight);
    const struct tiles *tiles = &at->context->work->tiles;
    struct task_attributes attributes = attributes_of_weights(at);
    struct data *dout = act_grad(at, t->out);
    /* The other workers compute these while one updates wte, before the next forward pass begins. */
    if (at->l == 0 && attributes.priority > PRIORITY_LATER)
        attributes.priority = PRIORITY_LATER;
    for (int tile = 0; tile < tiles->counts[t->weight]; tile++) {
        const struct tile extent = tile_of(tiles, t->weight, tile);
        struct sum dweight, dbias = {0};
        TRY(prepare_contribution(at, t->weight, tile, FIRST_SWEEP, &dweight));
        if (t->bias != NUM_PARAMETERS)
            TRY(prepare_contribution(at, t->bias, tile, FIRST_SWEEP, &dbias));
        TRY(SUBMIT(matmul_backward_weight, attributes, .dweight = dweight, .dbias = dbias, .dout = dout,
                   .inp = act(at, t->inp), .N = N, .C = m.C, .OC = m.OC, .first = extent.first, .rows = extent.rows));
    }
    return STARPULLM_OK;
}

/* The gradient of its input and, unless they have a pass of their own, those of the weights. */
static status matmul_backward(const struct layer *at, const struct matmul_tensors *t)
{
    const struct matmul_sizes m = matmul_sizes_of(at->context, t->weight);
    TRY(SUBMIT(matmul_backward_input, attributes_of(at), .dinp = act_grad(at, t->inp), .dout = act_grad(at, t->out),
               .weight = param(at, t->weight), .N = sizes_of(at->context).N, .C = m.C, .OC = m.OC));
    return at->context->work->weight_passes ? STARPULLM_OK : matmul_weight(at, t);
}

static status layernorm_weight(const struct layer *at, const struct layernorm_tensors *t, struct data *inp)
{
    const struct sizes n = sizes_of(at->context);
    struct sum dweight, dbias;
    TRY(prepare_contribution(at, t->weight, 0, FIRST_SWEEP, &dweight));
    TRY(prepare_contribution(at, t->bias, 0, FIRST_SWEEP, &dbias));
    return SUBMIT(layernorm_backward_weight, attributes_of_weights(at), .dweight = dweight, .dbias = dbias,
                  .dout = act_grad(at, t->out), .inp = inp, .mean = act(at, t->mean), .rstd = act(at, t->rstd),
                  .N = n.N, .C = n.C);
}

static status layernorm_backward(const struct layer *at, const struct layernorm_tensors *t, struct sum dinp,
                                 struct data *inp)
{
    const struct sizes n = sizes_of(at->context);
    TRY(SUBMIT(layernorm_backward_input, attributes_of(at), .dinp = dinp, .dout = act_grad(at, t->out), .inp = inp,
               .mean = act(at, t->mean), .rstd = act(at, t->rstd), .weight = param(at, t->weight), .N = n.N, .C = n.C));
    return at->context->work->weight_passes ? STARPULLM_OK : layernorm_weight(at, t, inp);
}

/* What a block's backward pass reads, and the blocks above have overwritten: nobody has since the forward pass of the
 * stage's last block. */
static status recompute(const struct layer *at)
{
    const struct workload *g = at->context->work;
    const int stage = stage_of(&g->placement, at->l);
    if (at->l == end_of_blocks(at->context, stage) - 1 || g->recompute == STARPULLM_RECOMPUTE_NONE)
        return STARPULLM_OK;
    return g->recompute == STARPULLM_RECOMPUTE_BLOCK ? inside_of_block(at) : attention_of_block(at);
}

static status block_backward(const struct layer *at)
{
    const struct sizes n = sizes_of(at->context);
    const struct task_attributes attributes = attributes_of(at);
    struct data *dresidual = block_input_grad(at), *dresidual2 = act_grad(at, ACT_RESIDUAL2);

    TRY(recompute(at));
    TRY(SUBMIT(residual_backward, attributes, .da = dresidual2, .db = act_grad(at, ACT_FCPROJ),
               .dout = act_grad(at, ACT_RESIDUAL3), .count = n.N * n.C));
    TRY(matmul_backward(at, &matmuls[MATMUL_FCPROJ]));
    TRY(SUBMIT(gelu_backward, attributes, .dinp = act_grad(at, ACT_FCH), .dout = act_grad(at, ACT_FCH_GELU),
               .inp = act(at, ACT_FCH), .count = n.N * 4 * n.C));
    TRY(matmul_backward(at, &matmuls[MATMUL_FC]));
    TRY(layernorm_backward(at, &layernorm_2, (struct sum){dresidual2, ACCUMULATION_CONTINUES}, act(at, ACT_RESIDUAL2)));
    TRY(SUBMIT(residual_backward, attributes, .da = dresidual, .db = act_grad(at, ACT_ATTPROJ), .dout = dresidual2,
               .count = n.N * n.C));
    TRY(matmul_backward(at, &matmuls[MATMUL_ATTPROJ]));
    TRY(SUBMIT(attention_backward, attributes, .dqkv = act_grad(at, ACT_QKV), .dpreatt = act_grad(at, ACT_PREATT),
               .datt = act_grad(at, ACT_ATT), .dout = act_grad(at, ACT_ATTY), .qkv = act(at, ACT_QKV),
               .att = act(at, ACT_ATT), .B = n.B, .T = n.T, .C = n.C, .NH = n.NH));
    TRY(matmul_backward(at, &matmuls[MATMUL_QKV]));
    return layernorm_backward(at, &layernorm_1, (struct sum){dresidual, ACCUMULATION_CONTINUES}, block_input(at));
}

static status head_backward(const struct layer *at)
{
    const struct graph_context *context = at->context;
    const struct sizes n = sizes_of(context);
    TRY(SUBMIT(crossentropy_softmax_backward, attributes_of(at), .dlogits = act_grad(at, ACT_LOGITS),
               .dlosses = act_grad(at, ACT_LOSSES), .probs = act(at, ACT_PROBS),
               .targets = handles_targets(context->handles, context->slot, at->s), .N = n.N, .V = n.V, .Vp = n.Vp));
    TRY(matmul_backward(at, &matmuls[MATMUL_LOGITS]));
    return layernorm_backward(at, &layernorm_final, (struct sum){block_input_grad(at), ACCUMULATION_STARTS},
                              block_input(at));
}

status backward_pass(const struct graph_context *context, int s, int stage)
{
    const struct workload *g = context->work;
    const bool is_last = s == g->placement.sub_batches - 1;
    if (has_head(context, stage))
        TRY(head_backward(&(struct layer){context, s, HEAD}));
    for (int l = end_of_blocks(context, stage) - 1; l >= first_block(context, stage); l--) {
        TRY(block_backward(&(struct layer){context, s, l}));
        if (is_last && g->update_after_block)
            TRY(update_block(context, l));
    }
    return STARPULLM_OK;
}

/* In the order of backward_pass(). */
static status block_weights(const struct layer *at)
{
    TRY(matmul_weight(at, &matmuls[MATMUL_FCPROJ]));
    TRY(matmul_weight(at, &matmuls[MATMUL_FC]));
    TRY(layernorm_weight(at, &layernorm_2, act(at, ACT_RESIDUAL2)));
    TRY(matmul_weight(at, &matmuls[MATMUL_ATTPROJ]));
    TRY(matmul_weight(at, &matmuls[MATMUL_QKV]));
    return layernorm_weight(at, &layernorm_1, block_input(at));
}

status weights_pass(const struct graph_context *context, int s, int stage)
{
    const struct layer head = {context, s, HEAD};
    if (has_head(context, stage)) {
        TRY(matmul_weight(&head, &matmuls[MATMUL_LOGITS]));
        TRY(layernorm_weight(&head, &layernorm_final, block_input(&head)));
    }
    for (int l = end_of_blocks(context, stage) - 1; l >= first_block(context, stage); l--)
        TRY(block_weights(&(struct layer){context, s, l}));
    return STARPULLM_OK;
}

status encoder_backward_pass(const struct graph_context *context, int s, int stage)
{
    (void)stage; /* always the first */
    const struct sizes n = sizes_of(context);
    const struct tiles *tiles = &context->work->tiles;
    const struct layer at = {context, s, ENCODER};
    for (int tile = 0; tile < tiles->counts[PARAM_WTE]; tile++) {
        const struct tile extent = tile_of(tiles, PARAM_WTE, tile);
        struct sum dwte, dwpe = {0};
        TRY(prepare_contribution(&at, PARAM_WTE, tile, SECOND_SWEEP, &dwte));
        if (tile == 0) /* the task of the first tile adds to all of dwpe */
            TRY(prepare_contribution(&at, PARAM_WPE, 0, FIRST_SWEEP, &dwpe));
        TRY(SUBMIT(encoder_backward, attributes_of(&at), .dwte = dwte, .dwpe = dwpe, .dout = act_grad(&at, ACT_ENCODED),
                   .tokens = handles_inputs(context->handles, context->slot, s), .B = n.B, .T = n.T, .C = n.C,
                   .maxT = n.maxT, .first = extent.first, .rows = extent.rows));
    }
    return STARPULLM_OK;
}
