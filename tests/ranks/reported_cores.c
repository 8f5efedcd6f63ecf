/* Preloaded in place of StarPU's start: writes which processing units the workers would be bound to, and fails. So
 * ranks can be tried on more cores than there are; hwloc doesn't say which of them the process may use. */
#include <hwloc.h>
#include <starpu.h>
#include <stdio.h>

int starpu_init(struct starpu_conf *conf)
{
    printf("%s", conf->use_explicit_workers_bindid ? "bound:" : "not bound");
    for (int i = 0; i < conf->ncpus && conf->use_explicit_workers_bindid; i++)
        printf(" %u", conf->workers_bindid[i]);
    printf("\n");
    fflush(stdout);
    return -1;
}

int hwloc_get_cpubind(hwloc_topology_t topology, hwloc_cpuset_t set, int flags)
{
    (void)topology, (void)set, (void)flags;
    return -1;
}
