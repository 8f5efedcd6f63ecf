/* StarPU, started and stopped: one runtime in a process, its partition and its scheduler. Created by api.c; session.c
 * registers itself so that a runtime isn't stopped under it. */
#ifndef STARPULLM_RUNTIME_H
#define STARPULLM_RUNTIME_H

#include <stdbool.h>

#include "status.h"

status runtime_create(const struct starpullm_runtime_options *options, struct starpullm_runtime **runtime);
status runtime_destroy(struct starpullm_runtime *runtime);

/* STARPULLM_INVALID_STATE if the runtime isn't the one that is running. */
status runtime_enter_session(struct starpullm_runtime *runtime);
void runtime_leave_session(struct starpullm_runtime *runtime);

/* The running runtime's shape; that of one worker of one thread alone while none is running. */
struct runtime_layout {
    int workers, threads_per_worker;
    int rank, ranks;
    unsigned context; /* the scheduling context that tasks are submitted to */
    bool blas;        /* matmuls aren't strict */
};
const struct runtime_layout *runtime_layout(void);

/* Where each thread of each worker runs, asked of the threads themselves; room for workers times threads_per_worker. No
 * other task may be running. */
status runtime_threads(struct starpullm_runtime *runtime, struct starpullm_thread_info *threads);

/* Name of StarPU's index-th scheduler, NULL past the last. */
const char *runtime_scheduler_name(size_t index);

/* Version of the StarPU that is loaded, as text. */
const char *runtime_starpu_version(void);

/* What the StarPU that this was built against can do. */
struct runtime_features {
    int max_workers, max_contexts, parallel_workers;
};
struct runtime_features runtime_features(void);

#endif
