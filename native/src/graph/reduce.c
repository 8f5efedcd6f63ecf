/* The reduction of parameter gradients over sub-batches: where each contribution goes. Called by graph/backward.c.
 *
 * `ordered`: one buffer per tensor; sub-batch 0 starts the sum, the others continue its running value in their order of
 * submission, so the sum is that of the whole batch (numerics.md, "What this gives data parallelism"). */
#include "graph/graph.h"

struct contribution gradient_contribution(const struct flow *flow, enum parameter p, int layer, int s)
{
    return (struct contribution){
        .data = handles_parameter(flow->graph->handles, STARPULLM_GRADS, p, layer),
        .start = s == 0 ? SUM_FROM_ZERO : SUM_CONTINUES,
    };
}
