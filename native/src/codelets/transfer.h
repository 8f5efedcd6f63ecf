/* The messages between ranks that a task needs: its rank gets what it reads and does not own. transfer_mpi.c is for
 * builds with MPI, transfer_local.c for those without. */
#ifndef STARPULLM_TRANSFER_H
#define STARPULLM_TRANSFER_H

#include "codelets/operation.h"

/* Before a task is submitted, on every rank: submits the transfers. *created is a StarPU task with codelet, accesses
 * and priority on the rank of the place, and NULL on the others. */
status transfers_before_task(struct starpu_task **created, struct operation *operation, struct task_place place,
                             const struct access *accesses, size_t num_accesses);

/* After it, on every rank: what was received before is no longer valid where the task has changed it. */
status transfers_after_task(struct operation *operation, struct task_place place, const struct access *accesses,
                            size_t num_accesses);

#endif
