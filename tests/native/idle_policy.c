// A scheduling policy that runs no task: whatever waits for one waits for ever.
#include <starpu.h>
#include <starpu_scheduler.h>

static void nothing(unsigned id)
{
    (void)id;
}

static int push(struct starpu_task *task)
{
    (void)task;
    return 0;
}

static struct starpu_task *pop(unsigned id)
{
    (void)id;
    return NULL;
}

static struct starpu_sched_policy idle = {
    .init_sched = nothing,
    .deinit_sched = nothing,
    .push_task = push,
    .pop_task = pop,
    .policy_name = "idle",
    .policy_description = "runs no task",
};

struct starpu_sched_policy *starpu_get_sched_lib_policy(const char *name)
{
    (void)name;
    return &idle;
}
