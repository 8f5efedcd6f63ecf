/* Codelets of GELU, forward and backward. */
#include "codelets/operation.h"

DEFINE_KERNEL_OPERATION(gelu_forward, buffers[0], buffers[1], a->count);

status submit_gelu_forward(struct task_place place, struct data *out, struct data *inp, size_t count)
{
    const struct access accesses[] = {{out, STARPU_W}, {inp, STARPU_R}};
    return INSERT_TASK(operation_gelu_forward, place, accesses, .count = count);
}

DEFINE_KERNEL_OPERATION(gelu_backward, buffers[0], buffers[1], buffers[2], a->count, a->start);

status submit_gelu_backward(struct task_place place, struct data *dinp, struct data *dout, struct data *inp,
                            size_t count, enum sum_start start)
{
    const struct access accesses[] = {{dinp, sum_access(start)}, {dout, STARPU_R}, {inp, STARPU_R}};
    return INSERT_TASK(operation_gelu_backward, place, accesses, .count = count, .start = start);
}
