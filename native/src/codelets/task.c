/* What a task brings along while it waits and runs. */
#include "codelets/task.h"

#include <stdlib.h>

#include "clock.h"
#include "runtime/runtime.h"

static enum starpullm_access_mode trace_mode(enum starpu_data_access_mode mode)
{
    if (mode & STARPU_REDUX)
        return STARPULLM_REDUX;
    return mode == STARPU_R ? STARPULLM_READ : mode == STARPU_W ? STARPULLM_WRITE : STARPULLM_READ_WRITE;
}

status task_record(struct record *record, const struct task *task)
{
    const struct task_attributes *attributes = &task->attributes;
    if (!attributes->iteration->recorder)
        return STARPULLM_OK;
    struct starpullm_trace_access accesses[TASK_MAX_ACCESSES];
    for (int i = 0; i < task->num_accesses; i++)
        accesses[i] = (struct starpullm_trace_access){task->accesses[i].data->id, trace_mode(task->accesses[i].mode)};
    const struct starpullm_trace_task trace_task = {
        .step = attributes->iteration->number,
        .operation = task->operation->number,
        .sub_batch = attributes->sub_batch,
        .layer = attributes->layer >= 0 ? attributes->layer : -1,
        .rank = attributes->rank,
        .worker = -1,
        .priority = attributes->priority,
    };
    return recorder_append(attributes->iteration->recorder, &trace_task, accesses, (size_t)task->num_accesses, record);
}

/* NULL: it has none. */
static struct starpullm_loss *loss_of(const struct task *task)
{
    return task->operation->number == OPERATION_report_loss ? task->arguments.report_loss.loss : NULL;
}

status task_create(struct task **created, const struct task *task)
{
    struct task *copy = malloc(sizeof *copy);
    if (!copy)
        return out_of_memory("a task of %s", task->operation->name);
    *copy = *task;
    const status code = task_record(&copy->record, task);
    if (code != STARPULLM_OK) {
        free(copy);
        return code;
    }
    if (loss_of(copy))
        loss_future_retain(loss_of(copy));
    *created = copy;
    return STARPULLM_OK;
}

void task_destroy(struct task *task)
{
    loss_future_release(loss_of(task));
    free(task);
}

/* ---- While it runs ---- */

void *task_buffer(const struct task *task, const struct data *data, void *const buffers[])
{
    for (int i = 0; i < task->num_accesses; i++)
        if (task->accesses[i].data == data)
            return buffers[i];
    return NULL;
}

void task_begin(struct task *task, void *const buffers[])
{
    struct instrument *instrument = task->attributes.iteration->instrument;
    if (task->record.task) {
        task->record.task->worker = runtime_worker();
        task->record.task->start_ns = (int64_t)now_ns();
    }
    if (instrument)
        instrument_before(instrument, task->record, buffers);
}

void task_end(struct task *task, void *const buffers[])
{
    struct instrument *instrument = task->attributes.iteration->instrument;
    if (instrument)
        instrument_after(instrument, task->record, buffers);
    if (task->record.task)
        task->record.task->end_ns = (int64_t)now_ns();
}
