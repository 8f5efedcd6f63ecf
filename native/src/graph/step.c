/* A whole iteration: the sequential algorithm over sub-batches. StarPU derives from it what may run at the same time.
 */
#include "data/exchange.h"
#include "graph/graph.h"

static status send_parameter(const struct graph_context *context, enum parameter p, int l, const void *argument)
{
    (void)argument;
    return exchange_to_all(handles_parameter(context->options->handles, STARPULLM_PARAMS, p, instance(l)));
}

/* Every rank needs the parameters: their owners send them, and need not know which tasks of other ranks read them. */
static status send_parameters(const struct graph_context *context)
{
    return for_each_parameter(context, send_parameter, NULL);
}

status graph_add_forward(const struct graph_context *context)
{
    TRY(send_parameters(context));
    for (int s = 0; s < context->options->sub_batches; s++)
        TRY(forward_pass(context, s));
    return STARPULLM_OK;
}

/* Every rank gets the mean loss; this one through `loss`. */
static status report_mean_loss(const struct graph_context *context, struct starpullm_loss *loss)
{
    const struct placement *placement = context->options->placement;
    struct data *mean = handles_mean_loss(context->options->handles, context->slot);
    for (int rank = 0; rank < placement->ranks; rank++)
        TRY(SUBMIT(report_loss, place_on_rank(context, rank, NO_LAYER), .mean = mean,
                   .loss = rank == placement->rank ? loss : NULL, .failure = context->iteration->failure));
    exchange_drop(mean);
    return STARPULLM_OK;
}

status graph_add_evaluation(const struct graph_context *context, struct starpullm_loss *loss)
{
    TRY(send_parameters(context));
    for (int s = 0; s < context->options->sub_batches; s++) {
        TRY(forward_pass(context, s));
        TRY(loss_pass(context, s));
    }
    return report_mean_loss(context, loss);
}

status graph_add_step(const struct graph_context *context, struct starpullm_loss *loss, const struct update *update)
{
    const int S = context->options->sub_batches;
    TRY(graph_add_evaluation(context, loss));
    for (int s = 0; s < S; s++)
        TRY(backward_pass(context, s));
    for (int s = 0; s < S; s++)
        TRY(encoder_backward_pass(context, s));
    return reduce_and_update(context, update);
}
