/* The one place that inserts a task, in a build without MPI: every task runs in this process. Called by every
 * submit_<operation>(). */
#include <stdlib.h>

#include "codelets/task.h"

status insert_task(struct operation *operation, struct task_place place, const struct access *accesses,
                   size_t num_accesses, const void *arguments, size_t arguments_size)
{
    struct task *task;
    TRY(task_create(&task, operation, place, num_accesses, arguments, arguments_size));
    status code = task_observe(task, place, accesses);
    if (code != STARPULLM_OK) {
        free(task);
        return code;
    }
    return task_submit(task, operation, accesses);
}

status submit_transfer(struct task_place place, struct data *destination, struct data *source)
{
    (void)place;
    return fail(STARPULLM_INVALID_STATE, "a transfer from %s to %s: this build has one rank", source->name,
                destination->name);
}
