/* Short names for what every part of the graph asks for: a task's place, a parameter, an activation, its gradient.
 * Called by the other files of graph/. */
#include "graph/graph.h"

struct task_place place_of(const struct flow *flow, int s, int layer)
{
    return (struct task_place){flow->submission, s, layer, home_of(flow->graph->placement, s), PRIORITY_DEFAULT};
}

struct task_place place_on(const struct flow *flow, int rank, int layer)
{
    return (struct task_place){flow->submission, -1, layer, rank, PRIORITY_DEFAULT};
}

struct data *param(const struct flow *flow, enum parameter p, int layer)
{
    return handles_parameter(flow->graph->handles, STARPULLM_PARAMS, p, layer);
}

struct data *act(const struct flow *flow, enum activation a, int layer, int s)
{
    return handles_activation(flow->graph->handles, a, layer, s);
}

struct data *act_grad(const struct flow *flow, enum activation a, int layer, int s)
{
    return handles_activation_grad(flow->graph->handles, a, layer, s);
}
