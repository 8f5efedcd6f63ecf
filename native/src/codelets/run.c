/* The worker's side of a task: the one CPU function of all codelets, which calls the kernel that operations.def names,
 * and what follows the task's end. */
#include "codelets/task.h"

#include <pthread.h>
#include <stdio.h>

#include "runtime/runtime.h"

/* ---- The call of each operation's kernel ---- */

#define W(x) task_buffer(task, a->x, buffers),
#define R(x) task_buffer(task, a->x, buffers),
#define RW(x) task_buffer(task, a->x, buffers),
#define RW_FROM(first, x) (float *)task_buffer(task, a->x, buffers) + a->first,
#define S(x) task_buffer(task, a->x.data, buffers),
#define R_OR_NULL(x) R(x)
#define S_OR_NULL(x) S(x)
#define SIZE(x) a->x,
#define OFFSET(x)
#define VALUE(type, x) a->x,
#define ADDRESS(type, x) &a->x,
#define START(x) start_of(a->x),
#define OPERATION(name, operands, values)                                                    \
    static void run_##name(const struct task *task, void *const buffers[], struct team team) \
    {                                                                                        \
        const struct name *a = &task->arguments.name;                                        \
        kernels()->name(operands values team);                                               \
    }
#define OPERATION_WITHOUT_KERNEL(name, operands, values)                                     \
    static void run_##name(const struct task *task, void *const buffers[], struct team team) \
    {                                                                                        \
        const struct name *a = &task->arguments.name;                                        \
        name(operands values team);                                                          \
    }
#include "codelets/operations.def"

struct operation operations[NUM_OPERATIONS] = {
#define OPERATION(name_, operands, values) {.number = OPERATION_##name_, .name = #name_, .run = run_##name_},
#define MESSAGE(name_) {.number = OPERATION_##name_, .name = #name_},
#include "codelets/operations.def"
};

const char *starpullm_operation_name(int32_t index)
{
    return index >= 0 && index < NUM_OPERATIONS ? operations[index].name : NULL;
}

/* ---- The CPU function ---- */

struct call {
    const struct task *task;
    void **buffers;
};

static void run_thread(void *argument, struct team team)
{
    const struct call *call = argument;
    call->task->operation->run(call->task, call->buffers, team);
}

static void operation_cpu(void *interfaces[], void *argument)
{
    struct task *task = argument;
    void *buffers[TASK_MAX_ACCESSES] = {0};
    for (int i = 0; i < task->num_accesses; i++)
        buffers[i] = (void *)STARPU_VECTOR_GET_PTR(interfaces[i]);

    const int expected = runtime_layout()->threads_per_worker;
    task_begin(task, buffers);
    const int threads = team_run(expected, run_thread, &(struct call){task, buffers});
    task_end(task, buffers);
    if (threads != expected)
        failure_keep(
            task->attributes.iteration->failure,
            runtime_failure(
                "%s: OpenMP gave %d threads, expected the partition's %d (is OMP_THREAD_LIMIT or OMP_DYNAMIC set?)",
                task->operation->name, threads, expected));
}

void task_done(void *argument)
{
    const struct task *task = argument;
    for (int i = 0; i < task->num_evicted; i++)
        data_evict(task->evicted[i]);
    iteration_task_done(task->attributes.iteration);
}

/* ---- The codelets ---- */

static void make_codelets(struct operation *operation)
{
    static const char *const suffixes[NUM_MODELS] = {"", "_blas", "_fused"};
    device_function *on_device = device_function_of(operation->number);
    for (int m = 0; m <= NO_MODEL; m++)
        operation->codelets[m] = (struct starpu_codelet){.where = STARPU_CPU | (on_device ? STARPU_OPENCL : 0),
                                                         .cpu_funcs = {operation_cpu},
                                                         .opencl_funcs = {on_device},
                                                         .nbuffers = STARPU_VARIABLE_NBUFFERS,
                                                         .name = operation->name};
    for (int m = 0; m < NUM_MODELS; m++) {
        snprintf(operation->model_names[m], sizeof operation->model_names[m], "starpullm_%s_%s%s", operation->name,
                 kernels_level(), suffixes[m]);
        operation->models[m] =
            (struct starpu_perfmodel){.type = STARPU_HISTORY_BASED, .symbol = operation->model_names[m]};
        operation->codelets[m].model = &operation->models[m];
    }
}

struct starpu_codelet *task_codelet(const struct task *task)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    struct operation *operation = task->operation;
    pthread_mutex_lock(&mutex);
    if (!operation->codelets[0].name)
        make_codelets(operation);
    pthread_mutex_unlock(&mutex);
    const int arithmetic = (int)runtime_layout()->arithmetic;
    return &operation->codelets[task->attributes.iteration->instrument ? NO_MODEL : arithmetic];
}
