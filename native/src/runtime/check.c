/* Refusals of a scheduler, a partition or a SIMD level, before StarPU is started: it would abort, or wait for ever. */
#include "runtime/check.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "runtime/features.h"
#include "runtime/team.h"

/* "a, b, c" */
static void join_names(char *names, size_t bytes, const char *(*name_of)(size_t index))
{
    size_t used = 0;
    const char *name;
    names[0] = '\0';
    for (size_t i = 0; (name = name_of(i)) && used < bytes; i++)
        used += (size_t)snprintf(names + used, bytes - used, "%s%s", i ? ", " : "", name);
}

static bool is_among(const char *name, const char *(*name_of)(size_t index))
{
    size_t i = 0;
    while (name_of(i) && strcmp(name_of(i), name) != 0)
        i++;
    return name_of(i) != NULL;
}

static status check_scheduler(const char *scheduler)
{
    if (!scheduler)
        return fail(STARPULLM_INVALID_ARGUMENT, "scheduler: none was given, expected one of StarPU's names");
    if (is_among(scheduler, starpullm_scheduler_name))
        return STARPULLM_OK;
    char names[1024];
    join_names(names, sizeof names, starpullm_scheduler_name);
    return fail(STARPULLM_INVALID_ARGUMENT, "scheduler: \"%s\" is unknown to StarPU %s, expected one of %s", scheduler,
                runtime_starpu_version(), names);
}

static status refuse_cores(const struct starpullm_runtime_options *options, const struct topology *topology)
{
    const int W = options->workers, T = options->threads_per_worker, found = topology->cores;
    const long long threads = (long long)W * T;
    if (found < topology->all_cores && threads <= topology->all_cores)
        return fail(
            STARPULLM_INVALID_ARGUMENT,
            "partition %dx%d: needs %lld cores, found this process bound to %d of the machine's %d, expected no "
            "binding or enough cores (under Open MPI's mpirun: --bind-to none, or --map-by slot:PE=%lld)",
            W, T, threads, found, topology->all_cores, threads);
    return fail(STARPULLM_INVALID_ARGUMENT, "partition %dx%d: needs %lld cores, found %d%s that this process may use",
                W, T, threads, found, topology->synthetic ? " (HWLOC_SYNTHETIC)" : "");
}

static status check_partition(const struct starpullm_runtime_options *options, const struct topology *topology)
{
    const int W = options->workers, T = options->threads_per_worker;
    if (W < 1 || T < 1)
        return fail(STARPULLM_INVALID_ARGUMENT, "partition %dx%d: expected at least one worker of one thread", W, T);
    const int64_t threads = (int64_t)W * T;
    const struct runtime_features features = runtime_features();
    if (threads > features.max_workers)
        return fail(STARPULLM_INVALID_ARGUMENT, "partition %dx%d: StarPU was built for at most %d cores", W, T,
                    features.max_workers);
    if (threads > topology->cores)
        return refuse_cores(options, topology);
    if (T == 1)
        return STARPULLM_OK;
    /* OpenMP would bind the threads to other cores than StarPU does, and the workers would wait for each other for
     * ever. */
    if (team_binds_threads())
        return fail(
            STARPULLM_INVALID_ARGUMENT,
            "OMP_PROC_BIND: OpenMP binds threads itself, expected \"false\" or unset for partition %dx%d: StarPU binds "
            "the threads of its workers",
            W, T);
    if (!features.parallel_workers)
        return fail(STARPULLM_INVALID_ARGUMENT,
                    "partition %dx%d: this StarPU was built without parallel workers, expected 1 thread per worker, or "
                    "a StarPU configured with --enable-parallel-worker",
                    W, T);
    /* One context per parallel worker, one that contains them, and StarPU's first. */
    if (W + 2 > features.max_contexts)
        return fail(STARPULLM_INVALID_ARGUMENT,
                    "partition %dx%d: this StarPU was built for %d scheduling contexts, expected at most %d workers of "
                    "several threads, or a StarPU configured with --enable-max-sched-ctxs=%d or more",
                    W, T, features.max_contexts, features.max_contexts - 2, W + 2);
    return STARPULLM_OK;
}

static status check_simd_level(void)
{
    const char *missing = kernels_missing_level();
    if (!missing)
        return STARPULLM_OK;
    char names[256];
    join_names(names, sizeof names, kernels_level_name);
    return fail(STARPULLM_INVALID_ARGUMENT, "STARPULLM_SIMD: found \"%s\", expected one of %s on this machine", missing,
                names);
}

static status check_caches(void)
{
    if (!kernels_caches_are_refused())
        return STARPULLM_OK;
    return fail(
        STARPULLM_INVALID_ARGUMENT,
        "STARPULLM_CACHES: found \"%s\", expected the sizes of the first- and second-level caches, such as 32K,1M",
        getenv("STARPULLM_CACHES"));
}

status check_runtime_options(const struct starpullm_runtime_options *options, const struct topology *topology)
{
    TRY(check_scheduler(options->scheduler));
    TRY(check_simd_level());
    TRY(check_caches());
    return check_partition(options, topology);
}
