/* The only file that asks how StarPU was configured. */
#include "runtime/machine.h"

#include <starpu.h>
#include <stdio.h>

const char *starpullm_scheduler_name(size_t index)
{
    struct starpu_sched_policy **policies = starpu_sched_get_predefined_policies();
    for (size_t i = 0; policies[i]; i++)
        if (i == index)
            return policies[i]->policy_name;
    return NULL;
}

const char *runtime_starpu_version(void)
{
    static char version[32];
    int numbers[3];
    starpu_get_version(&numbers[0], &numbers[1], &numbers[2]);
    snprintf(version, sizeof version, "%d.%d.%d", numbers[0], numbers[1], numbers[2]);
    return version;
}

#ifdef STARPU_PARALLEL_WORKER

#define HAS_PARALLEL_WORKERS 1

struct starpu_parallel_worker_config *parallel_workers_start(int count)
{
    return starpu_parallel_worker_init(HWLOC_OBJ_MACHINE, STARPU_PARALLEL_WORKER_NB, count, STARPU_PARALLEL_WORKER_TYPE,
                                       STARPU_PARALLEL_WORKER_OPENMP, 0);
}

void parallel_workers_stop(struct starpu_parallel_worker_config *workers)
{
    if (workers)
        starpu_parallel_worker_shutdown(workers);
}

#else

#define HAS_PARALLEL_WORKERS 0

struct starpu_parallel_worker_config *parallel_workers_start(int count)
{
    (void)count;
    return NULL;
}

void parallel_workers_stop(struct starpu_parallel_worker_config *workers)
{
    (void)workers;
}

#endif

struct runtime_features runtime_features(void)
{
    return (struct runtime_features){
        .max_workers = STARPU_MAXCPUS,
        .max_contexts = STARPU_NMAX_SCHED_CTXS,
        .max_nodes = STARPU_MAXNODES,
        .parallel_workers = HAS_PARALLEL_WORKERS,
    };
}

/* The same as a text, for those who read the file without loading it (starpullm/binding/library.py). */
#define TEXT(words) #words
#define LIMITS(workers, contexts, parallel) \
    "starpullm: StarPU of " TEXT(workers) " workers, " TEXT(contexts) " contexts, parallel workers " TEXT(parallel)

__attribute__((used)) static const char limits[] = LIMITS(STARPU_MAXCPUS, STARPU_NMAX_SCHED_CTXS, HAS_PARALLEL_WORKERS);
