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

static status check_options(const struct starpullm_plan_options *o)
{
    TRY(model_config_check(&o->config, "plan"));
    TRY(session_check_range("batch_size", o->batch_size, 1, INT32_MAX));
    TRY(session_check_range("seq_len", o->seq_len, 1, o->config.max_seq_len));
    TRY(session_check_range("ranks", o->ranks, 1, INT32_MAX));
    TRY(session_check_range("sub_batches", o->sub_batches, 1, INT32_MAX / o->ranks));
    TRY(session_check_range("activation_sets", o->activation_sets, 0, o->sub_batches));
    TRY(session_check_range("reduction", o->reduction, STARPULLM_REDUCTION_ORDERED, STARPULLM_REDUCTION_TREE));
    TRY(session_check_range("steps", o->steps, 1, INT32_MAX));
    TRY(session_check_range("workers", o->workers, 1, INT32_MAX));
    TRY(tiles_check(&o->config, o->reduction, o->weight_gradient_tiles));
    TRY(session_check_sharing(o->recompute, o->reuse_weight_gradients, o->keep_activations, o->sub_batches, o->ranks));
    TRY(session_check_pipeline(o->pipeline, &o->config, o->reduction, o->ranks));
    if (o->batch_size % o->sub_batches != 0)
        return fail(STARPULLM_INVALID_ARGUMENT, "sub_batches: found %lld, expected a divisor of the batch size %lld",
                    (long long)o->sub_batches, (long long)o->batch_size);
    return activations_check(&o->config, o->ranks * o->batch_size, o->seq_len);
}

static status add_steps(const struct starpullm_plan *plan, int steps)
{
    const struct adamw_options adamw = {0};
    struct iteration iteration;
    status code = STARPULLM_OK;
    iteration_init(&iteration, plan->recorder, NULL);
    iteration.on_paper = true;
    for (int step = 0; step < steps && code == STARPULLM_OK; step++) {
        const struct update update = {step + 1, adamw};
        iteration.number = step;
        code = graph_add_step(
            &(struct graph_context){&plan->work, plan->handles, &iteration, step % SLOTS, &update, PRIORITY_DEFAULT},
            NULL);
    }
    iteration_destroy(&iteration);
    return code;
}

static status write_plan(struct starpullm_plan *plan, const struct starpullm_plan_options *o)
{
    struct workload *work = &plan->work;
    const int stages = o->pipeline ? o->pipeline->stages : 1, sub_batches = (int)o->sub_batches * (o->ranks / stages);
    *work = (struct workload){.config = o->config,
                              .B = (size_t)(o->batch_size / o->sub_batches),
                              .T = (size_t)o->seq_len,
                              .reduction = (enum starpullm_reduction)o->reduction,
                              .recompute = (enum starpullm_recompute)o->recompute,
                              .reuse_weight_gradients = o->reuse_weight_gradients != 0,
                              .gradients_of_blocks =
                                  o->keep_activations || (o->pipeline && o->pipeline->gradients_of_blocks)};
    work->tiles = tiles_choose(&o->config, work->reduction, sub_batches, (int64_t)o->workers * o->ranks, stages,
                               o->weight_gradient_tiles);
    TRY(placement_create(&work->placement, &o->config, 0, o->ranks, sub_batches, o->pipeline));
    TRY(schedule_create(work, o->pipeline, o->activation_sets));
    const struct handles_options handles_options = {work, SLOTS, 0, o->keep_activations != 0, .on_paper = true};
    TRY(handles_create(&handles_options, &plan->handles));
    TRY(schedule_fill(work));
    TRY(recorder_create(&plan->recorder));
    return add_steps(plan, o->steps);
}

status starpullm_plan_create(const struct starpullm_plan_options *options, starpullm_plan **plan)
{
    CHECK_STRUCT(options);
    CHECK_POINTERS(plan);
    TRY(check_options(options));
    struct starpullm_plan *created = calloc(1, sizeof *created);
    if (!created)
        return fail(STARPULLM_OUT_OF_MEMORY, "a plan could not be allocated");
    const status code = write_plan(created, options);
    if (code == STARPULLM_OK)
        *plan = created;
    else
        starpullm_plan_destroy(created);
    return code;
}

void starpullm_plan_destroy(starpullm_plan *plan)
{
    if (!plan)
        return;
    recorder_destroy(plan->recorder);
    handles_destroy(plan->handles);
    schedule_destroy(&plan->work);
    placement_destroy(&plan->work.placement);
    free(plan);
}

status starpullm_plan_size(const starpullm_plan *plan, size_t *tasks, size_t *accesses, size_t *handles)
{
    CHECK_POINTERS(plan, tasks, accesses, handles);
    *tasks = recorder_tasks(plan->recorder);
    *accesses = recorder_accesses(plan->recorder);
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
