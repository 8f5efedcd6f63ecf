/* One submission as a whole: the sequential algorithm over sub-batches, from which StarPU derives what may run when.
 * Called by session.c. */
#include "graph/graph.h"

#include "defects.h"

status graph_submit_forward(const struct flow *flow)
{
    for (int s = 0; s < flow->graph->sub_batches; s++)
        TRY(submit_forward(flow, s));
    return STARPULLM_OK;
}

static status submit_forward_and_losses(const struct flow *flow, int s)
{
    TRY(submit_forward(flow, s));
    return submit_losses(flow, s);
}

/* Every rank gets the loss. */
static status submit_report(const struct flow *flow, struct starpullm_loss *loss)
{
    const struct placement *placement = flow->graph->placement;
    struct data *mean = handles_mean_loss(flow->graph->handles, flow->slot);
    for (int rank = 0; rank < placement->ranks; rank++)
        TRY(submit_report_loss(place_on(flow, rank, -1), mean, rank == placement->rank ? loss : NULL));
    return STARPULLM_OK;
}

status graph_submit_evaluation(const struct flow *flow, struct starpullm_loss *loss)
{
    status code = STARPULLM_OK;
    for (int s = 0; s < flow->graph->sub_batches && code == STARPULLM_OK; s++)
        code = submit_forward_and_losses(flow, s);
    if (code == STARPULLM_OK)
        return submit_report(flow, loss);
    loss_release(loss);
    return code;
}

status graph_submit_step(const struct flow *flow, struct starpullm_loss *loss, int64_t update)
{
    const int S = flow->graph->sub_batches;
    TRY(graph_submit_evaluation(flow, loss));
    /* Where there is no defect: all backward passes, then all encoders', then the update. */
    for (int s = 0; s < S - DEFECT(sub_batch_skipped); s++) {
        TRY(submit_backward(flow, DEFECT(sub_batches_reversed) && s > 0 ? S - s : s));
        if (DEFECT(encoder_early))
            TRY(submit_backward_encoder(flow, s));
    }
    if (DEFECT(sub_batch_twice))
        TRY(submit_backward(flow, S - 1));
    if (DEFECT(update_early))
        TRY(submit_update(flow, update));
    for (int s = DEFECT(encoder_early) ? S : 0; s < S; s++)
        TRY(submit_backward_encoder(flow, s));
    return DEFECT(update_early) ? STARPULLM_OK : submit_update(flow, update);
}
