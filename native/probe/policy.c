/* The scheduling policy: it takes ready tasks in the order of submission, or in an order that follows from a seed,
 * delays them by request, and records them. StarPU loads it by STARPU_SCHED_LIB and STARPU_SCHED=probe. */
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <starpu.h>
#include <starpu_scheduler.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "marks.h"
#include "ready.h"
#include "recorder.h"

#define EXPORT __attribute__((visibility("default")))

struct context {
    pthread_mutex_t lock;
    struct ready ready;
    size_t restricted; /* of the ready tasks, those that not every worker may run */
};

static const struct settings *settings;
static _Atomic int num_contexts;           /* with this policy */
static const uint64_t settle_ns = 1000000; /* since the last submission */
static _Atomic uint64_t settled_ns;        /* how long tasks have waited for submissions to pause */
/* How long a submission waits for tasks at most, after which no other waits; and for StarPU to release their data. */
static const uint64_t longest_wait_ns = 1000000000, release_ns = 10000000;
static _Atomic uint64_t waited_ns;           /* by all submissions */
static _Atomic int num_unfinished;           /* tasks that are ready or run */
static _Atomic int num_submitted, num_ended; /* since the start */
static const uint64_t rest_us = 1000;        /* of a worker that may run no task */
/* If nothing has run for so long, what is held may be what the awaited task waits for. */
static const uint64_t stall_ns = 1000000000;
static _Atomic int num_running;
static _Atomic int num_taken[2]; /* tasks that CPUs and devices have */
static _Atomic uint64_t last_end;

/* SplitMix64 of a seed and a task's number: the same in every run, whatever the threads do. */
static uint64_t mix(uint64_t seed, uint64_t number)
{
    uint64_t z = seed * 0x9e3779b97f4a7c15 + (number + 1) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

static void init(unsigned id)
{
    struct context *context = calloc(1, sizeof *context);
    STARPU_ASSERT_MSG(context, "starpullm's probe: no memory");
    pthread_mutex_init(&context->lock, NULL);
    settings = recorder_start();
    num_contexts++;
    starpu_sched_ctx_set_policy_data(id, context);
}

static void deinit(unsigned id)
{
    struct context *context = starpu_sched_ctx_get_policy_data(id);
    pthread_mutex_destroy(&context->lock);
    free(context->ready.heap);
    free(context);
    num_contexts--;
}

static bool is_device(unsigned worker)
{
    return starpu_worker_get_type((int)worker) == STARPU_OPENCL_WORKER;
}

static bool is_restricted(const struct starpu_task *task)
{
    return task->workerids_len > 0 || task->cl->can_execute;
}

static void sleep_us(uint64_t microseconds)
{
    struct timespec time = {.tv_sec = (time_t)(microseconds / 1000000),
                            .tv_nsec = (long)(microseconds % 1000000) * 1000};
    nanosleep(&time, NULL);
}

/* How many of the submitted tasks StarPU has done with. */
static int num_gone(void)
{
    return num_submitted - starpu_task_nsubmitted();
}

/* Waits until no task is ready or runs, and StarPU has released the data of those that have run: `gone_before` and
 * `ended_before` are of before the submission. Tasks of contexts with another policy aren't counted, so that the end of
 * the release may be missed: it gets only a short time. */
static void wait_for_tasks(int gone_before, int ended_before)
{
    const uint64_t start = now_ns(), limit = (uint64_t)settings->prompt_ms * 1000000;
    uint64_t now = start, released = start + release_ns; /* at the latest */
    while (waited_ns < limit && now < start + longest_wait_ns) {
        if (num_unfinished > 0)
            released = now + release_ns;
        else if (num_gone() - gone_before >= num_ended - ended_before || now >= released)
            break;
        sleep_us(1);
        now = now_ns();
    }
    waited_ns += now < start + longest_wait_ns ? now - start : limit;
}

static void submitted(struct starpu_task *task)
{
    num_submitted++;
    recorder_submitted(task);
}

static int push(struct starpu_task *task)
{
    struct context *context = starpu_sched_ctx_get_policy_data(task->sched_ctx);
    struct starpu_worker_collection *workers = starpu_sched_ctx_get_worker_collection(task->sched_ctx);
    struct starpu_sched_ctx_iterator iterator;
    const uint64_t number = task_number(task), key = settings->seed == 0 ? number : mix(settings->seed, number);
    /* StarPU's fault tolerance submits a copy of a task before it lets the task wait for the copy. */
    const bool waits = settings->prompt_ms > 0 && starpu_worker_get_id() < 0 && !task->no_submitorder;
    const int gone_before = waits ? num_gone() : 0, ended_before = num_ended;
    recorder_ready(task);
    num_unfinished += !has_mark(task, MARK_STARTED);
    pthread_mutex_lock(&context->lock);
    STARPU_ASSERT_MSG(ready_push(&context->ready, key, task), "starpullm's probe: no memory");
    context->restricted += is_restricted(task);
    starpu_push_task_end(task);
    pthread_mutex_unlock(&context->lock);
    workers->init_iterator(workers, &iterator);
    while (workers->has_next(workers, &iterator))
        starpu_wake_worker_relax_light(workers->get_next(workers, &iterator));
    if (waits)
        wait_for_tasks(gone_before, ended_before);
    return 0;
}

struct candidate {
    unsigned context, worker;
    bool is_device;
    unsigned rank;                  /* how many of the context's workers of its kind come before */
    const struct starpu_task *next; /* of the ready tasks */
};

/* How many of a context's workers of a kind come before one; UINT_MAX: how many there are. With a task, of those that
 * can run it. */
static unsigned workers_before(unsigned context, bool device, unsigned worker, struct starpu_task *task)
{
    struct starpu_worker_collection *workers = starpu_sched_ctx_get_worker_collection(context);
    struct starpu_sched_ctx_iterator iterator;
    unsigned before = 0;
    workers->init_iterator(workers, &iterator);
    while (workers->has_next(workers, &iterator)) {
        const unsigned other = (unsigned)workers->get_next(workers, &iterator);
        before += other < worker && is_device(other) == device &&
                  (!task || starpu_worker_can_execute_task_first_impl(other, task, NULL));
    }
    return before;
}

/* A reduction has the same bits each time only if one worker computes all contributions. */
static bool is_bound_to_first(struct starpu_task *task)
{
    const unsigned num_accesses = STARPU_TASK_GET_NBUFFERS(task);
    for (unsigned i = 0; settings->ordered && i < num_accesses; i++)
        if ((STARPU_TASK_GET_MODE(task, i) & STARPU_REDUX) != 0)
            return true;
    return false;
}

static bool is_held(const struct starpu_task *task)
{
    if (!task_is_held(task))
        return false;
    const uint64_t last = last_submission_ns() > last_end ? last_submission_ns() : last_end;
    const bool has_stalled = num_running == 0 && now_ns() > last + stall_ns;
    if (has_stalled)
        release_held_tasks();
    return !has_stalled;
}

/* A task that both kinds of worker can run goes to the one that follows from the seed, in the reference schedule to a
 * CPU. */
static bool is_for_other_kind(struct starpu_task *task, const struct candidate *candidate)
{
    const uint64_t random = mix(settings->seed ^ 0xe7037ed1a0b428db, task_number(task));
    const bool device = settings->seed != 0 && !is_bound_to_first(task) && (random & 1) != 0;
    return device != candidate->is_device && workers_before(candidate->context, device, UINT_MAX, task) > 0;
}

static bool is_its_turn(struct starpu_task *task, const struct candidate *candidate)
{
    const unsigned count = workers_before(candidate->context, candidate->is_device, UINT_MAX, task);
    return workers_before(candidate->context, candidate->is_device, candidate->worker, task) ==
           task_number(task) % count;
}

/* A task may run on the first `max_workers` workers that can run it, so that one worker always may. */
static bool may_run(struct starpu_task *task, const void *state)
{
    const struct candidate *candidate = state;
    if (is_held(task) || (settings->in_turn && task != candidate->next))
        return false;
    if (!starpu_worker_can_execute_task_first_impl(candidate->worker, task, NULL))
        return false;
    if (starpu_opencl_worker_get_count() > 0 && is_for_other_kind(task, candidate))
        return false;
    if (settings->in_turn)
        return is_its_turn(task, candidate);
    if (is_bound_to_first(task))
        return workers_before(candidate->context, candidate->is_device, candidate->worker, task) == 0;
    if (settings->max_workers == 0 || candidate->rank < settings->max_workers)
        return true;
    return is_restricted(task) &&
           workers_before(candidate->context, candidate->is_device, candidate->worker, task) < settings->max_workers;
}

/* An idle worker of StarPU's polls. One that may run hardly any task would take a core from those that may. */
static void rest(void)
{
    starpu_worker_relax_on();
    sleep_us(rest_us);
    starpu_worker_relax_off();
}

static struct starpu_task *pop(unsigned id)
{
    struct context *context = starpu_sched_ctx_get_policy_data(id);
    const unsigned worker = (unsigned)starpu_worker_get_id_check();
    const bool device = is_device(worker);
    struct candidate candidate = {id, worker, device, workers_before(id, device, worker, NULL), NULL};
    const bool is_extra = settings->max_workers > 0 && candidate.rank >= settings->max_workers && !settings->in_turn;
    struct starpu_task *task = NULL;
    unsigned mask; /* of implementations */
    pthread_mutex_lock(&context->lock);
    candidate.next = context->ready.count > 0 ? context->ready.heap[0].task : NULL;
    const int num_others = num_taken[!device] + (settings->in_turn ? num_taken[device] : 0);
    if ((!is_extra || context->restricted > 0) && (settings->max_workers != 1 || num_others <= 0))
        task = ready_pop(&context->ready, may_run, &candidate);
    if (task) {
        context->restricted -= is_restricted(task);
        num_taken[device]++;
    }
    pthread_mutex_unlock(&context->lock);
    if (!task && is_extra)
        rest();
    if (task && starpu_worker_can_execute_task_impl(worker, task, &mask)) {
        /* In the reference schedule, too, so that all are looked at. */
        const uint64_t random = mix(settings->seed ^ 0xa0761d6478bd642f, task_number(task));
        for (uint64_t skipped = random % (unsigned)__builtin_popcount(mask); skipped > 0; skipped--)
            mask &= mask - 1;
        starpu_task_set_implementation(task, (unsigned)__builtin_ctz(mask));
    }
    return task;
}

/* Waits while tasks are being submitted, so that they pile up and there are many to choose from. */
static void settle(void)
{
    uint64_t start = now_ns(), limit = (uint64_t)settings->settle_ms * 1000000;
    while (settled_ns < limit && now_ns() - last_submission_ns() < settle_ns) {
        sleep_us(100);
        const uint64_t now = now_ns();
        settled_ns += now - start;
        start = now;
    }
}

/* Every fourth task is delayed, without a seed every one: half of them before they are looked at and half of them
 * after. */
static void delay(const struct starpu_task *task, bool is_started)
{
    const uint64_t random = mix(settings->seed ^ 0xd1b54a32d192ed03, task_number(task));
    if (settings->delay_us > 0 && ((random & 3) == 0 || settings->seed == 0) && ((random >> 2 & 1) != 0) == is_started)
        sleep_us((random >> 8) % settings->delay_us);
}

static void pre_exec(struct starpu_task *task, unsigned id)
{
    (void)id;
    if (!task->sched_data) /* of a context without a policy */
        return;
    num_running += !has_mark(task, MARK_STARTED);
    settle();
    delay(task, false);
    recorder_started(task);
    delay(task, true);
}

static void post_exec(struct starpu_task *task, unsigned id)
{
    (void)id;
    if (!task->sched_data)
        return;
    recorder_ended(task);
    last_end = now_ns();
    num_running--;
    num_taken[starpu_worker_get_id() >= 0 && is_device((unsigned)starpu_worker_get_id())]--;
    num_ended++;
    num_unfinished--;
}

static struct starpu_sched_policy policy = {
    .init_sched = init,
    .deinit_sched = deinit,
    .push_task = push,
    .pop_task = pop,
    .submit_hook = submitted,
    .pre_exec_hook = pre_exec,
    .post_exec_hook = post_exec,
    .policy_name = "probe",
    .policy_description = "starpullm's probe: seeded orders, records",
    .worker_type = STARPU_WORKER_LIST,
};

/* Says in a file which StarPU asks for a policy, how many workers it has, and its variables: the program may have set
 * some. */
static void describe_starpu(const int version[3])
{
    const char *directory = getenv("STARPULLM_PROBE_DIRECTORY");
    Dl_info library = {.dli_fname = "?"};
    char *path = NULL;
    if (!directory || asprintf(&path, "%s/starpu-%d", directory, (int)getpid()) < 0)
        return;
    FILE *file = fopen(path, "we");
    if (file) {
        dladdr((void *)starpu_init, &library);
        fprintf(file, "%d.%d.%d\n%s\n%u\n", version[0], version[1], version[2], library.dli_fname,
                starpu_cpu_worker_get_count());
        for (char **variable = environ; *variable; variable++)
            if (strncmp(*variable, "STARPU_", 7) == 0 || strncmp(*variable, "HWLOC_", 6) == 0)
                fprintf(file, "%s\n", *variable);
        fclose(file);
    }
    free(path);
}

/* Whether a variable of StarPU's is as large as the probe was compiled for: it depends on StarPU's configured limits.
 */
static bool has_size(const void *variable, size_t bytes)
{
    const ElfW(Sym) *symbol = NULL;
    Dl_info library;
    return dladdr1(variable, &library, (void **)&symbol, RTLD_DL_SYMENT) == 0 || !symbol || symbol->st_size == bytes;
}

/* StarPU asks for the policy of its first context by the name in STARPU_SCHED, which may be the program's own choice.
 */
EXPORT struct starpu_sched_policy *starpu_get_sched_lib_policy(const char *name)
{
    int version[3];
    if (num_contexts > 0 && strcmp(name, policy.policy_name) != 0)
        return NULL;
    starpu_get_version(&version[0], &version[1], &version[2]);
    describe_starpu(version);
    if (version[0] != STARPU_MAJOR_VERSION || version[1] != STARPU_MINOR_VERSION ||
        version[2] != STARPU_RELEASE_VERSION || !has_size(&starpu_worker_list, sizeof starpu_worker_list) ||
        !has_size(&starpu_codelet_nop, sizeof starpu_codelet_nop))
        return NULL;
    return &policy;
}
