/* The task graph of training steps on any number of ranks, on paper: graph/ submits it as ever, but its tasks are only
 * recorded, and its data have names and sizes alone. */
#include "session/session.h"

enum { SLOTS = 2 }; /* of a session with two steps in flight */

struct plan {
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

static status write_plan(struct plan *plan, const model_config *config, const struct starpullm_session_options *options,
                         int ranks, int workers, int steps)
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
                             int32_t steps, struct starpullm_trace **plan)
{
    CHECK_STRUCT(options);
    CHECK_POINTERS(config, plan);
    TRY(model_config_check(config, "plan"));
    TRY(session_check_range("ranks", ranks, 1, INT32_MAX));
    TRY(session_check_range("reduction", options->reduction, STARPULLM_REDUCTION_ORDERED, STARPULLM_REDUCTION_TREE));
    TRY(session_check_range("steps", steps, 1, INT32_MAX));
    TRY(session_check_range("workers", workers, 1, INT32_MAX));
    TRY(workload_check(options, config, ranks));
    struct plan written = {0};
    const fenv_t callers = arithmetic_enter();
    status code = write_plan(&written, config, options, ranks, workers, steps);
    if (code == STARPULLM_OK)
        code = trace_create(written.recorder, written.handles, plan);
    recorder_destroy(written.recorder);
    handles_destroy(written.handles);
    workload_destroy(&written.work);
    fesetenv(&callers);
    return code;
}
