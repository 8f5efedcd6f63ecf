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

#ifdef STARPU_PARALLEL_WORKER
#define CONTEXTS STARPU_NMAX_SCHED_CTXS
#else /* no partition needs them: check.c */
#define CONTEXTS 0
#define starpu_parallel_worker_init(object, of_number, number, ...) ((void)(number), NULL)
#define starpu_parallel_worker_shutdown(workers) ((void)(workers))
#endif

struct starpu_parallel_worker_config *parallel_workers_start(int workers)
{
    return starpu_parallel_worker_init(HWLOC_OBJ_MACHINE, STARPU_PARALLEL_WORKER_NB, workers,
                                       STARPU_PARALLEL_WORKER_TYPE, STARPU_PARALLEL_WORKER_OPENMP, 0);
}

void parallel_workers_stop(struct starpu_parallel_worker_config *workers)
{
    starpu_parallel_worker_shutdown(workers);
}

struct runtime_features runtime_features(void)
{
    return (struct runtime_features){
        .max_workers = STARPU_MAXCPUS,
        .max_contexts = CONTEXTS,
        .max_nodes = STARPU_MAXNODES,
    };
}

/* The same as a text, for those who read the file without loading it (starpullm/binding/library.py). */
#define TEXT(words) #words
#define LIMITS(workers, contexts) "starpullm: StarPU of " TEXT(workers) " workers, " TEXT(contexts) " contexts"

__attribute__((used)) static const char limits[] = LIMITS(STARPU_MAXCPUS, CONTEXTS);
