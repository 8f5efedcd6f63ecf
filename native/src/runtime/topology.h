/* The machine as hwloc sees it (HWLOC_SYNTHETIC included). Called by runtime.c and api.c. */
#ifndef STARPULLM_TOPOLOGY_H
#define STARPULLM_TOPOLOGY_H

#include "status.h"

struct topology {
    int cores; /* those that this process may run on */
    int processing_units, numa_nodes;
    int synthetic; /* not this machine's own: threads can't be bound */
    char processor[128];
};

status topology_read(struct topology *topology);

#endif
