/* Codelet of the AdamW update of one tensor. */
#include "codelets/operation.h"
#include "data/exchange.h"

DEFINE_KERNEL_OPERATION(adamw_update, buffers[0], buffers[1], buffers[2], buffers[3], a->count, &a->adamw, a->step);

status submit_adamw_update(struct task_place place, struct data *params, struct data *m, struct data *v,
                           struct data *grads, size_t count, const struct adamw_options *options, int64_t step)
{
    const struct access accesses[] = {{params, STARPU_RW}, {m, STARPU_RW}, {v, STARPU_RW}, {grads, STARPU_R}};
    TRY(INSERT_TASK(operation_adamw_update, place, accesses, .count = count, .adamw = *options, .step = step));
    exchange_drop(grads);
    return STARPULLM_OK;
}
