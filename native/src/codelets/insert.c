/* The only file that submits a task to StarPU, on one rank and on several. The ranks that a task concerns call it in
 * the same order. The task's attributes say where it runs; the others only exchange its data, or do nothing. */
#include <stdlib.h>

#include "codelets/hold.h"
#include "codelets/task.h"
#include "runtime/runtime.h"

static struct starpu_task *task_on_this_rank(const struct task *task)
{
    struct starpu_task *starpu_task = starpu_task_create();
    starpu_task->cl = task_codelet(task);
    starpu_task->priority = task->attributes.priority;
    starpu_task->nbuffers = task->num_accesses;
    for (int i = 0; i < task->num_accesses; i++) {
        starpu_task->handles[i] = task->accesses[i].data->handle;
        starpu_task->modes[i] = task->accesses[i].mode;
    }
    return starpu_task;
}

/* A task that can't be submitted is destroyed, at once or with the hold that it depends on. */
static status submit(struct starpu_task *starpu_task, struct task *task)
{
    struct iteration *iteration = task->attributes.iteration;
    starpu_task->name = task->operation->name;
    starpu_task->sched_ctx = runtime_layout()->context;
    starpu_task->cl_arg = task;
    starpu_task->cl_arg_free = 1;
    starpu_task->callback_func = task_done;
    starpu_task->callback_arg = task;
    starpu_task->callback_arg_free = 0;
    if (iteration->instrument && instrument_draws(iteration->instrument) && starpu_task->cl->where & STARPU_OPENCL)
        starpu_task->where =
            instrument_draw_device(iteration->instrument, task->record.task) ? STARPU_OPENCL : STARPU_CPU;

    status code = iteration->hold ? hold_task(iteration->hold, starpu_task) : STARPULLM_OK;
    const bool held = iteration->hold && code == STARPULLM_OK;
    if (code == STARPULLM_OK) {
        iteration_add_task(iteration);
        const int error = starpu_task_submit(starpu_task);
        if (!error)
            return STARPULLM_OK;
        iteration_task_done(iteration);
        code = runtime_failure("StarPU refused a task of %s in step %lld (error %d)", task->operation->name,
                               (long long)iteration->number, error);
    }
    starpu_task->destroy = 0;
    starpu_task->cl_arg_free = 0;
    if (held)
        hold_keep_refused(iteration->hold, starpu_task);
    else
        starpu_task_destroy(starpu_task);
    task_destroy(task);
    return code;
}

/* Of a task of another rank: whether this rank sends what it reads, receives what it writes, or has a copy that then is
 * no longer valid. Contributions to a reduction are exchanged with their sum, and what a stage passes on before the
 * pass that reads it. */
static bool takes_part(const struct task *task)
{
    for (int i = 0; i < task->num_accesses; i++) {
        const struct data *data = task->accesses[i].data;
        const enum starpu_data_access_mode mode = task->accesses[i].mode;
        if (!data || !data->handle || data->passed_on || mode == STARPU_REDUX)
            continue;
        const bool owned = data->owner == runtime_layout()->rank, written = mode != STARPU_R;
        if (data->copied ? written : owned)
            return true;
    }
    return false;
}

static status exchange_data(const struct task *task)
{
    struct iteration *iteration = task->attributes.iteration;
    struct starpu_task *none;
    recorder_skip(iteration->recorder);
    if (!takes_part(task))
        return STARPULLM_OK;
    iteration->exchanged++;
    TRY(transfers_before_task(&none, task));
    return transfers_after_task(task);
}

static status check_registered(const struct task *task)
{
    for (int i = 0; i < task->num_accesses; i++)
        if (!task->accesses[i].data || !task->accesses[i].data->handle)
            return runtime_failure("%s: found no handle for its operand %d on rank %d, expected one",
                                   task->operation->name, i, runtime_layout()->rank);
    return STARPULLM_OK;
}

/* ---- The plan of offloading ---- */

static void take_evictions(struct offload_plan *plan, struct task *task)
{
    if (!plan)
        return;
    plan->tasks++;
    while (plan->first < plan->end && task->num_evicted < TASK_MAX_ACCESSES &&
           plan->evictions[plan->first % MAX_EVICTIONS].since + TASKS_UNTIL_WRITTEN <= plan->tasks)
        task->evicted[task->num_evicted++] = plan->evictions[plan->first++ % MAX_EVICTIONS].data;
}

/* If too many wait for their eviction, the oldest stays until StarPU needs its memory. */
static void add_eviction(struct offload_plan *plan, struct data *data)
{
    plan->evictions[plan->end % MAX_EVICTIONS].data = data;
    plan->evictions[plan->end++ % MAX_EVICTIONS].since = plan->tasks;
    if (plan->end - plan->first > MAX_EVICTIONS)
        plan->first++;
}

/* The plan counts accesses in the order of submission. */
static void follow_plan(const struct task *task)
{
    struct iteration *iteration = task->attributes.iteration;
    struct offload_plan *plan = iteration->plan;
    for (int i = 0; i < task->num_accesses; i++) {
        struct data *data = task->accesses[i].data;
        const int after = plan ? plan->after[iteration->accesses++] : AFTER_NOTHING;
        if (task->accesses[i].mode != STARPU_R)
            data->has_value = true;
        if (after == AFTER_WRITE_EARLY || after == AFTER_EVICT)
            data_write_early(data);
        if (after == AFTER_EVICT)
            add_eviction(plan, data);
        if (after == AFTER_INVALIDATE)
            data_invalidate(data);
    }
}

/* A task without code, which StarPU ends when the data are in memory. It is in order with the other tasks that use
 * them, so they have their value; and it begins after the one whose plan it is, so they don't come too early. */
static struct starpu_codelet fetch_codelet = {.where = STARPU_NOWHERE,
                                              .nbuffers = 1,
                                              .modes = {STARPU_R},
                                              .specific_nodes = 1,
                                              .nodes = {STARPU_MAIN_RAM},
                                              .name = "fetch"};

/* Before the task is submitted: later it may have ended. */
static size_t create_fetches(const struct iteration *iteration, struct starpu_task *after, struct starpu_task **created)
{
    const struct fetches *fetches = &iteration->plan->fetches;
    size_t count = 0;
    for (size_t i = fetches->first[iteration->tasks]; i < fetches->first[iteration->tasks + 1]; i++) {
        if (!fetches->data[i]->has_value)
            continue;
        struct starpu_task *fetch = starpu_task_create();
        fetch->cl = &fetch_codelet;
        fetch->sched_ctx = runtime_layout()->context;
        fetch->handles[0] = fetches->data[i]->handle;
        starpu_task_declare_deps_array(fetch, 1, &after);
        created[count++] = fetch;
    }
    return count;
}

static status submit_by_plan(struct starpu_task *starpu_task, struct task *task)
{
    struct iteration *iteration = task->attributes.iteration;
    struct starpu_task *fetches[TASK_MAX_ACCESSES];
    const size_t count =
        iteration->plan && iteration->plan->fetches.first ? create_fetches(iteration, starpu_task, fetches) : 0;
    status code = submit(starpu_task, task);
    for (size_t i = 0; i < count; i++) {
        const int error = code == STARPULLM_OK ? starpu_task_submit(fetches[i]) : -1;
        if (!error)
            continue;
        if (code == STARPULLM_OK)
            code = runtime_failure("StarPU refused to fetch data (error %d)", error);
        fetches[i]->destroy = 0;
        starpu_task_destroy(fetches[i]);
    }
    iteration->tasks++;
    return code;
}

status insert_task(struct task *task)
{
    struct iteration *iteration = task->attributes.iteration;
    if (iteration->on_paper)
        return task_record(&task->record, task);
    if (task->attributes.rank != runtime_layout()->rank)
        return exchange_data(task);
    TRY(check_registered(task));
    iteration->submitted++;
    const bool one_rank = runtime_layout()->ranks == 1;
    struct task *created;
    TRY(task_create(&created, task));
    take_evictions(iteration->plan, created);
    struct starpu_task *starpu_task = NULL;
    status code = STARPULLM_OK;
    if (one_rank)
        starpu_task = task_on_this_rank(task);
    else
        code = transfers_before_task(&starpu_task, task);
    if (starpu_task)
        code = submit_by_plan(starpu_task, created);
    else
        task_destroy(created);
    if (code == STARPULLM_OK && one_rank)
        follow_plan(task);
    if (code == STARPULLM_OK && !one_rank)
        code = transfers_after_task(task);
    return code;
}
