/* What the codelet files share: what an operation is, the modes of its accesses, and the call that inserts a task. */
#ifndef STARPULLM_OPERATION_H
#define STARPULLM_OPERATION_H

#include <starpu.h>

#include "codelets/codelets.h"

/* What a task brings along besides its buffers; each operation uses a part of it. Letters as in kernels/kernels.def. */
struct task_arguments {
    size_t B, T, N, C, OC, NH, V, Vp, maxT, count;
    enum sum_start start;
    float divisor;
    struct adamw_options adamw;
    int64_t step;
    struct starpullm_loss *loss;
    struct failure *failure;
};

/* Makes the operation's one kernel call, in each thread of the team. The buffers are in the order of the accesses. */
typedef void operation_run(void *const buffers[], const struct task_arguments *a, struct team team);

struct operation {
    int number; /* in operations.def */
    operation_run *run;
    struct starpu_perfmodel model;
    struct starpu_codelet codelet;
};

enum {
#define OPERATION(name) OPERATION_##name,
#include "codelets/operations.def"
#undef OPERATION
    NUM_OPERATIONS
};

/* The CPU function of all codelets (task.c). */
void operation_cpu(void *interfaces[], void *task);

/* Defines operation_<name>, with a codelet and a history-based performance model of that name. */
#define DEFINE_OPERATION(name_, run_)                              \
    static struct operation operation_##name_ = {                  \
        .number = OPERATION_##name_,                               \
        .run = (run_),                                             \
        .model = {.type = STARPU_HISTORY_BASED, .symbol = #name_}, \
        .codelet = {.where = STARPU_CPU,                           \
                    .cpu_funcs = {operation_cpu},                  \
                    .nbuffers = STARPU_VARIABLE_NBUFFERS,          \
                    .model = &operation_##name_.model,             \
                    .name = #name_},                               \
    }

/* The same for an operation that is a call of its kernel with these arguments, which come from `buffers` and `a`. */
#define DEFINE_KERNEL_OPERATION(name_, ...)                                                          \
    static void run_##name_(void *const buffers[], const struct task_arguments *a, struct team team) \
    {                                                                                                \
        kernels()->name_(__VA_ARGS__, team);                                                         \
    }                                                                                                \
    DEFINE_OPERATION(name_, run_##name_)

struct access {
    struct data *data;
    enum starpu_data_access_mode mode;
};

_Static_assert(TASK_MAX_ACCESSES <= STARPU_NMAXBUFS,
               "an operation has more accesses than this StarPU allows: configure it with --enable-maxbuffers");

/* The length of an array of accesses, checked when it is compiled. */
#define NUM_ACCESSES(accesses)                                                                   \
    (sizeof(accesses) / sizeof *(accesses) +                                                     \
     0 * sizeof(struct {                                                                         \
         _Static_assert(sizeof(accesses) / sizeof *(accesses) <= TASK_MAX_ACCESSES, "too many"); \
         char member;                                                                            \
     }))

/* The mode of an output that is a sum. */
static inline enum starpu_data_access_mode sum_access(enum sum_start start)
{
    return start == SUM_FROM_ZERO ? STARPU_W : STARPU_RW;
}

/* The mode of a parameter gradient's access, and where the kernel's sum starts. */
static inline enum starpu_data_access_mode accumulation_access(enum accumulation accumulation)
{
    return accumulation == ACCUMULATION_STARTS      ? STARPU_W
           : accumulation == ACCUMULATION_CONTINUES ? STARPU_RW
                                                    : STARPU_REDUX;
}

static inline enum sum_start accumulation_start(enum accumulation accumulation)
{
    return accumulation == ACCUMULATION_STARTS ? SUM_FROM_ZERO : SUM_CONTINUES;
}

/* Inserts a task with at most TASK_MAX_ACCESSES accesses, on the rank of its place. Arguments are copied. */
status insert_task(struct operation *operation, struct task_place place, const struct access *accesses,
                   size_t num_accesses, const struct task_arguments *arguments);

/* The same for an array of accesses and the members of its arguments, such as .count = count. */
#define INSERT_TASK(operation, place, accesses, ...) \
    insert_task(&(operation), (place), (accesses), NUM_ACCESSES(accesses), &(const struct task_arguments){__VA_ARGS__})

#endif
