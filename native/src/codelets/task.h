/* A task from its submission to its end, whoever inserts it: its argument block, its record, its one CPU function.
 * Called by insert_*.c. */
#ifndef STARPULLM_TASK_H
#define STARPULLM_TASK_H

#include "codelets/operation.h"

/* A task's argument: freed by StarPU with the task. */
struct task {
    const struct operation *operation;
    struct iteration *iteration;
    struct starpullm_trace_task *record; /* NULL: not traced */
    struct watch *watch;                 /* NULL: no instruments; else in this block, behind the arguments */
    int num_buffers, priority;
    size_t size; /* of the whole block */
    max_align_t arguments[];
};

/* Copies the arguments; what comes of the recorder and the instruments is added by task_observe(). */
status task_create(struct task **task, const struct operation *operation, struct task_place place, size_t num_accesses,
                   const void *arguments, size_t arguments_size);

/* Tells the recorder and the instruments, if there are any. */
status task_observe(struct task *task, struct task_place place, const struct access *accesses);

/* Tells the recorder, if there is one; record may be NULL, also where the task runs on another rank. */
status task_record(struct starpullm_trace_task **record, int operation_number, struct task_place place,
                   const struct access *accesses, size_t num_accesses);

/* Submits it in this process. Takes the block over, also on failure. */
status task_submit(struct task *task, struct operation *operation, const struct access *accesses);

/* Callback of a task that has run. */
void task_done(void *task);

#endif
