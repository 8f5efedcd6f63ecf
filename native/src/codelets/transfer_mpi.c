/* Messages between ranks, through StarPU-MPI. */
#include "codelets/task.h"

#include <stdlib.h>

#include "clock.h"
#include "runtime/ranks.h"
#include "runtime/runtime.h"

/* A task's accesses, rank and priority in StarPU-MPI's form, the same for the calls before and after the submission. */
#define TASK_AS_LIST(task, descriptors, number)                                                                        \
    STARPU_DATA_MODE_ARRAY, (descriptors), (number), STARPU_EXECUTE_ON_NODE, (task)->attributes.rank, STARPU_PRIORITY, \
        (task)->attributes.priority, 0

/* Without data that this rank doesn't have, as the task runs on another. */
static int describe(struct starpu_data_descr *descriptors, const struct task *task)
{
    int number = 0;
    for (int i = 0; i < task->num_accesses; i++) {
        const struct access access = task->accesses[i];
        if (access.data && access.data->handle)
            descriptors[number++] = (struct starpu_data_descr){access.data->handle, access.mode};
    }
    return number;
}

status transfers_before_task(struct starpu_task **created, const struct task *task)
{
    struct starpu_data_descr descriptors[TASK_MAX_ACCESSES];
    const int number = describe(descriptors, task);
    *created = starpu_mpi_task_build(ranks_communicator(), task_codelet(task), TASK_AS_LIST(task, descriptors, number));
    if (!*created && task->attributes.rank == runtime_layout()->rank)
        return runtime_failure("StarPU refused the transfers for a task of %s in step %lld", task->operation->name,
                               (long long)task->attributes.iteration->number);
    return STARPULLM_OK;
}

status transfers_after_task(const struct task *task)
{
    struct starpu_data_descr descriptors[TASK_MAX_ACCESSES];
    const int number = describe(descriptors, task);
    const int error =
        starpu_mpi_task_post_build(ranks_communicator(), task_codelet(task), TASK_AS_LIST(task, descriptors, number));
    if (error)
        return runtime_failure("StarPU refused the transfers of a task of %s on rank %d in step %lld (error %d)",
                               task->operation->name, task->attributes.rank,
                               (long long)task->attributes.iteration->number, error);
    return STARPULLM_OK;
}

/* One end of a transfer, as its callback sees it. */
struct transfer {
    struct iteration *iteration;
    struct starpullm_trace_task *record; /* NULL: not traced */
};

static void transfer_done(void *argument)
{
    struct transfer *transfer = argument;
    if (transfer->record)
        transfer->record->end_ns = (int64_t)now_ns();
    iteration_task_done(transfer->iteration);
    free(transfer);
}

status submit_transfer(struct task_attributes attributes, struct data *destination, struct data *source)
{
    struct iteration *iteration = attributes.iteration;
    const struct task task = {.operation = &operations[OPERATION_transfer],
                              .attributes = attributes,
                              .num_accesses = 2,
                              .accesses = {{destination, STARPU_W}, {source, STARPU_R}}};
    struct record record = {0};
    TRY(task_record(&record, &task));
    if (iteration->on_paper)
        return STARPULLM_OK;
    struct transfer *transfer = malloc(sizeof *transfer);
    if (!transfer)
        return out_of_memory("a transfer from %s to %s", source->name, destination->name);
    *transfer = (struct transfer){iteration, record.task};
    if (record.task)
        record.task->start_ns = (int64_t)now_ns();
    iteration->exchanged++;
    iteration_add_task(iteration);
    const int error = runtime_layout()->rank == source->owner
                          ? starpu_mpi_isend_detached(source->handle, destination->owner, destination->tag,
                                                      ranks_communicator(), transfer_done, transfer)
                          : starpu_mpi_irecv_detached(destination->handle, source->owner, destination->tag,
                                                      ranks_communicator(), transfer_done, transfer);
    if (!error)
        return STARPULLM_OK;
    iteration_task_done(iteration);
    free(transfer);
    return runtime_failure("StarPU refused the transfer from %s to %s in step %lld (error %d)", source->name,
                           destination->name, (long long)iteration->number, error);
}
