/* Reads the machine's topology from hwloc. Called by runtime.c before StarPU is started, and by api.c. */
#include "runtime/topology.h"

#include <hwloc.h>
#include <stdio.h>

/* Cores that share a processing unit with the process's own binding; all if there is none. */
static int allowed_cores(hwloc_topology_t hwloc)
{
    int cores = hwloc_get_nbobjs_by_type(hwloc, HWLOC_OBJ_CORE);
    hwloc_bitmap_t binding = hwloc_bitmap_alloc();
    if (!binding)
        return cores;
    if (hwloc_topology_is_thissystem(hwloc) && hwloc_get_cpubind(hwloc, binding, HWLOC_CPUBIND_PROCESS) == 0) {
        int allowed = 0;
        for (int i = 0; i < cores; i++)
            allowed +=
                hwloc_bitmap_intersects(hwloc_get_obj_by_type(hwloc, HWLOC_OBJ_CORE, (unsigned)i)->cpuset, binding);
        cores = allowed;
    }
    hwloc_bitmap_free(binding);
    return cores;
}

status topology_read(struct topology *topology)
{
    hwloc_topology_t hwloc;
    if (hwloc_topology_init(&hwloc))
        return fail(STARPULLM_RUNTIME_FAILURE, "hwloc could not be initialised");
    if (hwloc_topology_load(hwloc)) {
        hwloc_topology_destroy(hwloc);
        return fail(STARPULLM_RUNTIME_FAILURE, "hwloc could not read this machine's topology");
    }
    topology->cores = allowed_cores(hwloc);
    topology->processing_units = hwloc_get_nbobjs_by_type(hwloc, HWLOC_OBJ_PU);
    topology->numa_nodes = hwloc_get_nbobjs_by_type(hwloc, HWLOC_OBJ_NUMANODE);
    topology->synthetic = !hwloc_topology_is_thissystem(hwloc);
    const char *model = NULL;
    hwloc_obj_t package = hwloc_get_obj_by_type(hwloc, HWLOC_OBJ_PACKAGE, 0);
    if (package)
        model = hwloc_obj_get_info_by_name(package, "CPUModel");
    snprintf(topology->processor, sizeof topology->processor, "%s", model ? model : "");
    hwloc_topology_destroy(hwloc);
    return STARPULLM_OK;
}
