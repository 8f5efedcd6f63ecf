/* Reduction and update of all parameters, tensor by tensor, in the order in which the next forward pass needs them.
 *
 * An update takes as long as the memory takes to bring its operands. Directly after the gradient's last contribution,
 * the gradient and the weight, which the gradient of the input has just been computed with, are still in a cache. */
#include "graph/graph.h"

static status update_tensor(const struct graph_context *context, enum parameter p, int l)
{
    const struct update *update = context->update;
    const struct workload *g = context->work;
    struct task_attributes attributes = attributes_on_rank(context, owner_of(&g->placement, p, l), l);
    attributes.priority = PRIORITY_AT_ONCE;
    size_t first = 0;
    for (int tile = 0; tile < g->tiles.counts[p]; tile++) {
        TRY(reduce_gradient(context, p, l, tile));
        struct data *grads = gradient_of_batch(context, p, l, tile);
        const size_t count = tile_elements(&g->tiles, p, tile);
        TRY(SUBMIT(adamw_update, attributes, .params = handles_parameter(context->handles, STARPULLM_PARAMS, p, l),
                   .m = handles_parameter(context->handles, STARPULLM_M, p, l),
                   .v = handles_parameter(context->handles, STARPULLM_V, p, l), .grads = grads, .first = first,
                   .count = count, .adamw = update->adamw, .step = update->number));
        exchange_invalidate(grads);
        first += count;
    }
    return STARPULLM_OK;
}

static status update_at_end(const struct graph_context *context, enum parameter p, int l)
{
    const bool is_done = context->work->update_after_block && parameters[p].place == BLOCK;
    return is_done ? STARPULLM_OK : update_tensor(context, p, l);
}

status reduce_and_update(const struct graph_context *context)
{
    return for_each_parameter(context, update_at_end);
}

status update_block(const struct graph_context *context, int l)
{
    return for_each_parameter_at(context, l, update_tensor);
}
