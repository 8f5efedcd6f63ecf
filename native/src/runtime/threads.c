/* Where each thread of each worker runs: a task asks the thread itself. */
#include <sched.h>
#include <starpu.h>
#include <stdlib.h>

#include "runtime/runtime.h"
#include "status.h"

struct probe {
    int threads;
    struct starpullm_thread_info *info;
};

static void probe_thread(void *argument, struct team team)
{
    const struct probe *probe = argument;
    cpu_set_t set; /* of the real machine: a synthetic topology's threads aren't bound */
    if (team.index >= probe->threads || sched_getaffinity(0, sizeof set, &set))
        return;
    probe->info[team.index].num_units = CPU_COUNT(&set);
    for (int unit = CPU_SETSIZE - 1; unit >= 0; unit--)
        if (CPU_ISSET(unit, &set))
            probe->info[team.index].first_unit = unit;
}

static void probe_worker(void *buffers[], void *argument)
{
    (void)buffers;
    const struct probe *probe = argument;
    team_run(probe->threads, probe_thread, argument);
}

static struct starpu_codelet probe_codelet = {.where = STARPU_CPU, .cpu_funcs = {probe_worker}, .name = "probe_worker"};

/* A task for the index-th worker. A worker of several threads is a scheduling context of its own, the one that its
 * first CPU worker belongs to. */
static struct starpu_task *probe_task(int index)
{
    const struct runtime_layout *layout = runtime_layout();
    struct starpu_task *task = starpu_task_create();
    task->cl = &probe_codelet;
    task->synchronous = 1;
    if (layout->threads_per_worker == 1) {
        task->execute_on_a_specific_worker = 1;
        task->workerid = (unsigned)index;
        return task;
    }
    unsigned *contexts = NULL;
    const int found = starpu_worker_get_sched_ctx_list(index * layout->threads_per_worker, &contexts);
    for (int i = 0; i < found; i++)
        if (contexts[i] != 0 && contexts[i] != layout->context)
            task->sched_ctx = contexts[i];
    free(contexts);
    task->possibly_parallel = 1;
    return task;
}

/* No other task may be running. */
status starpullm_runtime_threads(starpullm_runtime *runtime, struct starpullm_thread_info *threads, size_t count)
{
    CHECK_POINTERS(runtime, threads);
    const int W = runtime_layout()->workers, T = runtime_layout()->threads_per_worker;
    if (count != (size_t)W * (size_t)T)
        return invalid_argument("threads: room for %zu, expected %zu (%d workers of %d)", count, (size_t)W * (size_t)T,
                                W, T);
    TRY(runtime_check_running(runtime));
    for (int w = 0; w < W; w++) {
        struct starpullm_thread_info *info = threads + w * T;
        for (int t = 0; t < T; t++)
            info[t] = (struct starpullm_thread_info){w, t, -1, 0};
        struct probe probe = {T, info};
        struct starpu_task *task = probe_task(w);
        task->cl_arg = &probe;
        const int error = starpu_task_submit(task);
        if (error) {
            task->destroy = 0;
            starpu_task_destroy(task);
            return runtime_failure("StarPU refused a task for worker %d (error %d)", w, error);
        }
    }
    return STARPULLM_OK;
}
