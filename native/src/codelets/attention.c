/* Codelets of attention, forward and backward. */
#include "codelets/operation.h"

DEFINE_KERNEL_OPERATION(attention_forward, buffers[0], buffers[1], buffers[2], buffers[3], a->B, a->T, a->C, a->NH);

status submit_attention_forward(struct task_place place, struct data *out, struct data *preatt, struct data *att,
                                struct data *qkv, size_t B, size_t T, size_t C, size_t NH)
{
    const struct access accesses[] = {{out, STARPU_W}, {preatt, STARPU_W}, {att, STARPU_W}, {qkv, STARPU_R}};
    return INSERT_TASK(operation_attention_forward, place, accesses, .B = B, .T = T, .C = C, .NH = NH);
}

DEFINE_KERNEL_OPERATION(attention_backward, buffers[0], buffers[1], buffers[2], buffers[3], buffers[4], buffers[5],
                        a->B, a->T, a->C, a->NH);

status submit_attention_backward(struct task_place place, struct data *dqkv, struct data *dpreatt, struct data *datt,
                                 struct data *dout, struct data *qkv, struct data *att, size_t B, size_t T, size_t C,
                                 size_t NH)
{
    const struct access accesses[] = {{dqkv, STARPU_W}, {dpreatt, STARPU_W}, {datt, STARPU_W},
                                      {dout, STARPU_R}, {qkv, STARPU_R},     {att, STARPU_R}};
    return INSERT_TASK(operation_attention_backward, place, accesses, .B = B, .T = T, .C = C, .NH = NH);
}
