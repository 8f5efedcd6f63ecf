/* A whole iteration: the sequential algorithm over sub-batches. StarPU derives from it what may run at the same time.
 */
#include "data/exchange.h"
#include "graph/graph.h"

static status send_parameter(const struct graph_context *context, enum parameter p, int l, const void *argument)
{
    (void)argument;
    if (context->iteration->on_paper)
        return STARPULLM_OK;
    return exchange_to_all(handles_parameter(context->handles, STARPULLM_PARAMS, p, instance(l)));
}

/* Every rank needs the parameters: their owners send them, and need not know which tasks of other ranks read them. */
static status send_parameters(const struct graph_context *context)
{
    return for_each_parameter(context, send_parameter, NULL);
}

typedef status sub_batch_pass(const struct graph_context *context, int s);

/* A pass of another rank concerns this one if it takes over this rank's sums, or if this rank records: it then counts
 * all ranks' tasks. */
static status add_pass(const struct graph_context *context, sub_batch_pass *pass, int s)
{
    const struct placement *placement = &context->work->placement;
    const int before = s > 0 ? s - 1 : placement->sub_batches - 1;
    const bool concerned = home_of(placement, s) == placement->rank || home_of(placement, before) == placement->rank;
    return concerned || context->iteration->recorder ? pass(context, s) : STARPULLM_OK;
}

status graph_add_forward(const struct graph_context *context)
{
    TRY(send_parameters(context));
    for (int s = 0; s < context->work->placement.sub_batches; s++)
        TRY(add_pass(context, forward_pass, s));
    return STARPULLM_OK;
}

/* Every rank gets the mean loss; this one through `loss`. */
static status report_mean_loss(const struct graph_context *context, struct starpullm_loss *loss)
{
    const struct placement *placement = &context->work->placement;
    struct data *mean = handles_mean_loss(context->handles, context->slot);
    for (int rank = 0; rank < placement->ranks; rank++)
        TRY(SUBMIT(report_loss, place_on_rank(context, rank, NO_LAYER), .mean = mean,
                   .loss = rank == placement->rank ? loss : NULL, .failure = context->iteration->failure));
    exchange_drop(mean);
    return STARPULLM_OK;
}

static status add_forward_and_loss(const struct graph_context *context, int s)
{
    const bool keeps_sum = context->work->placement.rank == 0; /* of the losses */
    TRY(add_pass(context, forward_pass, s));
    return keeps_sum ? loss_pass(context, s) : add_pass(context, loss_pass, s);
}

status graph_add_evaluation(const struct graph_context *context, struct starpullm_loss *loss)
{
    TRY(send_parameters(context));
    for (int s = 0; s < context->work->placement.sub_batches; s++)
        TRY(add_forward_and_loss(context, s));
    return report_mean_loss(context, loss);
}

/* With fewer activation sets than sub-batches: the forward passes of a rank are so many ahead of its backward passes.
 * The sums of losses and gradients pass through all of a rank's sub-batches before those of the next one. */
static status add_alternately(const struct graph_context *context, struct starpullm_loss *loss)
{
    const struct workload *g = context->work;
    const int of_rank = sub_batches_of_rank(&g->placement), sets = g->activation_sets;
    TRY(send_parameters(context));
    for (int s = 0; s < g->placement.sub_batches; s++) {
        const int local = s % of_rank, end = s - local + of_rank;
        for (int next = local == 0 ? s : s + sets - 1; next < s + sets && next < end; next++)
            TRY(add_forward_and_loss(context, next));
        TRY(add_pass(context, backward_pass, s));
    }
    return report_mean_loss(context, loss);
}

static status add_passes(const struct graph_context *context, struct starpullm_loss *loss)
{
    const struct workload *g = context->work;
    if (sub_batches_share_buffers(g))
        return add_alternately(context, loss);
    TRY(graph_add_evaluation(context, loss));
    for (int s = 0; s < g->placement.sub_batches; s++)
        TRY(add_pass(context, backward_pass, s));
    return STARPULLM_OK;
}

status graph_add_step(const struct graph_context *context, struct starpullm_loss *loss)
{
    TRY(add_passes(context, loss));
    for (int s = 0; s < context->work->placement.sub_batches; s++)
        TRY(add_pass(context, encoder_backward_pass, s));
    return reduce_and_update(context);
}
