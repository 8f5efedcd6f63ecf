/* Codelets of the residual sum, forward and backward. */
#include "codelets/operation.h"

DEFINE_KERNEL_OPERATION(residual_forward, buffers[0], buffers[1], buffers[2], a->count);

status submit_residual_forward(struct task_place place, struct data *out, struct data *a, struct data *b, size_t count)
{
    const struct access accesses[] = {{out, STARPU_W}, {a, STARPU_R}, {b, STARPU_R}};
    return INSERT_TASK(operation_residual_forward, place, accesses, .count = count);
}

DEFINE_KERNEL_OPERATION(residual_backward, buffers[0], buffers[1], buffers[2], a->count, a->start);

status submit_residual_backward(struct task_place place, struct data *da, struct data *db, struct data *dout,
                                size_t count, enum sum_start start)
{
    const struct access accesses[] = {{da, sum_access(start)}, {db, sum_access(start)}, {dout, STARPU_R}};
    return INSERT_TASK(operation_residual_backward, place, accesses, .count = count, .start = start);
}
