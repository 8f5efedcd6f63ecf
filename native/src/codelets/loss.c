/* Codelets of the loss: softmax, cross-entropy, the mean over all sub-batches, and the gradient of softmax and
 * cross-entropy in one; and the task that reports the mean. */
#include "codelets/loss_future.h"
#include "codelets/operation.h"

DEFINE_KERNEL_OPERATION(softmax_forward, buffers[0], buffers[1], a->N, a->V, a->Vp);

status submit_softmax_forward(struct task_place place, struct data *probs, struct data *logits, size_t N, size_t V,
                              size_t Vp)
{
    const struct access accesses[] = {{probs, STARPU_W}, {logits, STARPU_R}};
    return INSERT_TASK(operation_softmax_forward, place, accesses, .N = N, .V = V, .Vp = Vp);
}

DEFINE_KERNEL_OPERATION(crossentropy_forward, buffers[0], buffers[1], buffers[2], a->N, a->Vp);

status submit_crossentropy_forward(struct task_place place, struct data *losses, struct data *probs,
                                   struct data *targets, size_t N, size_t Vp)
{
    const struct access accesses[] = {{losses, STARPU_W}, {probs, STARPU_R}, {targets, STARPU_R}};
    return INSERT_TASK(operation_crossentropy_forward, place, accesses, .N = N, .Vp = Vp);
}

DEFINE_KERNEL_OPERATION(crossentropy_softmax_backward, buffers[0], buffers[1], buffers[2], buffers[3], a->N, a->V,
                        a->Vp, a->start);

status submit_crossentropy_softmax_backward(struct task_place place, struct data *dlogits, struct data *dlosses,
                                            struct data *probs, struct data *targets, size_t N, size_t V, size_t Vp,
                                            enum sum_start start)
{
    const struct access accesses[] = {
        {dlogits, sum_access(start)}, {dlosses, STARPU_R}, {probs, STARPU_R}, {targets, STARPU_R}};
    return INSERT_TASK(operation_crossentropy_softmax_backward, place, accesses, .N = N, .V = V, .Vp = Vp,
                       .start = start);
}

DEFINE_KERNEL_OPERATION(mean_loss, buffers[0], buffers[1], a->N, a->divisor, a->start);

status submit_mean_loss(struct task_place place, struct data *mean, struct data *losses, size_t N, float divisor,
                        enum sum_start start)
{
    const struct access accesses[] = {{mean, sum_access(start)}, {losses, STARPU_R}};
    return INSERT_TASK(operation_mean_loss, place, accesses, .N = N, .divisor = divisor, .start = start);
}

static void run_report_loss(void *const buffers[], const struct task_arguments *a, struct team team)
{
    if (team.index > 0)
        return;
    loss_future_set(a->loss, *(const float *)buffers[0], a->failure);
    loss_future_release(a->loss);
}

DEFINE_OPERATION(report_loss, run_report_loss);

status submit_report_loss(struct task_place place, struct data *mean, struct starpullm_loss *loss)
{
    const struct access accesses[] = {{mean, STARPU_R}};
    return INSERT_TASK(operation_report_loss, place, accesses, .loss = loss, .failure = place.iteration->failure);
}
