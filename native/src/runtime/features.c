/* The only file that asks how StarPU was configured. */
#include "runtime/machine.h"

#include <starpu.h>
#include <stdio.h>
#include <string.h>

/* graph_test starts no task before starpu_do_schedule(), which nothing here calls; all others of StarPU 1.4.10 do. */
const char *starpullm_scheduler_name(size_t index)
{
    struct starpu_sched_policy **policies = starpu_sched_get_predefined_policies();
    for (size_t i = 0; policies[i]; i++)
        if (strcmp(policies[i]->policy_name, "graph_test") != 0 && index-- == 0)
            return policies[i]->policy_name;
    return NULL;
}

const char *runtime_starpu_version(void)
{
    static _Thread_local char version[32];
    int numbers[3];
    starpu_get_version(&numbers[0], &numbers[1], &numbers[2]);
    snprintf(version, sizeof version, "%d.%d.%d", numbers[0], numbers[1], numbers[2]);
    return version;
}

struct runtime_features runtime_features(void)
{
    return (struct runtime_features){
        .max_workers = STARPU_MAXCPUS,
        .max_contexts = STARPU_NMAX_SCHED_CTXS,
        .max_nodes = STARPU_MAXNODES,
    };
}

/* The same as a text, for those who read the file without loading it (starpullm/binding/library.py). */
#define TEXT(words) #words
#define LIMITS(workers, contexts) "starpullm: StarPU of " TEXT(workers) " workers, " TEXT(contexts) " contexts"

__attribute__((used)) static const char limits[] = LIMITS(STARPU_MAXCPUS, STARPU_NMAX_SCHED_CTXS);
