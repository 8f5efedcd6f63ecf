/* The reduction of the parameters' gradients over sub-batches: where each contribution goes, and how they become one.
 * docs/design.md describes the modes. `ordered` has one buffer per rank and tensor, `tree` one per sub-batch, `redux`
 * one; see handles_gradient(). The stage with the head has them of wte too, and hands them on to the first one. */
#include "graph/graph.h"

/* `ordered`: of a rank; otherwise of a stage and a sub-batch. */
static struct data *gradient(const struct graph_context *context, enum parameter p, int l, int rank, int tile)
{
    const int stages = context->work->placement.stages;
    return handles_gradient(context->handles, p, l, rank % stages, rank / stages, tile);
}

static struct data end_of_rank(const struct graph_context *context, enum parameter p, int l, int rank, int tile)
{
    const int stages = context->work->placement.stages;
    return handles_end(context->handles, p, l, rank % stages, rank / stages, tile);
}

static struct data *gradient_in_stage(const struct graph_context *context, enum parameter p, int l, int s, int tile)
{
    return handles_gradient(context->handles, p, l, stage_of(&context->work->placement, l), s, tile);
}

/* Whether a task concerns these two ranks alone, and so not this one, which then only counts it. */
static bool skip_of_others(const struct graph_context *context, int rank, int other)
{
    const int own = context->work->placement.rank;
    if (context->iteration->on_paper || own == rank || own == other)
        return false;
    recorder_skip(context->iteration->recorder);
    return true;
}

/* `ordered`: the running sum moves from one rank to another, unless they are the same. Only these two know of it. */
static status move_sum(const struct graph_context *context, enum parameter p, int l, int tile, int from, int to)
{
    if (from == to || skip_of_others(context, from, to))
        return STARPULLM_OK;
    struct data destination = end_of_rank(context, p, l, to, tile), source = end_of_rank(context, p, l, from, tile);
    return submit_transfer(attributes_on_rank(context, to, l), &destination, &source);
}

static status continue_sum(const struct layer *at, enum parameter p, int tile, enum sweep sweep,
                           struct sum *contribution)
{
    const struct placement *placement = &at->context->work->placement;
    const int S = placement->sub_batches, home = home_of(placement, at->s, at->l);
    const bool first = sweep == FIRST_SWEEP && at->s == 0;
    const int before = at->s > 0 ? home_of(placement, at->s - 1, at->l) : home_of(placement, S - 1, HEAD);
    if (!first)
        TRY(move_sum(at->context, p, at->l, tile, before, home));
    *contribution =
        (struct sum){gradient(at->context, p, at->l, home, tile), first ? ACCUMULATION_STARTS : ACCUMULATION_CONTINUES};
    return STARPULLM_OK;
}

/* `tree`: only wte's gradient has two contributions of a sub-batch, of two stages if there are several. */
static status contribute_to_tree(const struct layer *at, enum parameter p, int tile, enum sweep sweep,
                                 struct sum *contribution)
{
    const struct handles *handles = at->context->handles;
    const struct placement *placement = &at->context->work->placement;
    const int from = home_of(placement, at->s, HEAD), to = home_of(placement, at->s, at->l);
    *contribution = (struct sum){gradient_in_stage(at->context, p, at->l, at->s, tile),
                                 sweep == FIRST_SWEEP ? ACCUMULATION_STARTS : ACCUMULATION_CONTINUES};
    if (sweep == FIRST_SWEEP || from == to || skip_of_others(at->context, from, to))
        return STARPULLM_OK;
    struct data destination = handles_end(handles, p, at->l, stage_of(placement, at->l), at->s, tile);
    struct data source = handles_end(handles, p, HEAD, stage_of(placement, HEAD), at->s, tile);
    return submit_transfer(attributes_on_rank(at->context, to, at->l), &destination, &source);
}

status prepare_contribution(const struct layer *at, enum parameter p, int tile, enum sweep sweep,
                            struct sum *contribution)
{
    switch (at->context->work->reduction) {
    case STARPULLM_REDUCTION_ORDERED:
        return continue_sum(at, p, tile, sweep, contribution);
    case STARPULLM_REDUCTION_TREE:
        return contribute_to_tree(at, p, tile, sweep, contribution);
    default:
        *contribution = (struct sum){gradient_in_stage(at->context, p, at->l, 0, tile), ACCUMULATION_REDUCES};
        /* The last step's value is no contribution to this step's. */
        if (sweep == FIRST_SWEEP && at->s == first_of_rank(&at->context->work->placement))
            data_invalidate(contribution->data);
        return STARPULLM_OK;
    }
}

static status add_tree(const struct graph_context *context, enum parameter p, int l, int tile)
{
    const struct workload *g = context->work;
    const size_t count = tile_elements(&g->tiles, p, tile);
    for (int stride = 1; stride < g->placement.sub_batches; stride *= 2)
        for (int s = 0; s + stride < g->placement.sub_batches; s += 2 * stride) {
            if (skip_of_others(context, home_of(&g->placement, s, l), home_of(&g->placement, s + stride, l)))
                continue;
            struct data *term = gradient_in_stage(context, p, l, s + stride, tile);
            TRY(SUBMIT(gradient_add, attributes_of(&(struct layer){context, s, l}),
                       .sum = gradient_in_stage(context, p, l, s, tile), .term = term, .count = count));
            exchange_invalidate(term);
        }
    return STARPULLM_OK;
}

status reduce_gradient(const struct graph_context *context, enum parameter p, int l, int tile)
{
    const struct workload *g = context->work;
    switch (g->reduction) {
    case STARPULLM_REDUCTION_ORDERED:
        return move_sum(context, p, l, tile, home_of(&g->placement, g->placement.sub_batches - 1, l),
                        owner_of(&g->placement, p, l));
    case STARPULLM_REDUCTION_TREE:
        return add_tree(context, p, l, tile);
    default:
        return exchange_reduce(gradient_in_stage(context, p, l, 0, tile));
    }
}

struct data *gradient_of_batch(const struct graph_context *context, enum parameter p, int l, int tile)
{
    const struct placement *placement = &context->work->placement;
    if (context->work->reduction == STARPULLM_REDUCTION_ORDERED)
        return gradient(context, p, l, owner_of(placement, p, l), tile);
    return gradient_in_stage(context, p, parameter_place(p, l), 0, tile);
}
