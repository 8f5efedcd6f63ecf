/* What a task brings along, and what a worker does with it: the one CPU function of all codelets. */
#include "codelets/task.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "clock.h"
#include "runtime/runtime.h"

struct call {
    const struct task *task;
    void **buffers;
};

static void run_thread(void *argument, struct team team)
{
    const struct call *call = argument;
    call->task->operation->run(call->task, call->buffers, team);
}

void *task_buffer(const struct task *task, const struct data *data, void *const buffers[])
{
    for (int i = 0; i < task->num_buffers; i++)
        if (task->data[i] == data)
            return buffers[i];
    return NULL;
}

static void operation_cpu(void *interfaces[], void *argument)
{
    struct task *task = argument;
    void *buffers[TASK_MAX_ACCESSES] = {0};
    for (int i = 0; i < task->num_buffers; i++)
        buffers[i] = (void *)STARPU_VECTOR_GET_PTR(interfaces[i]);

    const int expected = runtime_layout()->threads_per_worker;
    if (task->record) {
        task->record->worker = starpu_worker_get_id() / expected;
        task->record->start_ns = (int64_t)now_ns();
    }
    if (task->watch.instrument)
        instrument_before(&task->watch, buffers);
    const int threads = team_run(expected, run_thread, &(struct call){task, buffers});
    if (task->watch.instrument)
        instrument_after(&task->watch, buffers);
    if (task->record)
        task->record->end_ns = (int64_t)now_ns();
    if (threads != expected)
        failure_keep(
            task->iteration->failure,
            runtime_failure(
                "%s: OpenMP gave %d threads, expected the partition's %d (is OMP_THREAD_LIMIT or OMP_DYNAMIC set?)",
                task->operation->name, threads, expected));
}

static void make_codelets(struct operation *operation)
{
    for (enum model m = 0; m <= NO_MODEL; m++)
        operation->codelets[m] = (struct starpu_codelet){.where = STARPU_CPU,
                                                         .cpu_funcs = {operation_cpu},
                                                         .nbuffers = STARPU_VARIABLE_NBUFFERS,
                                                         .name = operation->name};
    for (enum model m = 0; m < NUM_MODELS; m++) {
        snprintf(operation->model_names[m], sizeof operation->model_names[m], "starpullm_%s_%s%s", operation->name,
                 kernels_level(), m == MODEL_BLAS ? "_blas" : "");
        operation->models[m] =
            (struct starpu_perfmodel){.type = STARPU_HISTORY_BASED, .symbol = operation->model_names[m]};
        operation->codelets[m].model = &operation->models[m];
    }
}

struct starpu_codelet *operation_codelet(struct operation *operation, const struct iteration *iteration)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&mutex);
    if (!operation->codelets[0].name)
        make_codelets(operation);
    pthread_mutex_unlock(&mutex);
    const enum model strict_or_blas = runtime_layout()->blas ? MODEL_BLAS : MODEL_STRICT;
    return &operation->codelets[iteration->instrument ? NO_MODEL : strict_or_blas];
}

void task_done(void *argument)
{
    const struct task *task = argument;
    for (int i = 0; i < task->num_leaving; i++)
        data_leave(task->leaving[i]);
    iteration_task_done(task->iteration);
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
    struct starpullm_trace_access trace_accesses[TASK_MAX_ACCESSES];
    for (size_t i = 0; i < num_accesses; i++)
        trace_accesses[i] = (struct starpullm_trace_access){accesses[i].data->id, trace_mode(accesses[i].mode)};
    const struct starpullm_trace_task trace_task = {
        .step = place.iteration->number,
        .operation = operation_number,
        .sub_batch = place.sub_batch,
        .layer = place.layer >= 0 ? place.layer : -1,
        .rank = place.rank,
        .worker = -1,
        .priority = place.priority,
    };
    return recorder_append(place.iteration->recorder, &trace_task, trace_accesses, num_accesses, record);
}

static void fill_watch(struct task *task, const struct access *accesses)
{
    task->watch = (struct watch){
        .instrument = task->iteration->instrument, .task = task->record->id, .num_accesses = task->num_buffers};
    for (int i = 0; i < task->num_buffers; i++)
        task->watch.accesses[i] =
            (struct watched_access){accesses[i].data->id, trace_mode(accesses[i].mode), accesses[i].data->bytes};
}

/* NULL: it has none. */
static struct starpullm_loss *loss_of(const struct task *task)
{
    return task->operation->number == OPERATION_report_loss ? task->arguments.report_loss.loss : NULL;
}

status task_create(struct task **created, const struct operation *operation, struct task_place place,
                   const struct access *accesses, size_t num_accesses, const union arguments *arguments)
{
    struct task *task = malloc(sizeof *task);
    if (!task)
        return out_of_memory("a task of %s", operation->name);
    *task = (struct task){.operation = operation,
                          .iteration = place.iteration,
                          .num_buffers = (int)num_accesses,
                          .arguments = *arguments};
    status code = task_record(&task->record, operation->number, place, accesses, num_accesses);
    if (code != STARPULLM_OK) {
        free(task);
        return code;
    }
    if (place.iteration->instrument)
        fill_watch(task, accesses);
    for (size_t i = 0; i < num_accesses; i++)
        task->data[i] = accesses[i].data;
    if (loss_of(task))
        loss_future_retain(loss_of(task));
    *created = task;
    return STARPULLM_OK;
}

void task_destroy(struct task *task)
{
    loss_future_release(loss_of(task));
    free(task);
}
