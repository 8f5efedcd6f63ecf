/* Short names for what every part of the graph asks for: a task's place, a parameter, an activation, its gradient.
 * Called by the other files of graph/. */
#include "graph/graph.h"

struct task_place place_of(const struct graph_context *context, int s, int layer)
{
    return (struct task_place){context->iteration, s, layer, home_of(context->options->placement, s), PRIORITY_DEFAULT};
}

struct task_place place_on(const struct graph_context *context, int rank, int layer)
{
    return (struct task_place){context->iteration, -1, layer, rank, PRIORITY_DEFAULT};
}

struct data *param(const struct graph_context *context, enum parameter p, int layer)
{
    return handles_parameter(context->options->handles, STARPULLM_PARAMS, p, layer);
}

struct data *act(const struct graph_context *context, enum activation a, int layer, int s)
{
    return handles_activation(context->options->handles, a, layer, s);
}

struct data *act_grad(const struct graph_context *context, enum activation a, int layer, int s)
{
    return handles_activation_grad(context->options->handles, a, layer, s);
}
