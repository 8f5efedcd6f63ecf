/* The one trampoline of all codelets, and what goes with a task: argument block, record, counting. Called by
 * insert_*.c; operation_cpu() by StarPU's workers. */
#include "codelets/task.h"

#include <stdlib.h>
#include <string.h>

#include "codelets/hold.h"
#include "instrument/instrument.h"
#include "runtime/runtime.h"
#include "runtime/team.h"

struct call {
    const struct task *task;
    void **buffers;
};

static void run_thread(void *argument, struct team team)
{
    const struct call *call = argument;
    call->task->operation->run(call->buffers, call->task->arguments, team);
}

void operation_cpu(void *interfaces[], void *argument)
{
    struct task *task = argument;
    void *buffers[STARPU_NMAXBUFS];
    for (int i = 0; i < task->num_buffers; i++)
        buffers[i] = (void *)STARPU_VECTOR_GET_PTR(interfaces[i]);

    const struct runtime_layout *layout = runtime_layout();
    struct call call = {task, buffers};
    if (task->record) {
        task->record->worker = starpu_worker_get_id() / layout->threads_per_worker;
        task->record->start_ns = recorder_now();
    }
    if (task->watch)
        instrument_before(task->watch, buffers);
    const int threads = team_run(layout->threads_per_worker, run_thread, &call);
    if (task->watch)
        instrument_after(task->watch, buffers);
    if (task->record)
        task->record->end_ns = recorder_now();
    if (threads != layout->threads_per_worker)
        failure_set(task->iteration->failure, STARPULLM_RUNTIME_FAILURE,
                    "%s: OpenMP gave %d threads, expected the partition's %d (is OMP_THREAD_LIMIT or OMP_DYNAMIC set?)",
                    task->operation->codelet.name, threads, layout->threads_per_worker);
}

/* The arguments' size, rounded up so that a struct watch may follow. */
static size_t watch_offset(size_t arguments_size)
{
    const size_t grain = _Alignof(max_align_t);
    return (arguments_size + grain - 1) / grain * grain;
}

status task_create(struct task **created, const struct operation *operation, struct task_place place,
                   size_t num_accesses, const void *arguments, size_t arguments_size)
{
    size_t size = sizeof(struct task) + arguments_size;
    if (place.iteration->instrument)
        size = sizeof(struct task) + watch_offset(arguments_size) + sizeof(struct watch) +
               num_accesses * sizeof(struct watched_access);
    struct task *task = malloc(size);
    if (!task)
        return fail(STARPULLM_OUT_OF_MEMORY, "a task of %s", operation->codelet.name);
    task->operation = operation;
    task->iteration = place.iteration;
    task->record = NULL;
    task->watch = NULL;
    task->num_buffers = (int)num_accesses;
    task->priority = place.priority;
    task->size = size;
    memcpy(task->arguments, arguments, arguments_size);
    if (place.iteration->instrument)
        task->watch = (struct watch *)((char *)task->arguments + watch_offset(arguments_size));
    *created = task;
    return STARPULLM_OK;
}

static enum starpullm_access_mode trace_mode(enum starpu_data_access_mode mode)
{
    if (mode & STARPU_REDUX)
        return STARPULLM_REDUX;
    return mode == STARPU_R ? STARPULLM_READ : mode == STARPU_W ? STARPULLM_WRITE : STARPULLM_READ_WRITE;
}

status task_record(struct starpullm_trace_task **record, int operation_number, struct task_place place,
                   const struct access *accesses, size_t num_accesses)
{
    *record = NULL;
    if (!place.iteration->recorder)
        return STARPULLM_OK;
    struct starpullm_trace_access trace_accesses[STARPU_NMAXBUFS];
    for (size_t i = 0; i < num_accesses; i++)
        trace_accesses[i] = (struct starpullm_trace_access){accesses[i].data->id, trace_mode(accesses[i].mode)};
    struct starpullm_trace_task trace_task = {
        .step = place.iteration->number,
        .operation = operation_number,
        .sub_batch = place.sub_batch,
        .layer = place.layer,
        .rank = place.rank,
        .worker = -1,
    };
    return recorder_append(place.iteration->recorder, &trace_task, trace_accesses, num_accesses, record);
}

status task_observe(struct task *task, struct task_place place, const struct access *accesses)
{
    TRY(task_record(&task->record, operation_number(task->operation), place, accesses, (size_t)task->num_buffers));
    struct watch *watch = task->watch;
    if (!watch)
        return STARPULLM_OK;
    watch->instrument = place.iteration->instrument;
    watch->task = task->record->id;
    watch->num_accesses = task->num_buffers;
    for (int i = 0; i < task->num_buffers; i++)
        watch->accesses[i] =
            (struct watched_access){accesses[i].data->id, trace_mode(accesses[i].mode), accesses[i].data->bytes};
    return STARPULLM_OK;
}

void task_done(void *task)
{
    iteration_task_done(((struct task *)task)->iteration);
}

/* One that wasn't submitted; with its argument. */
static void discard(struct starpu_task *task)
{
    task->destroy = 0;
    starpu_task_destroy(task);
}

status task_submit(struct task *task, struct operation *operation, const struct access *accesses)
{
    struct starpu_task *starpu_task = starpu_task_create();
    starpu_task->cl = &operation->codelet;
    starpu_task->name = operation->codelet.name;
    starpu_task->sched_ctx = runtime_layout()->context;
    starpu_task->priority = task->priority;
    starpu_task->nbuffers = task->num_buffers;
    for (int i = 0; i < task->num_buffers; i++) {
        starpu_task->handles[i] = accesses[i].data->handle;
        starpu_task->modes[i] = accesses[i].mode;
    }
    starpu_task->cl_arg = task;
    starpu_task->cl_arg_size = task->size;
    starpu_task->cl_arg_free = 1;
    starpu_task->callback_func = task_done;
    starpu_task->callback_arg = task;

    struct iteration *iteration = task->iteration;
    status code = iteration->hold ? hold_task(iteration->hold, starpu_task, task->record->id) : STARPULLM_OK;
    if (code != STARPULLM_OK) {
        discard(starpu_task);
        return code;
    }
    iteration_add_task(iteration);
    int error = starpu_task_submit(starpu_task);
    if (error) {
        iteration_task_done(iteration);
        discard(starpu_task);
        return fail(STARPULLM_RUNTIME_FAILURE, "StarPU refused a task of %s (error %d)", operation->codelet.name,
                    error);
    }
    return STARPULLM_OK;
}
