/* One operation made slower by a stated fraction, to measure which slowdowns the throughput gate sees. Only in builds
 * with STARPULLM_DEFECTS; called by task.c. */
#ifndef STARPULLM_SLOWDOWN_H
#define STARPULLM_SLOWDOWN_H

#include "codelets/task.h"

/* Around a task's kernel. The end goes on for a fraction of the time since the beginning, if the task is one of the
 * operation that STARPULLM_SLOW=<operation>:<fraction> names; the defect slow_matmul is matmul_forward:0.2. */
#ifdef STARPULLM_DEFECTS
int64_t slowdown_begin(void);
void slowdown_end(const struct task *task, int64_t begin_ns);
#else
static inline int64_t slowdown_begin(void)
{
    return 0;
}

static inline void slowdown_end(const struct task *task, int64_t begin_ns)
{
    (void)task;
    (void)begin_ns;
}
#endif

#endif
