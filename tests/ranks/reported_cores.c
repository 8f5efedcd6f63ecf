/* Preloaded in place of StarPU's start: writes which processing units the workers would be bound to, and fails. So
 * ranks can be tried on more cores than there are; hwloc says that the process may use those of OWN_CORES, if that is
 * set, such as "0-17". */
#include <hwloc.h>
#include <starpu.h>
#include <stdio.h>
#include <stdlib.h>

int starpu_init(struct starpu_conf *conf)
{
    const char *unbound = getenv("STARPU_WORKERS_NOBIND");
    printf("%s", conf->use_explicit_workers_bindid ? "bound:" : unbound ? "not bound" : "as StarPU likes");
    for (int i = 0; i < conf->ncpus && conf->use_explicit_workers_bindid; i++)
        printf(" %u", conf->workers_bindid[i]);
    printf("\n");
    fflush(stdout);
    return -1;
}

int hwloc_get_cpubind(hwloc_topology_t topology, hwloc_cpuset_t set, int flags)
{
    (void)topology, (void)flags;
    const char *own = getenv("OWN_CORES");
    return own ? hwloc_bitmap_list_sscanf(set, own) : -1;
}
