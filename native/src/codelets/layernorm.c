/* Codelets of layernorm. Its backward is two tasks, so that only the one of weight and bias waits for the sub-batch
 * before it. */
#include "codelets/operation.h"

DEFINE_KERNEL_OPERATION(layernorm_forward, buffers[0], buffers[1], buffers[2], buffers[3], buffers[4], buffers[5], a->N,
                        a->C);

status submit_layernorm_forward(struct task_place place, struct data *out, struct data *mean, struct data *rstd,
                                struct data *inp, struct data *weight, struct data *bias, size_t N, size_t C)
{
    const struct access accesses[] = {{out, STARPU_W}, {mean, STARPU_W},   {rstd, STARPU_W},
                                      {inp, STARPU_R}, {weight, STARPU_R}, {bias, STARPU_R}};
    return INSERT_TASK(operation_layernorm_forward, place, accesses, .N = N, .C = C);
}

DEFINE_KERNEL_OPERATION(layernorm_backward_input, buffers[0], buffers[1], buffers[2], buffers[3], buffers[4],
                        buffers[5], a->N, a->C, a->start);

status submit_layernorm_backward_input(struct task_place place, struct data *dinp, struct data *dout, struct data *inp,
                                       struct data *mean, struct data *rstd, struct data *weight, size_t N, size_t C,
                                       enum sum_start start)
{
    const struct access accesses[] = {{dinp, sum_access(start)}, {dout, STARPU_R}, {inp, STARPU_R},
                                      {mean, STARPU_R},          {rstd, STARPU_R}, {weight, STARPU_R}};
    return INSERT_TASK(operation_layernorm_backward_input, place, accesses, .N = N, .C = C, .start = start);
}

DEFINE_KERNEL_OPERATION(layernorm_backward_weight, buffers[0], buffers[1], buffers[2], buffers[3], buffers[4],
                        buffers[5], a->N, a->C, a->start);

status submit_layernorm_backward_weight(struct task_place place, struct data *dweight, struct data *dbias,
                                        struct data *dout, struct data *inp, struct data *mean, struct data *rstd,
                                        size_t N, size_t C, enum accumulation accumulation)
{
    const struct access accesses[] = {{dweight, accumulation_access(accumulation)},
                                      {dbias, accumulation_access(accumulation)},
                                      {dout, STARPU_R},
                                      {inp, STARPU_R},
                                      {mean, STARPU_R},
                                      {rstd, STARPU_R}};
    return INSERT_TASK(operation_layernorm_backward_weight, place, accesses, .N = N, .C = C,
                       .start = accumulation_start(accumulation));
}
