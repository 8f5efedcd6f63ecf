/* A task from its submission to its end: its argument block, its record in the trace, the messages between ranks that
 * it needs. */
#ifndef STARPULLM_TASK_H
#define STARPULLM_TASK_H

#include "codelets/operation.h"
#include "instrument/instrument.h"

/* The argument of a StarPU task, which frees it. */
struct task {
    const struct operation *operation;
    struct iteration *iteration;
    struct starpullm_trace_task *record; /* NULL: not traced */
    struct watch watch;                  /* its instrument is NULL: none */
    int num_buffers;
    struct task_arguments arguments;
};

/* Copies the arguments, and tells the recorder and the instruments of the task, if there are any. The task keeps a
 * reference to the loss among them, if there is one, which its kernel releases. */
status task_create(struct task **task, const struct operation *operation, struct task_place place,
                   const struct access *accesses, size_t num_accesses, const struct task_arguments *arguments);

/* Adds a task or a transfer to the trace; *record is NULL if nothing is traced. */
status task_record(struct starpullm_trace_task **record, int operation_number, struct task_place place,
                   const struct access *accesses, size_t num_accesses);

/* Destroys a task that won't run on this rank. */
void task_destroy(struct task *task);

/* The callback of a task that has run. */
void task_done(void *task);

/* Over ranks, a task's rank gets what the task reads and the rank doesn't own. transfer_mpi.c is for builds with MPI.
 *
 * Before a task is submitted, on every rank: submits the transfers. *created is a StarPU task with codelet, accesses
 * and priority on the rank of the place, and NULL on the others. */
status transfers_before_task(struct starpu_task **created, struct operation *operation, struct task_place place,
                             const struct access *accesses, size_t num_accesses);

/* After it, on every rank: what was received before is no longer valid where the task has changed it. */
status transfers_after_task(struct operation *operation, struct task_place place, const struct access *accesses,
                            size_t num_accesses);

#endif
