/* Codelets of the matmuls. Their backward is two tasks, so that only the one of weight and bias waits for the sub-batch
 * before it. Without a bias, the last buffer is NULL. */
#include "codelets/operation.h"

DEFINE_KERNEL_OPERATION(matmul_forward, buffers[0], buffers[1], buffers[2], buffers[3], a->N, a->C, a->OC);

status submit_matmul_forward(struct task_place place, struct data *out, struct data *inp, struct data *weight,
                             struct data *bias, size_t N, size_t C, size_t OC)
{
    const struct access accesses[] = {{out, STARPU_W}, {inp, STARPU_R}, {weight, STARPU_R}, {bias, STARPU_R}};
    const struct task_arguments arguments = {.N = N, .C = C, .OC = OC};
    return insert_task(&operation_matmul_forward, place, accesses, bias ? 4 : 3, &arguments);
}

DEFINE_KERNEL_OPERATION(matmul_backward_input, buffers[0], buffers[1], buffers[2], a->N, a->C, a->OC, a->start);

status submit_matmul_backward_input(struct task_place place, struct data *dinp, struct data *dout, struct data *weight,
                                    size_t N, size_t C, size_t OC, enum sum_start start)
{
    const struct access accesses[] = {{dinp, sum_access(start)}, {dout, STARPU_R}, {weight, STARPU_R}};
    return INSERT_TASK(operation_matmul_backward_input, place, accesses, .N = N, .C = C, .OC = OC, .start = start);
}

DEFINE_KERNEL_OPERATION(matmul_backward_weight, buffers[0], buffers[3], buffers[1], buffers[2], a->N, a->C, a->OC,
                        a->start);

status submit_matmul_backward_weight(struct task_place place, struct data *dweight, struct data *dbias,
                                     struct data *dout, struct data *inp, size_t N, size_t C, size_t OC,
                                     enum accumulation accumulation)
{
    const struct access accesses[] = {{dweight, accumulation_access(accumulation)},
                                      {dout, STARPU_R},
                                      {inp, STARPU_R},
                                      {dbias, accumulation_access(accumulation)}};
    const struct task_arguments arguments = {.N = N, .C = C, .OC = OC, .start = accumulation_start(accumulation)};
    return insert_task(&operation_matmul_backward_weight, place, accesses, dbias ? 4 : 3, &arguments);
}
