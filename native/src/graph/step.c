/* A whole iteration: the sequential algorithm over sub-batches and stages, as a list of passes. StarPU derives from it
 * what may run at the same time. */
#include "graph/graph.h"

/* An owner sends the parameter to all ranks that read it, and need not know by which tasks. */
static status send_parameter(const struct graph_context *context, enum parameter p, int l)
{
    const struct placement *placement = &context->work->placement;
    struct data *data = handles_parameter(context->handles, STARPULLM_PARAMS, p, l);
    if (context->iteration->on_paper || !data)
        return STARPULLM_OK;
    for (int rank = 0; rank < placement->ranks; rank++)
        if (rank_reads(placement, p, l, rank) && (placement->rank == rank || placement->rank == data->owner))
            TRY(exchange_to(data, rank));
    return STARPULLM_OK;
}

typedef status sub_batch_pass(const struct graph_context *context, int s, int stage);

/* A pass of another rank concerns this one if it takes over this rank's sums, or if this rank records: it then counts
 * all ranks' tasks. */
static bool concerns(const struct placement *placement, sub_batch_pass *pass, int s, int stage)
{
    const int before =
        s > 0 ? rank_of_pass(placement, s - 1, stage) : home_of(placement, placement->sub_batches - 1, HEAD);
    const bool of_wte = pass == encoder_backward_pass && home_of(placement, s, HEAD) == placement->rank;
    const bool of_losses = pass == loss_pass && home_of(placement, 0, HEAD) == placement->rank;
    return rank_of_pass(placement, s, stage) == placement->rank || before == placement->rank || of_wte || of_losses;
}

static status add_pass(const struct graph_context *context, enum starpullm_pass_kind kind, sub_batch_pass *pass, int s,
                       int stage)
{
    if (!context->iteration->recorder && !concerns(&context->work->placement, pass, s, stage))
        return STARPULLM_OK;
    struct graph_context of_pass = *context;
    of_pass.priority = pass_priority(context->work, kind, s);
    return pass(&of_pass, s, stage);
}

/* Every rank gets the mean loss; this one through `loss`. */
static status report_mean_loss(const struct graph_context *context, struct starpullm_loss *loss)
{
    const struct placement *placement = &context->work->placement;
    struct data *mean = handles_mean_loss(context->handles, context->slot);
    for (int rank = 0; rank < placement->ranks; rank++)
        TRY(SUBMIT(report_loss, attributes_on_rank(context, rank, HEAD), .mean = mean,
                   .loss = rank == placement->rank ? loss : NULL, .failure = context->iteration->failure));
    exchange_invalidate(mean);
    return STARPULLM_OK;
}

/* ---- What a stage passes on to the next one, or its gradient to the one before ---- */

/* NULL: none, or this rank doesn't have it. */
static struct data *input_of_stage(const struct graph_context *context, int s, int stage)
{
    if (stage == 0)
        return NULL;
    const int first = first_block(context, stage);
    return block_input(&(struct layer){context, s, first < end_of_blocks(context, stage) ? first : HEAD});
}

static struct data *gradient_for_stage(const struct graph_context *context, int s, int stage)
{
    return has_head(context, stage)
               ? NULL
               : act_grad(&(struct layer){context, s, end_of_blocks(context, stage) - 1}, ACT_RESIDUAL3);
}

static status pass_on(const struct graph_context *context, struct data *data, int s, int stage)
{
    const struct placement *placement = &context->work->placement;
    const int reader = rank_of_pass(placement, s, stage);
    if (!data || context->iteration->on_paper || (placement->rank != reader && placement->rank != data->owner))
        return STARPULLM_OK;
    return exchange_to(data, reader);
}

/* ---- The passes ---- */

static status add_forward(const struct graph_context *context, int s, int stage)
{
    TRY(pass_on(context, input_of_stage(context, s, stage), s, stage));
    return add_pass(context, STARPULLM_FORWARD, forward_pass, s, stage);
}

static status add_forward_and_loss(const struct graph_context *context, int s, int stage, struct starpullm_loss *loss)
{
    const int last = context->work->placement.sub_batches - 1;
    TRY(add_forward(context, s, stage));
    TRY(add_pass(context, STARPULLM_FORWARD, loss_pass, s, stage));
    return has_head(context, stage) && s == last ? report_mean_loss(context, loss) : STARPULLM_OK;
}

static status add_backward(const struct graph_context *context, int s, int stage)
{
    struct data *gradient = gradient_for_stage(context, s, stage);
    TRY(pass_on(context, gradient, s, stage));
    TRY(add_pass(context, STARPULLM_BACKWARD, backward_pass, s, stage));
    exchange_invalidate(gradient);
    if (!context->work->weight_passes)
        exchange_invalidate(input_of_stage(context, s, stage));
    return STARPULLM_OK;
}

static status add_weights(const struct graph_context *context, int s, int stage)
{
    TRY(add_pass(context, STARPULLM_WEIGHTS, weights_pass, s, stage));
    exchange_invalidate(input_of_stage(context, s, stage));
    return STARPULLM_OK;
}

status graph_add_forward(const struct graph_context *context, struct starpullm_loss *loss)
{
    TRY(for_each_parameter(context, send_parameter));
    for (int s = 0; s < context->work->placement.sub_batches; s++)
        for (int stage = 0; stage < context->work->placement.stages; stage++) {
            TRY(loss ? add_forward_and_loss(context, s, stage, loss) : add_forward(context, s, stage));
            exchange_invalidate(input_of_stage(context, s, stage));
        }
    return STARPULLM_OK;
}

status graph_add_step(const struct graph_context *context, struct starpullm_loss *loss)
{
    const struct workload *g = context->work;
    TRY(for_each_parameter(context, send_parameter));
    for (int i = 0; i < g->num_passes; i++) {
        const struct starpullm_pass pass = g->passes[i];
        TRY(pass.kind == STARPULLM_FORWARD    ? add_forward_and_loss(context, pass.sub_batch, pass.stage, loss)
            : pass.kind == STARPULLM_BACKWARD ? add_backward(context, pass.sub_batch, pass.stage)
                                              : add_weights(context, pass.sub_batch, pass.stage));
    }
    for (int s = 0; s < g->placement.sub_batches; s++)
        TRY(add_pass(context, STARPULLM_WEIGHTS, encoder_backward_pass, s, 0));
    return reduce_and_update(context);
}
