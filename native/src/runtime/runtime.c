/* Starting and stopping StarPU with a partition, a scheduler and ranks. */
#include "runtime/runtime.h"

#include <pthread.h>
#include <starpu.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "data/disk.h"
#include "devices/devices.h"
#include "kernels/kernels.h"
#include "runtime/machine.h"
#include "runtime/ranks.h"
#include "runtime/start.h"
#include "status.h"

static const struct runtime_layout alone = {
    .workers = 1, .threads_per_worker = 1, .all_workers = 1, .ranks = 1, .local_ranks = 1};

/* There is one StarPU in a process, and one of these. */
struct starpullm_runtime {
    atomic_bool running; /* read by any thread, the rest under the mutex while none uses the runtime */
    int sessions;
    struct runtime_layout layout;
    struct starpu_parallel_worker_config *parallel_workers; /* NULL: workers of one thread */
    int64_t next_tag;                                       /* of the next session's transfers */
};

static struct starpullm_runtime the_runtime;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static status open_blas(const char *library)
{
    char sentence[512];
    if (!library || kernels_open_blas(sentence, sizeof sentence, library))
        return STARPULLM_OK;
    return invalid_argument("blas_library: %s", sentence);
}

/* Of options that may not have been checked yet. */
static int64_t threads_of(const struct starpullm_runtime_options *options)
{
    const bool sensible = options->workers > 0 && options->threads_per_worker > 0;
    return sensible ? (int64_t)options->workers * options->threads_per_worker : 0;
}

/* Several ranks on one machine: each binds its workers to cores of its own if those that it may run on are enough for
 * all ranks that may run on them, otherwise to none. */
static void choose_cores(struct starpu_conf *conf, bool *unbound, const struct topology *topology,
                         const struct ranks *ranks, int threads)
{
    *unbound = !topology->may_bind || topology->cores < ranks->threads_here;
    if (*unbound)
        return;
    conf->use_explicit_workers_bindid = 1;
    for (int i = 0; i < threads; i++)
        conf->workers_bindid[i] = (unsigned)topology->first_unit[ranks->first_thread + i];
}

/* StarPU's limit is in MiB and read when it starts; disk_register() makes it exact. StarPU would fetch the data of a
 * task that is ready, for which others have to leave, and aborts then: 1.4 with T > 1, as it has two contexts
 * ("Prefetching was already requested"), and 1.5 when data end of which it still counts a fetch that it has cancelled
 * twice. */
static status extend_environment(const struct starpullm_runtime_options *options, bool unbound)
{
    static char limit[64], numa_limit[64], no_numa[] = "STARPU_USE_NUMA=0", no_prefetch[] = "STARPU_PREFETCH=0",
                                           no_tidying[] = "STARPU_MINIMUM_CLEAN_BUFFERS=0";
    const long long mib = (options->memory_limit + (1 << 20) - 1) >> 20;
    snprintf(limit, sizeof limit, "STARPU_LIMIT_CPU_MEM=%lld", mib);
    snprintf(numa_limit, sizeof numa_limit, "STARPU_LIMIT_CPU_NUMA_MEM=%lld", mib);
    char *const none[] = {NULL};
    char *offload[] = {limit, numa_limit, no_numa, no_prefetch, NULL, NULL};
    if (options->offload_plan == STARPULLM_OFFLOAD_AHEAD) /* the plan says what is written early */
        offload[4] = no_tidying;
    /* By default StarPU writes to stderr, which a library must not do. If it has OpenCL, it and hwloc load all OpenCL
     * platforms, also without devices: tens of MiB, and twice the time. The folder has no platform. */
    static char silent[] = "STARPU_SILENT=1", no_mpi_bind[] = "STARPU_MPI_NOBIND=1",
                no_bind[] = "STARPU_WORKERS_NOBIND=1", no_platforms[] = "OCL_ICD_VENDORS=/";
    char *defaults[] = {silent, no_mpi_bind, NULL, NULL, NULL};
    int count = 2;
    if (unbound)
        defaults[count++] = no_bind;
    if (!options->devices)
        defaults[count++] = no_platforms;
    return environment_extend(options->scheduler, options->offload ? offload : none, defaults);
}

static status start_starpu(const struct starpullm_runtime_options *options, const struct topology *topology,
                           const struct ranks *ranks)
{
    const int threads = (int)threads_of(options);
    struct starpu_conf conf;
    starpu_conf_init(&conf);
    conf.precedence_over_environment_variables = 1;
    starpu_conf_noworker(&conf);
    conf.ncpus = threads;
    conf.nopencl = devices_wanted(options->devices);
    conf.sched_policy_name = options->scheduler;
    conf.catch_signals = 0; /* they are the application's */
    conf.will_use_mpi = ranks->size > 1;
    bool unbound = !topology->may_bind;
    if (ranks->local_size > 1)
        choose_cores(&conf, &unbound, topology, ranks, threads);

    TRY(extend_environment(options, unbound));
    const int error = start_in_turn(&conf);
    if (error)
        return runtime_failure("StarPU %s could not be started (error %d)", runtime_starpu_version(), error);
    int found = (int)starpu_cpu_worker_get_count();
    status code = found == threads && options->offload ? disk_register(options->memory_limit) : STARPULLM_OK;
    if (found == threads && code == STARPULLM_OK)
        return STARPULLM_OK;
    starpu_shutdown();
    TRY(code);
    return runtime_failure("partition %dx%d: StarPU started %d workers, expected %d", options->workers,
                           options->threads_per_worker, found, threads);
}

static status start_parallel_workers(struct starpullm_runtime *runtime)
{
    const int W = runtime->layout.workers, T = runtime->layout.threads_per_worker;
    if (T == 1)
        return STARPULLM_OK;
    runtime->parallel_workers = parallel_workers_start(W);
    if (!runtime->parallel_workers)
        return runtime_failure("partition %dx%d: StarPU could not make %d parallel workers", W, T, W);
    runtime->layout.context = starpu_sched_ctx_get_context();
    return STARPULLM_OK;
}

static void stop_starpu(struct starpullm_runtime *runtime)
{
    devices_close();
    if (runtime->parallel_workers)
        parallel_workers_stop(runtime->parallel_workers);
    runtime->parallel_workers = NULL;
    starpu_shutdown();
    runtime->running = false;
}

/* What may fail on one rank alone. */
static status start_on_this_rank(struct starpullm_runtime *runtime, const struct starpullm_runtime_options *options,
                                 const struct topology *topology, const struct ranks *ranks)
{
    if (starpu_is_initialized())
        return invalid_state(
            "StarPU is running in this process but wasn't started by starpullm, expected it not to be running");
    TRY(check_runtime_options(options, topology));
    TRY(open_blas(options->blas_library));
    if (options->platform_functions)
        kernels_use_platform();
    if (options->fused)
        kernels_use_fused();
    if (options->offload && ranks->size > 1)
        return invalid_argument("offload: found %d ranks, expected one", ranks->size);
    if (options->offload)
        TRY(disk_open(options->offload));
    TRY(start_starpu(options, topology, ranks));
    runtime->next_tag = 0;
    runtime->layout = (struct runtime_layout){
        .workers = options->workers,
        .threads_per_worker = options->threads_per_worker,
        .devices = devices_wanted(options->devices),
        .all_workers = ranks->workers,
        .rank = ranks->rank,
        .ranks = ranks->size,
        .local_ranks = ranks->local_size,
        .arithmetic = options->fused                                         ? STARPULLM_FUSED
                      : options->blas_library || options->platform_functions ? STARPULLM_NO_CONTRACT
                                                                             : STARPULLM_STRICT,
        .memory_limit = options->offload ? options->memory_limit : 0,
        .offload_plan = (enum starpullm_offload_plan)options->offload_plan,
    };
    runtime->running = true;
    TRY(devices_open(runtime->layout.devices, options->fused, &runtime->layout.device_memory));
    return start_parallel_workers(runtime);
}

static status create_locked(const struct starpullm_runtime_options *options)
{
    struct starpullm_runtime *runtime = &the_runtime;
    struct ranks ranks = {.size = 1, .workers = options->workers, .local_size = 1};
    struct topology topology = {.cores = 0};
    status code = runtime->running
                      ? invalid_state("a runtime is running already in this process, expected none: close it")
                      : topology_read(&topology);
    if (options->communicator)
        code = ranks_open(*options->communicator, code, options->workers, threads_of(options), topology.first_unit[0],
                          &ranks);
    TRY(code);
    code = ranks_agree(start_on_this_rank(runtime, options, &topology, &ranks));
    if (code == STARPULLM_OK && ranks.size > 1)
        code = ranks_start();
    environment_restore();
    if (code == STARPULLM_OK)
        return STARPULLM_OK;
    if (runtime->running)
        stop_starpu(runtime);
    disk_close();
    kernels_restore();
    ranks_close();
    return code;
}

const struct runtime_layout *runtime_layout(void)
{
    return the_runtime.running ? &the_runtime.layout : &alone;
}

int runtime_worker(void)
{
    const int id = starpu_worker_get_id();
    if (starpu_worker_get_type(id) == STARPU_CPU_WORKER)
        return (id - starpu_worker_get_by_type(STARPU_CPU_WORKER, 0)) / runtime_layout()->threads_per_worker;
    return runtime_layout()->workers + starpu_worker_get_devid(id);
}

status starpullm_runtime_create(const struct starpullm_runtime_options *options, starpullm_runtime **runtime)
{
    CHECK_STRUCT(options);
    CHECK_POINTERS(runtime);
    pthread_mutex_lock(&mutex);
    status code = create_locked(options);
    pthread_mutex_unlock(&mutex);
    if (code == STARPULLM_OK)
        *runtime = &the_runtime;
    return code;
}

status runtime_check_running(const struct starpullm_runtime *runtime)
{
    if (runtime != &the_runtime || !the_runtime.running)
        return invalid_state("the runtime is closed, expected one that is running");
    return STARPULLM_OK;
}

static status destroy_locked(struct starpullm_runtime *runtime)
{
    TRY(runtime_check_running(runtime));
    if (runtime->sessions)
        return invalid_state("sessions are open on the runtime: %d, expected none: close them first",
                             runtime->sessions);
    if (runtime->layout.ranks > 1)
        ranks_stop();
    stop_starpu(runtime);
    disk_close();
    ranks_close();
    kernels_restore();
    return STARPULLM_OK;
}

status starpullm_runtime_destroy(starpullm_runtime **runtime)
{
    CHECK_POINTERS(runtime);
    pthread_mutex_lock(&mutex);
    const status code = destroy_locked(*runtime);
    if (code == STARPULLM_OK)
        *runtime = NULL;
    pthread_mutex_unlock(&mutex);
    return code;
}

status starpullm_runtime_offloaded(const starpullm_runtime *runtime, int64_t *written, int64_t *read)
{
    CHECK_POINTERS(runtime, written, read);
    TRY(runtime_check_running(runtime));
    disk_traffic(written, read);
    return STARPULLM_OK;
}

status starpullm_runtime_moved(const starpullm_runtime *runtime, int64_t *to_devices, int64_t *from_devices)
{
    CHECK_POINTERS(runtime, to_devices, from_devices);
    TRY(runtime_check_running(runtime));
    devices_traffic(to_devices, from_devices);
    return STARPULLM_OK;
}

/* A session's handles are numbered from 0, with 31 bits. Tags aren't used again: a rank may begin the next session
 * while another still ends the last one. */
static status take_tags(struct starpullm_runtime *runtime, int64_t *first_tag)
{
    const int64_t count = (int64_t)INT32_MAX + 1;
    if (runtime->layout.ranks > 1 && runtime->next_tag > ranks_max_tag() - count)
        return invalid_state("the runtime's sessions have used all tags of transfers, up to %lld",
                             (long long)ranks_max_tag());
    *first_tag = runtime->next_tag;
    runtime->next_tag += count;
    return STARPULLM_OK;
}

status runtime_enter_session(struct starpullm_runtime *runtime, int64_t *first_tag)
{
    pthread_mutex_lock(&mutex);
    status code = runtime_check_running(runtime);
    if (code == STARPULLM_OK)
        code = take_tags(runtime, first_tag);
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
