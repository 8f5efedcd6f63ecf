/* StarPU takes dependences on a task only until that is submitted. So each task with a sum gets a successor without a
 * function, which is submitted when the next task with this sum has been made to wait for it. */
#include "sums.h"

#include <stdatomic.h>

#include "handles.h"
#include "keep.h"

bool is_sum(struct starpu_task *task, unsigned access)
{
    const enum starpu_data_access_mode mode = STARPU_TASK_GET_MODE(task, access);
    return (mode & (STARPU_COMMUTE | STARPU_REDUX)) != 0 && !has_no_order(task, access);
}

void order_sums(struct starpu_task *task)
{
    const unsigned num_accesses = STARPU_TASK_GET_NBUFFERS(task);
    for (unsigned i = 0; i < num_accesses; i++) {
        if (!is_sum(task, i))
            continue;
        struct starpu_task *next = starpu_task_create();
        next->callback_arg = task;
        starpu_task_declare_deps_array(next, 1, &task);
        struct starpu_task *before = atomic_exchange(&known_of(STARPU_TASK_GET_HANDLE(task, i))->next, next);
        if (!before || before->callback_arg == task) /* it has the handle twice, or that task's memory */
            continue;
        starpu_task_declare_deps_array(task, 1, &before);
        STARPU_CHECK_RETURN_VALUE(starpu_task_submit(before), "starpu_task_submit");
    }
}
