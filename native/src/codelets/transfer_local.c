/* Messages between ranks in a build without MPI: there is one rank, and nothing to send. */
#include "codelets/transfer.h"

static status refuse(const char *what)
{
    return fail(STARPULLM_INVALID_STATE, "%s: found several ranks, expected one in a build without MPI", what);
}

status transfers_before_task(struct starpu_task **created, struct operation *operation, struct task_place place,
                             const struct access *accesses, size_t num_accesses)
{
    (void)created, (void)place, (void)accesses, (void)num_accesses;
    return refuse(operation->codelet.name);
}

status transfers_after_task(struct operation *operation, struct task_place place, const struct access *accesses,
                            size_t num_accesses)
{
    (void)place, (void)accesses, (void)num_accesses;
    return refuse(operation->codelet.name);
}

status submit_transfer(struct task_place place, struct data *destination, struct data *source)
{
    (void)place, (void)source;
    return refuse(destination->name);
}
