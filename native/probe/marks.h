/* What the probe keeps in a task's sched_data, which is a policy's own: its number, and marks above it. */
#pragma once

#include <starpu.h>
#include <stdbool.h>
#include <stdint.h>

#include "settings.h"

enum mark {
    MARK_ORDERED, /* its sums are ordered */
    MARK_AWAITED, /* held tasks wait until it starts */
    MARK_HELD,
    MARK_KEPT,    /* its contents are recorded */
    MARK_STARTED, /* and not ended */
};

/* Of the next of the program's own tasks, as the settings say. Calls are serialised. */
uintptr_t marks_of_own(struct settings *settings, struct starpu_task *task);
bool has_mark(const struct starpu_task *task, enum mark mark);
void set_started(struct starpu_task *task, bool is_started);

/* The number that a task has from its submission; UINT64_MAX: it has none. */
uint64_t task_number(const struct starpu_task *task);

/* Whether the settings let a task wait for another one, which hasn't started yet. */
bool task_is_held(const struct starpu_task *task);
void release_held_tasks(void);
