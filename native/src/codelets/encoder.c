/* Codelets of the encoder: token and position embedding, and their gradients. */
#include "codelets/operation.h"

struct forward {
    size_t B, T, C;
};

DEFINE_KERNEL_OPERATION(encoder_forward, struct forward, buffers[0], buffers[1], buffers[2], buffers[3], a->B, a->T,
                        a->C);

status submit_encoder_forward(struct task_place place, struct data *out, struct data *tokens, struct data *wte,
                              struct data *wpe, size_t B, size_t T, size_t C)
{
    const struct access accesses[] = {{out, STARPU_W}, {tokens, STARPU_R}, {wte, STARPU_R}, {wpe, STARPU_R}};
    const struct forward arguments = {B, T, C};
    return INSERT_TASK(operation_encoder_forward, place, accesses, arguments);
}

struct backward {
    size_t B, T, C, maxT;
    enum sum_start dwpe_start;
};

DEFINE_KERNEL_OPERATION(encoder_backward, struct backward, buffers[0], buffers[1], buffers[2], buffers[3], a->B, a->T,
                        a->C, a->maxT, a->dwpe_start);

status submit_encoder_backward(struct task_place place, struct data *dwte, struct data *dwpe, struct data *dout,
                               struct data *tokens, size_t B, size_t T, size_t C, size_t maxT,
                               enum accumulation dwte_accumulation, enum accumulation dwpe_accumulation)
{
    const struct access accesses[] = {{dwte, accumulation_access(dwte_accumulation)},
                                      {dwpe, accumulation_access(dwpe_accumulation)},
                                      {dout, STARPU_R},
                                      {tokens, STARPU_R}};
    const struct backward arguments = {B, T, C, maxT, accumulation_start(dwpe_accumulation)};
    return INSERT_TASK(operation_encoder_backward, place, accesses, arguments);
}
