/* What the codelet files share: an operation (codelet, performance model, the function that unwraps) and the call that
 * inserts a task of it. Included by codelets/ only. */
#ifndef STARPULLM_OPERATION_H
#define STARPULLM_OPERATION_H

#include <starpu.h>

#include "codelets/codelets.h"

/* Unwraps buffers (in the order of the accesses) and arguments, and makes one kernel call. Called by each thread of the
 * team. */
typedef void operation_run(void *const buffers[], const void *arguments, struct team team);

struct operation {
    operation_run *run;
    struct starpu_perfmodel model;
    struct starpu_codelet codelet;
};

/* The one CPU function of all codelets (task.c): runs the operation in the worker's threads and keeps the record. */
void operation_cpu(void *interfaces[], void *task);

/* Defines operation_<name>, its codelet and its history-based performance model of that name. */
#define DEFINE_OPERATION(name_, run_)                              \
    struct operation operation_##name_ = {                         \
        .run = (run_),                                             \
        .model = {.type = STARPU_HISTORY_BASED, .symbol = #name_}, \
        .codelet = {.where = STARPU_CPU,                           \
                    .cpu_funcs = {operation_cpu},                  \
                    .cpu_funcs_name = {"operation_cpu"},           \
                    .nbuffers = STARPU_VARIABLE_NBUFFERS,          \
                    .model = &operation_##name_.model,             \
                    .name = #name_},                               \
    }

/* Its place in operations.h, and the number after the last, which transfers have. */
int operation_number(const struct operation *operation);
int transfer_number(void);

struct access {
    struct data *data;
    enum starpu_data_access_mode mode;
};

/* An accumulating output's mode. */
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

/* Inserts one task on the rank of its place; arguments are copied. */
status insert_task(struct operation *operation, struct task_place place, const struct access *accesses,
                   size_t num_accesses, const void *arguments, size_t arguments_size);

#define INSERT_TASK(operation, place, accesses, arguments)                                              \
    insert_task(&(operation), (place), (accesses), sizeof(accesses) / sizeof *(accesses), &(arguments), \
                sizeof(arguments))

#endif
