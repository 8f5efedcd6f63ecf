/* Codelets of the encoder: token and position embedding, and their gradients. */
#include "codelets/operation.h"

DEFINE_KERNEL_OPERATION(encoder_forward, buffers[0], buffers[1], buffers[2], buffers[3], a->B, a->T, a->C);

status submit_encoder_forward(struct task_place place, struct data *out, struct data *tokens, struct data *wte,
                              struct data *wpe, size_t B, size_t T, size_t C)
{
    const struct access accesses[] = {{out, STARPU_W}, {tokens, STARPU_R}, {wte, STARPU_R}, {wpe, STARPU_R}};
    return INSERT_TASK(operation_encoder_forward, place, accesses, .B = B, .T = T, .C = C);
}

DEFINE_KERNEL_OPERATION(encoder_backward, buffers[0], buffers[1], buffers[2], buffers[3], a->B, a->T, a->C, a->maxT,
                        a->start);

status submit_encoder_backward(struct task_place place, struct data *dwte, struct data *dwpe, struct data *dout,
                               struct data *tokens, size_t B, size_t T, size_t C, size_t maxT,
                               enum accumulation dwte_accumulation, enum accumulation dwpe_accumulation)
{
    const struct access accesses[] = {{dwte, accumulation_access(dwte_accumulation)},
                                      {dwpe, accumulation_access(dwpe_accumulation)},
                                      {dout, STARPU_R},
                                      {tokens, STARPU_R}};
    return INSERT_TASK(operation_encoder_backward, place, accesses, .B = B, .T = T, .C = C, .maxT = maxT,
                       .start = accumulation_start(dwpe_accumulation));
}
