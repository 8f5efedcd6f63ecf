/* What a runtime finds: the machine, StarPU and how it was built; and which options they can serve. */
#pragma once

#include "status.h"

/* ---- topology.c: the machine as hwloc describes it (HWLOC_SYNTHETIC included) ---- */

enum { TOPOLOGY_MAX_CORES = 1024 };

struct topology {
    int cores;                          /* those that this process may run on */
    int all_cores;                      /* of the machine */
    int first_unit[TOPOLOGY_MAX_CORES]; /* of each core in `cores`: its first processing unit's logical number */
    int processing_units, numa_nodes;
    int synthetic; /* not the real machine's topology: threads can't be bound */
    bool may_bind; /* nor where a container refuses that */
    char processor[128];
};

status topology_read(struct topology *topology);

/* ---- features.c ---- */

/* The version of the StarPU that is loaded. */
const char *runtime_starpu_version(void);

/* What the StarPU that this was built against can do. */
struct runtime_features {
    int max_workers, max_contexts, max_nodes; /* no contexts: without parallel workers */
};
struct runtime_features runtime_features(void);

struct starpu_parallel_worker_config *parallel_workers_start(int workers); /* NULL: it has failed */
void parallel_workers_stop(struct starpu_parallel_worker_config *workers);

/* ---- check.c ---- */

status check_runtime_options(const struct starpullm_runtime_options *options, const struct topology *topology);
