/* One submission as a whole: the sequential algorithm over sub-batches, from which StarPU derives what may run when.
 * Called by session.c. */
#include "graph/graph.h"

status graph_add_forward(const struct graph_context *context)
{
    for (int s = 0; s < context->options->sub_batches; s++)
        TRY(forward_pass(context, s));
    return STARPULLM_OK;
}

static status forward_and_loss(const struct graph_context *context, int s)
{
    TRY(forward_pass(context, s));
    return loss_pass(context, s);
}

/* Every rank gets the loss. */
static status report_loss_to_ranks(const struct graph_context *context, struct starpullm_loss *loss)
{
    const struct placement *placement = context->options->placement;
    struct data *mean = handles_mean_loss(context->options->handles, context->slot);
    for (int rank = 0; rank < placement->ranks; rank++)
        TRY(submit_report_loss(place_on(context, rank, -1), mean, rank == placement->rank ? loss : NULL));
    return STARPULLM_OK;
}

status graph_add_evaluation(const struct graph_context *context, struct starpullm_loss *loss)
{
    status code = STARPULLM_OK;
    for (int s = 0; s < context->options->sub_batches && code == STARPULLM_OK; s++)
        code = forward_and_loss(context, s);
    if (code == STARPULLM_OK)
        return report_loss_to_ranks(context, loss);
    loss_release(loss);
    return code;
}

status graph_add_step(const struct graph_context *context, struct starpullm_loss *loss, int64_t update)
{
    const int S = context->options->sub_batches;
    TRY(graph_add_evaluation(context, loss));
    for (int s = 0; s < S; s++)
        TRY(backward_pass(context, s));
    for (int s = 0; s < S; s++)
        TRY(encoder_backward_pass(context, s));
    return update_parameters(context, update);
}
