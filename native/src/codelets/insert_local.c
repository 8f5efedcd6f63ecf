/* The one place that inserts a task into StarPU and tells the recorder, for one process (placement over ranks has a
 * file of its own beside this one). Called by every submit_<operation>(). */
#include <fenv.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/operation.h"

/* A task's argument: freed by StarPU with the task. */
struct task {
    const struct operation *operation;
    struct submission *submission;
    struct starpullm_trace_task *record; /* NULL: not traced */
    int num_buffers;
    max_align_t arguments[];
};

void operation_cpu(void *interfaces[], void *argument)
{
    struct task *task = argument;
    /* Threads inherit their creator's environment, and any library may have changed that (numerics.md, Rules). */
    fesetenv(FE_DFL_ENV);

    void *buffers[STARPU_NMAXBUFS];
    for (int i = 0; i < task->num_buffers; i++)
        buffers[i] = (void *)STARPU_VECTOR_GET_PTR(interfaces[i]);

    if (task->record) {
        task->record->worker = starpu_worker_get_id();
        task->record->start_ns = recorder_now();
    }
    task->operation->run(buffers, task->arguments);
    if (task->record)
        task->record->end_ns = recorder_now();
}

static void task_done(void *argument)
{
    submission_task_done(((struct task *)argument)->submission);
}

static enum starpullm_access_mode trace_mode(enum starpu_data_access_mode mode)
{
    return mode == STARPU_R ? STARPULLM_READ : mode == STARPU_W ? STARPULLM_WRITE : STARPULLM_READ_WRITE;
}

static status record_task(struct task *task, struct task_place place, const struct access *accesses,
                          size_t num_accesses)
{
    struct starpullm_trace_access trace_accesses[STARPU_NMAXBUFS];
    for (size_t i = 0; i < num_accesses; i++)
        trace_accesses[i] = (struct starpullm_trace_access){accesses[i].data->id, trace_mode(accesses[i].mode)};
    struct starpullm_trace_task trace_task = {
        .step = place.submission->number,
        .operation = operation_number(task->operation),
        .sub_batch = place.sub_batch,
        .layer = place.layer,
        .worker = -1,
    };
    return recorder_append(place.submission->recorder, &trace_task, trace_accesses, num_accesses, &task->record);
}

status insert_task(struct operation *operation, struct task_place place, const struct access *accesses,
                   size_t num_accesses, const void *arguments, size_t arguments_size)
{
    struct task *task = malloc(sizeof *task + arguments_size);
    if (!task)
        return fail(STARPULLM_OUT_OF_MEMORY, "a task of %s", operation->codelet.name);
    task->operation = operation;
    task->submission = place.submission;
    task->record = NULL;
    task->num_buffers = (int)num_accesses;
    memcpy(task->arguments, arguments, arguments_size);
    if (place.submission->recorder) {
        status code = record_task(task, place, accesses, num_accesses);
        if (code != STARPULLM_OK) {
            free(task);
            return code;
        }
    }

    struct starpu_task *starpu_task = starpu_task_create();
    starpu_task->cl = &operation->codelet;
    starpu_task->name = operation->codelet.name;
    starpu_task->nbuffers = (int)num_accesses;
    for (size_t i = 0; i < num_accesses; i++) {
        starpu_task->handles[i] = accesses[i].data->handle;
        starpu_task->modes[i] = accesses[i].mode;
    }
    starpu_task->cl_arg = task;
    starpu_task->cl_arg_size = sizeof *task + arguments_size;
    starpu_task->cl_arg_free = 1;
    starpu_task->callback_func = task_done;
    starpu_task->callback_arg = task;

    submission_add_task(place.submission);
    int error = starpu_task_submit(starpu_task);
    if (error) {
        submission_task_done(place.submission);
        starpu_task->destroy = 0;
        starpu_task_destroy(starpu_task);
        return fail(STARPULLM_RUNTIME_FAILURE, "StarPU refused a task of %s (error %d)", operation->codelet.name,
                    error);
    }
    return STARPULLM_OK;
}
