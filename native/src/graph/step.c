/* A whole iteration: the sequential algorithm over sub-batches. StarPU derives from it what may run at the same time.
 */
#include "graph/graph.h"

status graph_add_forward(const struct graph_context *context)
{
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
    return STARPULLM_OK;
}

status graph_add_evaluation(const struct graph_context *context, struct starpullm_loss *loss)
{
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
