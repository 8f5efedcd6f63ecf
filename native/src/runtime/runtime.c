/* Starts and stops StarPU with the partition and scheduler that the caller names. Called by api.c. */
#include "runtime/runtime.h"

#include <pthread.h>
#include <starpu.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/topology.h"

/* StarPU is one per process, and so is this. `running` says whether it is started. */
struct starpullm_runtime {
    bool running;
    int sessions;
};

static struct starpullm_runtime the_runtime;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

const char *runtime_scheduler_name(size_t index)
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

struct runtime_features runtime_features(void)
{
    return (struct runtime_features){
        .max_workers = STARPU_MAXCPUS,
        .max_contexts = STARPU_NMAX_SCHED_CTXS,
#ifdef STARPU_PARALLEL_WORKER
        .parallel_workers = 1,
#endif
    };
}

static status check_scheduler(const char *scheduler)
{
    if (!scheduler)
        return fail(STARPULLM_INVALID_ARGUMENT, "scheduler: none was given, expected one of StarPU's names");
    char names[1024] = "";
    const char *name;
    for (size_t i = 0; (name = runtime_scheduler_name(i)); i++) {
        if (strcmp(name, scheduler) == 0)
            return STARPULLM_OK;
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", name);
    }
    return fail(STARPULLM_INVALID_ARGUMENT, "scheduler: \"%s\" is unknown to StarPU %s, expected one of %s", scheduler,
                runtime_starpu_version(), names);
}

static status check_partition(const struct starpullm_runtime_options *options, const struct topology *topology)
{
    int W = options->workers, T = options->threads_per_worker;
    if (W < 1 || T < 1)
        return fail(STARPULLM_INVALID_ARGUMENT, "partition %dx%d: expected at least one worker of one thread", W, T);
    if (T > 1)
        return fail(STARPULLM_INVALID_ARGUMENT,
                    "partition %dx%d: %d threads per worker were asked for, this version has workers of 1 thread", W, T,
                    T);
    if (W > STARPU_MAXCPUS)
        return fail(STARPULLM_INVALID_ARGUMENT, "partition %dx%d: StarPU was built for at most %d workers", W, T,
                    STARPU_MAXCPUS);
    if (W > topology->cores)
        return fail(STARPULLM_INVALID_ARGUMENT, "partition %dx%d: needs %d cores, found %d%s that this process may use",
                    W, T, W, topology->cores, topology->synthetic ? " (HWLOC_SYNTHETIC)" : "");
    return STARPULLM_OK;
}

static status start(const struct starpullm_runtime_options *options, const struct topology *topology)
{
    /* StarPU reports on stderr unless told otherwise; a library must not. The user's own setting wins. */
    setenv("STARPU_SILENT", "1", 0);
    if (topology->synthetic)
        setenv("STARPU_WORKERS_NOBIND", "1", 0);

    struct starpu_conf conf;
    starpu_conf_init(&conf);
    conf.precedence_over_environment_variables = 1;
    conf.ncpus = options->workers;
    conf.ncuda = conf.nhip = conf.nopencl = conf.nmax_fpga = conf.nmpi_ms = conf.ntcpip_ms = 0;
    conf.sched_policy_name = options->scheduler;
    conf.catch_signals = 0; /* they are the application's */
    int error = starpu_init(&conf);
    if (error)
        return fail(STARPULLM_RUNTIME_FAILURE, "StarPU %s could not be started (error %d)", runtime_starpu_version(),
                    error);
    int workers = (int)starpu_cpu_worker_get_count();
    if (workers != options->workers) {
        starpu_shutdown();
        return fail(STARPULLM_RUNTIME_FAILURE, "partition %dx%d: StarPU started %d workers", options->workers,
                    options->threads_per_worker, workers);
    }
    return STARPULLM_OK;
}

static status create_locked(const struct starpullm_runtime_options *options)
{
    if (the_runtime.running)
        return fail(STARPULLM_INVALID_STATE, "a runtime is running already in this process, expected none: close it");
    if (starpu_is_initialized())
        return fail(STARPULLM_INVALID_STATE,
                    "StarPU has been started by somebody else in this process, expected not to be running");
    TRY(check_scheduler(options->scheduler));
    struct topology topology;
    TRY(topology_read(&topology));
    TRY(check_partition(options, &topology));
    TRY(start(options, &topology));
    the_runtime = (struct starpullm_runtime){.running = true};
    return STARPULLM_OK;
}

status runtime_create(const struct starpullm_runtime_options *options, struct starpullm_runtime **runtime)
{
    pthread_mutex_lock(&mutex);
    status code = create_locked(options);
    pthread_mutex_unlock(&mutex);
    if (code == STARPULLM_OK)
        *runtime = &the_runtime;
    return code;
}

static status check_running(const struct starpullm_runtime *runtime)
{
    if (runtime != &the_runtime || !the_runtime.running)
        return fail(STARPULLM_INVALID_STATE, "the runtime is closed, expected one that is running");
    return STARPULLM_OK;
}

static status destroy_locked(struct starpullm_runtime *runtime)
{
    TRY(check_running(runtime));
    if (runtime->sessions)
        return fail(STARPULLM_INVALID_STATE, "sessions are open on the runtime: %d, expected none: close them first",
                    runtime->sessions);
    starpu_shutdown();
    runtime->running = false;
    return STARPULLM_OK;
}

status runtime_destroy(struct starpullm_runtime *runtime)
{
    pthread_mutex_lock(&mutex);
    status code = destroy_locked(runtime);
    pthread_mutex_unlock(&mutex);
    return code;
}

status runtime_enter_session(struct starpullm_runtime *runtime)
{
    pthread_mutex_lock(&mutex);
    status code = check_running(runtime);
    if (code == STARPULLM_OK)
        runtime->sessions++;
    pthread_mutex_unlock(&mutex);
    return code;
}

void runtime_leave_session(struct starpullm_runtime *runtime)
{
    pthread_mutex_lock(&mutex);
    runtime->sessions--;
    pthread_mutex_unlock(&mutex);
}
