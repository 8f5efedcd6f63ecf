/* Refusals of a scheduler, a partition or a SIMD level, before StarPU is started: it would abort, or wait for ever. */
#include "runtime/machine.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "devices/devices.h"
#include "kernels/kernels.h"
#include "runtime/runtime.h"

static status check_scheduler(const char *scheduler)
{
    if (!scheduler)
        return invalid_argument("scheduler: none was given, expected one of StarPU's names");
    char names[1024] = "";
    const char *name;
    for (size_t i = 0, used = 0; (name = starpullm_scheduler_name(i)) && used < sizeof names; i++) {
        if (strcmp(name, scheduler) == 0)
            return STARPULLM_OK;
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", name);
    }
    return invalid_argument("scheduler: found \"%s\", expected one that StarPU %s has and that runs tasks without "
                            "starpu_do_schedule(): %s",
                            scheduler, runtime_starpu_version(), names);
}

static status refuse_cores(const struct starpullm_runtime_options *options, const struct topology *topology)
{
    const int W = options->workers, T = options->threads_per_worker, found = topology->cores;
    const long long threads = (long long)W * T;
    if (found < topology->all_cores && threads <= topology->all_cores)
        return invalid_argument(
            "partition %dx%d: needs %lld cores, found this process bound to %d of the machine's %d, expected no "
            "binding or enough cores (under Open MPI's mpirun: --bind-to none, or --map-by slot:PE=%lld)",
            W, T, threads, found, topology->all_cores, threads);
    return invalid_argument("partition %dx%d: needs %lld cores, found %d%s that this process may use", W, T, threads,
                            found, topology->synthetic ? " (HWLOC_SYNTHETIC)" : "");
}

static status check_partition(const struct starpullm_runtime_options *options, const struct topology *topology)
{
    const int W = options->workers, T = options->threads_per_worker;
    if (W < 1 || T < 1)
        return invalid_argument("partition %dx%d: expected at least one worker of one thread", W, T);
    const int64_t threads = (int64_t)W * T;
    const struct runtime_features features = runtime_features();
    if (threads > features.max_workers)
        return invalid_argument("partition %dx%d: StarPU was built for at most %d cores", W, T, features.max_workers);
    if (threads > topology->cores)
        return refuse_cores(options, topology);
    if (T == 1)
        return STARPULLM_OK;
    if (!features.max_contexts)
        return invalid_argument("partition %dx%d: this StarPU was built without parallel workers, expected workers of "
                                "one thread, or a StarPU configured with --enable-parallel-worker",
                                W, T);
    /* OpenMP would bind the threads to other cores than StarPU does, and the workers would wait for each other for
     * ever. */
    if (team_binds_threads())
        return invalid_argument("OMP_PROC_BIND: OpenMP binds threads itself, expected \"false\" or unset for partition "
                                "%dx%d: StarPU binds the threads of its workers",
                                W, T);
    /* One context per parallel worker, one that contains them, and StarPU's first. */
    if (W + 2 > features.max_contexts)
        return invalid_argument(
            "partition %dx%d: this StarPU was built for %d scheduling contexts, expected at most %d workers of several "
            "threads, or a StarPU configured with --enable-max-sched-ctxs=%d or more",
            W, T, features.max_contexts, features.max_contexts - 2, W + 2);
    return STARPULLM_OK;
}

/* Tried with a limit. Those that predict transfers (dmda, pheft) wait for ever then. */
static bool works_with_disk(const char *scheduler)
{
    static const char *const names[] = {"eager", "lws", "prio", "random", "ws"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(scheduler, names[i]) == 0)
            return true;
    return false;
}

static status check_offload(const struct starpullm_runtime_options *options)
{
    const long long limit = options->memory_limit;
    if (!options->offload && limit != 0)
        return invalid_argument("memory_limit: found %lld bytes without offload, expected both", limit);
    if (!options->offload)
        return STARPULLM_OK;
    if (limit < 1 || limit > INT64_MAX >> 1)
        return invalid_argument("memory_limit: found %lld, expected a number of bytes with offload", limit);
    if (options->offload_plan < STARPULLM_OFFLOAD_AHEAD || options->offload_plan > STARPULLM_OFFLOAD_LRU)
        return invalid_argument("offload_plan: found %d, expected %d or %d", options->offload_plan,
                                STARPULLM_OFFLOAD_AHEAD, STARPULLM_OFFLOAD_LRU);
    if (!works_with_disk(options->scheduler))
        return invalid_argument("scheduler: found \"%s\" with offload, expected eager, lws, prio, random or ws",
                                options->scheduler);
    return STARPULLM_OK;
}

static status check_devices(const struct starpullm_runtime_options *options)
{
    const int wanted = options->devices;
    if (wanted < ALL_DEVICES)
        return invalid_argument("devices: found %d, expected a number, or %d for all", wanted, ALL_DEVICES);
    if (wanted == 0)
        return STARPULLM_OK;
    if (options->threads_per_worker > 1)
        return invalid_argument("devices: found partition %dx%d, expected workers of one thread beside devices",
                                options->workers, options->threads_per_worker);
    if (options->blas_library || options->platform_functions)
        return invalid_argument("devices: found %s, expected the library's own kernels beside devices",
                                options->blas_library ? "a BLAS" : "the platform's functions");
    if (options->offload)
        return invalid_argument("devices: found offload, expected data in memory alone beside devices");
    const int found = devices_wanted(ALL_DEVICES);
    if (found == 0 || wanted > found)
        return invalid_argument("devices: found %d OpenCL devices that StarPU can use, expected %d (it has them if "
                                "configured with --enable-opencl, takes a CPU with STARPU_OPENCL_ON_CPUS=1, and finds "
                                "none in a process that had a runtime without devices before)",
                                found, wanted > 0 ? wanted : 1);
    return STARPULLM_OK;
}

status check_runtime_options(const struct starpullm_runtime_options *options, const struct topology *topology)
{
    TRY(check_scheduler(options->scheduler));
    if (*starpullm_kernels_refusal())
        return invalid_argument("%s", starpullm_kernels_refusal());
    if (options->fused && (options->blas_library || options->platform_functions))
        return invalid_argument("arithmetic: found fused with %s, expected strict",
                                options->blas_library ? "a BLAS" : "the platform's functions");
    TRY(check_offload(options));
    TRY(check_devices(options));
    return check_partition(options, topology);
}
