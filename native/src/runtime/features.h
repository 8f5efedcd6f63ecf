/* What the StarPU at hand has: its version, and what it was built for. */
#pragma once

#include "status.h"

/* The version of the StarPU that is loaded. */
const char *runtime_starpu_version(void);

/* What the StarPU that this was built against can do. */
struct runtime_features {
    int max_workers, max_contexts, max_nodes, parallel_workers;
};
struct runtime_features runtime_features(void);

/* Divides the machine's workers into `count` workers of several threads; NULL if StarPU can't. */
struct starpu_parallel_worker_config *parallel_workers_start(int count);
void parallel_workers_stop(struct starpu_parallel_worker_config *workers); /* NULL is allowed */
