/* The update of all parameters as a task flow: one task per tensor and layer, in the order in which the next forward
 * pass needs them. Called by graph/step.c.
 *
 * An update takes as long as the memory takes to bring its operands. Directly after the gradient's last contribution
 * the gradient and the weight, which the gradient of the input has just been made with, are still in a cache. */
#include "data/exchange.h"
#include "graph/graph.h"

static status submit_tensor(const struct graph_context *context, enum parameter p, int layer, int64_t update)
{
    const struct graph_options *g = context->options;
    const size_t count = (size_t)tensor_elements(parameter_shape(&g->config, p));
    struct data *grads = gradient_of_batch(g, p, layer);
    TRY(reduce_gradient(context, p, layer));
    struct task_place place = place_on(context, owner_of(g->placement, p, layer), parameter_layered(p) ? layer : -1);
    place.priority = PRIORITY_AT_ONCE;
    TRY(submit_adamw_update(place, param(context, p, layer), handles_parameter(g->handles, STARPULLM_M, p, layer),
                            handles_parameter(g->handles, STARPULLM_V, p, layer), grads, count, &g->adamw, update));
    exchange_drop(grads);
    return STARPULLM_OK;
}

status update_parameters(const struct graph_context *context, int64_t update)
{
    TRY(submit_tensor(context, PARAM_WTE, 0, update));
    TRY(submit_tensor(context, PARAM_WPE, 0, update));
    for (int l = 0; l < context->options->config.num_layers; l++)
        for (int p = 0; p < NUM_PARAMETERS; p++)
            if (parameter_layered(p))
                TRY(submit_tensor(context, p, l, update));
    TRY(submit_tensor(context, PARAM_LNFW, 0, update));
    return submit_tensor(context, PARAM_LNFB, 0, update);
}
