/* Reading the machine's topology from hwloc. */
#include "runtime/machine.h"

#include <hwloc.h>
#include <sched.h>
#include <stdio.h>

/* The cores of which the process may use a processing unit; where hwloc knows of no cores, the units, as in StarPU. */
static void read_cores(hwloc_topology_t hwloc, struct topology *topology)
{
    hwloc_bitmap_t binding = hwloc_bitmap_alloc();
    const int bound =
        binding && hwloc_topology_is_thissystem(hwloc) && hwloc_get_cpubind(hwloc, binding, HWLOC_CPUBIND_PROCESS) == 0;
    const hwloc_obj_type_t type = hwloc_get_nbobjs_by_type(hwloc, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    topology->all_cores = hwloc_get_nbobjs_by_type(hwloc, type);
    topology->cores = 0;
    for (int i = 0; i < topology->all_cores && topology->cores < TOPOLOGY_MAX_CORES; i++) {
        hwloc_obj_t core = hwloc_get_obj_by_type(hwloc, type, (unsigned)i);
        if (bound && !hwloc_bitmap_intersects(core->cpuset, binding))
            continue;
        hwloc_obj_t unit = hwloc_get_obj_inside_cpuset_by_type(hwloc, core->cpuset, HWLOC_OBJ_PU, 0);
        topology->first_unit[topology->cores++] = unit ? (int)unit->logical_index : i;
    }
    hwloc_bitmap_free(binding);
}

/* Asks for what is so already. On a machine of more processors than a set has, StarPU asks. */
static bool may_bind(void)
{
    cpu_set_t own;
    return sched_getaffinity(0, sizeof own, &own) != 0 || sched_setaffinity(0, sizeof own, &own) == 0;
}

status topology_read(struct topology *topology)
{
    hwloc_topology_t hwloc;
    if (hwloc_topology_init(&hwloc))
        return runtime_failure("hwloc could not be initialised");
    if (hwloc_topology_load(hwloc)) {
        hwloc_topology_destroy(hwloc);
        return runtime_failure("hwloc could not read this machine's topology");
    }
    read_cores(hwloc, topology);
    topology->processing_units = hwloc_get_nbobjs_by_type(hwloc, HWLOC_OBJ_PU);
    topology->numa_nodes = hwloc_get_nbobjs_by_type(hwloc, HWLOC_OBJ_NUMANODE);
    topology->synthetic = !hwloc_topology_is_thissystem(hwloc);
    topology->may_bind = !topology->synthetic && may_bind();
    const char *model = NULL;
    hwloc_obj_t package = hwloc_get_obj_by_type(hwloc, HWLOC_OBJ_PACKAGE, 0);
    if (package)
        model = hwloc_obj_get_info_by_name(package, "CPUModel");
    snprintf(topology->processor, sizeof topology->processor, "%s", model ? model : "");
    hwloc_topology_destroy(hwloc);
    return STARPULLM_OK;
}
