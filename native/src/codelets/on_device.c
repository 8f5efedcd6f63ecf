/* A device's part: each operation's arguments for its kernel, from operations.def. */
#include "codelets/task.h"

#include "devices/device.h"

/* NULL of an operand that is absent. */
static void pass(struct device_call *call, const struct task *task, const struct data *data, void *interfaces[],
                 size_t first)
{
    void *interface = task_buffer(task, data, interfaces);
    if (interface)
        device_array(call, (cl_mem)STARPU_VECTOR_GET_DEV_HANDLE(interface),
                     STARPU_VECTOR_GET_OFFSET(interface) + first * sizeof(float));
    else
        device_array(call, NULL, 0);
}

#define W(x) pass(call, task, a->x, interfaces, 0);
#define R(x) W(x)
#define RW(x) W(x)
#define RW_FROM(first, x) pass(call, task, a->x, interfaces, a->first);
#define S(x) pass(call, task, a->x.data, interfaces, 0);
#define R_OR_NULL(x) R(x)
#define S_OR_NULL(x) S(x)
#define SIZE(x) device_argument(call, sizeof(cl_ulong), &(cl_ulong){a->x});
#define OFFSET(x)
#define VALUE(type, x) device_argument(call, sizeof a->x, &a->x);
#define ADDRESS(type, x) VALUE(type, x)
#define START(x) device_argument(call, sizeof(cl_int), &(cl_int){start_of(a->x)});
#define OPERATION(name, operands, values)                                                          \
    static void pass_##name(struct device_call *call, const struct task *task, void *interfaces[]) \
    {                                                                                              \
        const struct name *a = &task->arguments.name;                                              \
        call->number = KERNEL_##name;                                                              \
        operands values                                                                            \
    }
#define OPERATION_WITHOUT_KERNEL(name, operands, values)
#include "codelets/operations.def"

static void (*const passes[NUM_OPERATIONS])(struct device_call *, const struct task *, void *[]) = {
#define OPERATION(name, operands, values) [OPERATION_##name] = pass_##name,
#define OPERATION_WITHOUT_KERNEL(name, operands, values)
#include "codelets/operations.def"
};

static void operation_opencl(void *interfaces[], void *argument)
{
    struct task *task = argument;
    struct device_call call = {.device = device_of_worker()};
    task_begin(task, interfaces);
    passes[task->operation->number](&call, task, interfaces);
    failure_keep(task->attributes.iteration->failure, device_run(&call));
    task_end(task, interfaces);
}

/* The host waits for the mean loss. */
device_function *device_function_of(int operation)
{
    return passes[operation] && operation != OPERATION_mean_loss ? operation_opencl : NULL;
}
