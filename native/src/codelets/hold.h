/* Tasks that are held back together, so that StarPU can be asked for the graph that it made of them: it knows a task's
 * successors until that has run. Created and let go by session.c; codelets/task.c holds each task. */
#ifndef STARPULLM_HOLD_H
#define STARPULLM_HOLD_H

#include "status.h"

struct hold;
struct starpu_task;

status hold_create(struct hold **hold);

/* Before the task is submitted: it won't run before hold_let_go(). id: its number in the trace. */
status hold_task(struct hold *hold, struct starpu_task *task, int64_t id);

/* The ids of a task and of one that waits for it. Tasks of StarPU's own have ids below 0. */
struct hold_edge {
    int64_t before, after;
};

/* Asks StarPU; no task may be submitted meanwhile. The edges belong to the caller (free). */
status hold_edges(const struct hold *hold, struct hold_edge **edges, size_t *count);

/* Lets the tasks run; destroys the hold, also on failure. NULL: nothing. */
status hold_let_go(struct hold *hold);

#endif
