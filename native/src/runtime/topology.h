/* The machine as hwloc describes it (HWLOC_SYNTHETIC included). */
#pragma once

#include "status.h"

enum { TOPOLOGY_MAX_CORES = 1024 };

struct topology {
    int cores;                          /* those that this process may run on */
    int all_cores;                      /* of the machine */
    int first_unit[TOPOLOGY_MAX_CORES]; /* of each core in `cores`: its first processing unit's logical number */
    int processing_units, numa_nodes;
    int synthetic; /* not the real machine's topology: threads can't be bound */
    char processor[128];
};

status topology_read(struct topology *topology);
