/* Tasks that are submitted but held back, so that StarPU can be asked for the dependencies between them: it only knows
 * the successors of tasks that haven't run. */
#pragma once

#include "status.h"

struct hold;
struct starpu_task;

/* All that StarPU may refuse happens here, so that a hold can always be released. */
status hold_create(struct hold **hold);

/* Makes a recorded task that isn't submitted yet wait for hold_release(). */
status hold_task(struct hold *hold, struct starpu_task *task);

/* Takes the task back that hold_task() was called for last, because StarPU has refused it. hold_release() destroys it.
 */
void hold_keep_refused(struct hold *hold, struct starpu_task *task);

/* Refuses to wait for tasks that are held: the wait would never end. NULL: none are. */
status check_not_held(const struct hold *hold);

/* The ids of a task and of a successor. StarPU's own tasks have ids below 0. */
struct hold_edge {
    int64_t before, after;
};

/* The edges between all held tasks, which belong to the caller (free). No task may be submitted meanwhile. */
status hold_edges(struct hold *hold, struct hold_edge **edges, size_t *count);

/* Lets the tasks run, and destroys the hold. NULL is allowed. */
void hold_release(struct hold *hold);
