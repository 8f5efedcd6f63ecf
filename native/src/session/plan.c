/* The task graph of training steps on any number of ranks, on paper: graph/ submits it as ever, but its tasks are only
 * recorded, and its data have names and sizes alone. */
#include <stdlib.h>

#include "session/session.h"

enum { SLOTS = 2 }; /* of a session with two steps in flight */

struct starpullm_plan {
    struct workload work;
    struct handles *handles;
    struct recorder *recorder;
};

status record_on_paper(const struct workload *work, const struct handles *handles, int steps, struct recorder *recorder)
{
    const struct update update = {.number = 1}; /* nobody reads it: tasks on paper don't run */
    struct iteration iteration;
    status code = STARPULLM_OK;
    iteration_init(&iteration, recorder, NULL);
    iteration.on_paper = true;
    for (int step = 0; step < steps && code == STARPULLM_OK; step++) {
        iteration.number = step;
        code = graph_add_step(
            &(struct graph_context){work, handles, &iteration, step % SLOTS, &update, PRIORITY_DEFAULT}, NULL);
    }
    iteration_destroy(&iteration);
    return code;
}

static status write_plan(struct starpullm_plan *plan, const model_config *config,
                         const struct starpullm_session_options *options, int ranks, int workers, int steps)
{
    const struct runtime_layout layout = {.ranks = ranks, .all_workers = (int64_t)workers * ranks};
    const struct handles_options handles_options = {.work = &plan->work, .slots = SLOTS, .on_paper = true};
    TRY(workload_create(&plan->work, options, config, &layout));
    TRY(handles_create(&handles_options, &plan->handles));
    TRY(schedule_fill(&plan->work));
    TRY(recorder_create(&plan->recorder));
    return record_on_paper(&plan->work, plan->handles, steps, plan->recorder);
}

status starpullm_plan_create(const struct starpullm_model_config *config,
                             const struct starpullm_session_options *options, int32_t ranks, int32_t workers,
                             int32_t steps, starpullm_plan **plan)
{
    CHECK_STRUCT(options);
    CHECK_POINTERS(config, plan);
    TRY(model_config_check(config, "plan"));
    TRY(session_check_range("ranks", ranks, 1, INT32_MAX));
    TRY(session_check_range("reduction", options->reduction, STARPULLM_REDUCTION_ORDERED, STARPULLM_REDUCTION_TREE));
    TRY(session_check_range("steps", steps, 1, INT32_MAX));
    TRY(session_check_range("workers", workers, 1, INT32_MAX));
    TRY(workload_check(options, config, ranks));
    struct starpullm_plan *created = calloc(1, sizeof *created);
    if (!created)
        return out_of_memory("a plan could not be allocated");
    const fenv_t callers = arithmetic_enter();
    const status code = write_plan(created, config, options, ranks, workers, steps);
    fesetenv(&callers);
    if (code == STARPULLM_OK)
        *plan = created;
    else
        starpullm_plan_destroy(&created);
    return code;
}

void starpullm_plan_destroy(starpullm_plan **plan)
{
    if (!plan || !*plan)
        return;
    recorder_destroy((*plan)->recorder);
    handles_destroy((*plan)->handles);
    workload_destroy(&(*plan)->work);
    free(*plan);
    *plan = NULL;
}

status starpullm_plan_size(const starpullm_plan *plan, size_t *tasks, size_t *accesses, size_t *handles)
{
    CHECK_POINTERS(plan, tasks, accesses, handles);
    recorder_size(plan->recorder, tasks, accesses);
    *handles = (size_t)handles_count(plan->handles);
    return STARPULLM_OK;
}

status starpullm_plan_read(const starpullm_plan *plan, struct starpullm_trace_task *tasks, size_t num_tasks,
                           struct starpullm_trace_access *accesses, size_t num_accesses)
{
    CHECK_POINTERS(plan, tasks, accesses);
    return recorder_copy(plan->recorder, tasks, num_tasks, accesses, num_accesses);
}

status starpullm_plan_handle_info(const starpullm_plan *plan, int32_t index, struct starpullm_handle_info *info)
{
    CHECK_POINTERS(plan);
    CHECK_STRUCT(info);
    return handles_describe(plan->handles, index, info);
}
