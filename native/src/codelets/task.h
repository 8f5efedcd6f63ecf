/* A task from its submission to its end: its argument block, its record in the trace, its CPU function. */
#ifndef STARPULLM_TASK_H
#define STARPULLM_TASK_H

#include "codelets/operation.h"

/* The argument of a StarPU task, which frees it. */
struct task {
    const struct operation *operation;
    struct iteration *iteration;
    struct starpullm_trace_task *record; /* NULL: not traced */
    struct watch *watch;                 /* NULL: no instruments; else in this block, behind the arguments */
    int num_buffers;
    max_align_t arguments[];
};

/* Copies the arguments, and tells the recorder and the instruments of the task, if there are any. */
status task_create(struct task **task, const struct operation *operation, struct task_place place,
                   const struct access *accesses, size_t num_accesses, const void *arguments, size_t arguments_size);

/* Adds a task or a transfer to the trace; *record is NULL if nothing is traced. */
status task_record(struct starpullm_trace_task **record, int operation_number, struct task_place place,
                   const struct access *accesses, size_t num_accesses);

/* The callback of a task that has run. */
void task_done(void *task);

#endif
