/* The reduction of parameter gradients over sub-batches: where each contribution goes, and how they become one. Called
 * by graph/backward.c and graph/update.c.
 *
 * `ordered`: one buffer per rank and tensor. Sub-batch 0 starts the sum, the others continue its running value in their
 * order, which moves on to the next rank between two ranks' sub-batches; so the sum is that of the whole batch
 * (numerics.md, "What this gives data parallelism").
 * `tree`: one buffer per sub-batch; neighbours are added, then neighbours of neighbours: a shape that the number of
 * sub-batches alone decides.
 * `redux`: StarPU's own reduction, over the workers of a rank and then over ranks, in an order of its own. */
#include "graph/graph.h"

#include "data/exchange.h"

static struct data *gradient(const struct graph_context *context, enum parameter p, int layer, int index)
{
    return handles_gradient(context->options->handles, p, layer, index);
}

/* The running value moves to `rank`, unless it is there. */
static status move_running_value(const struct graph_context *context, enum parameter p, int layer, int rank,
                                 int previous)
{
    if (rank == previous)
        return STARPULLM_OK;
    return submit_transfer(place_on(context, rank, parameter_layered(p) ? layer : -1),
                           gradient(context, p, layer, rank), gradient(context, p, layer, previous));
}

static status continue_chain(const struct graph_context *context, enum parameter p, int layer, int s, enum pass pass,
                             struct contribution *contribution)
{
    const struct placement *placement = context->options->placement;
    const int S = context->options->sub_batches, home = home_of(placement, s);
    const int link = pass == FIRST_PASS ? s : S + s;
    if (link > 0)
        TRY(move_running_value(context, p, layer, home, home_of(placement, (link - 1) % S)));
    contribution->data = gradient(context, p, layer, home);
    contribution->accumulation = link == 0 ? ACCUMULATION_STARTS : ACCUMULATION_CONTINUES;
    return STARPULLM_OK;
}

status gradient_contribution(const struct graph_context *context, enum parameter p, int layer, int s, enum pass pass,
                             struct contribution *contribution)
{
    switch (context->options->reduction) {
    case STARPULLM_REDUCTION_ORDERED:
        return continue_chain(context, p, layer, s, pass, contribution);
    case STARPULLM_REDUCTION_TREE:
        *contribution = (struct contribution){gradient(context, p, layer, s),
                                              pass == FIRST_PASS ? ACCUMULATION_STARTS : ACCUMULATION_CONTINUES};
        return STARPULLM_OK;
    default:
        *contribution = (struct contribution){gradient(context, p, layer, 0), ACCUMULATION_REDUCES};
        /* The last step's value is no contribution to this step's. */
        if (pass == FIRST_PASS && s == 0)
            data_forget(contribution->data);
        return STARPULLM_OK;
    }
}

static status submit_tree(const struct graph_context *context, enum parameter p, int layer)
{
    const struct graph_options *g = context->options;
    const size_t count = (size_t)tensor_elements(parameter_shape(&g->config, p));
    for (int stride = 1; stride < g->sub_batches; stride *= 2)
        for (int s = 0; s + stride < g->sub_batches; s += 2 * stride) {
            struct data *term = gradient(context, p, layer, s + stride);
            TRY(submit_gradient_add(place_of(context, s, parameter_layered(p) ? layer : -1),
                                    gradient(context, p, layer, s), term, count));
            exchange_drop(term);
        }
    return STARPULLM_OK;
}

status reduce_gradient(const struct graph_context *context, enum parameter p, int layer)
{
    const struct graph_options *g = context->options;
    switch (g->reduction) {
    case STARPULLM_REDUCTION_ORDERED:
        return move_running_value(context, p, layer, owner_of(g->placement, p, layer),
                                  home_of(g->placement, g->sub_batches - 1));
    case STARPULLM_REDUCTION_TREE:
        return submit_tree(context, p, layer);
    default:
        return exchange_reduce(gradient(context, p, layer, 0));
    }
}

struct data *gradient_of_batch(const struct graph_options *graph, enum parameter p, int layer)
{
    const int index = graph->reduction == STARPULLM_REDUCTION_ORDERED ? owner_of(graph->placement, p, layer) : 0;
    return handles_gradient(graph->handles, p, layer, index);
}
