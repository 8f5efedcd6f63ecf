/* Numbers start at 1 there, as a task that wasn't submitted yet has 0. */
#include "marks.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "keep.h"

enum { FIRST_BIT = 59 };

static uint64_t num_own;
static _Atomic bool is_released;

static uintptr_t bit_of(enum mark mark)
{
    return (uintptr_t)1 << (FIRST_BIT + mark);
}

bool has_mark(const struct starpu_task *task, enum mark mark)
{
    return ((uintptr_t)task->sched_data & bit_of(mark)) != 0;
}

void set_started(struct starpu_task *task, bool is_started)
{
    const uintptr_t others = (uintptr_t)task->sched_data & ~bit_of(MARK_STARTED);
    task->sched_data = (void *)(others | (is_started ? bit_of(MARK_STARTED) : 0));
}

uint64_t task_number(const struct starpu_task *task)
{
    return ((uintptr_t)task->sched_data & (bit_of(0) - 1)) - 1;
}

bool task_is_held(const struct starpu_task *task)
{
    return has_mark(task, MARK_HELD) && !is_released;
}

void release_held_tasks(void)
{
    is_released = true;
}

/* Whether the next number in the list is this one: both ascend. */
static bool take_held(struct settings *settings, uint64_t own)
{
    char *end;
    if (!settings->held || strtoull(settings->held, &end, 10) != own)
        return false;
    settings->held = *end == ',' ? end + 1 : NULL;
    return true;
}

uintptr_t marks_of_own(struct settings *settings, struct starpu_task *task)
{
    const uint64_t own = num_own++;
    const bool is_new = !task->sched_data && !task->regenerate; /* not submitted before, nor again */
    return (keep_task(settings, task, own) ? bit_of(MARK_KEPT) : 0) |
           (take_held(settings, own) ? bit_of(MARK_HELD) : 0) | (own == settings->until ? bit_of(MARK_AWAITED) : 0) |
           (settings->ordered && is_new ? bit_of(MARK_ORDERED) : 0);
}
