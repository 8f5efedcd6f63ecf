/* Messages between ranks, through StarPU-MPI. */
#include "codelets/task.h"

#include <stdlib.h>

#include "clock.h"
#include "runtime/ranks.h"
#include "runtime/runtime.h"

/* A task's accesses, rank and priority in StarPU-MPI's form, the same for the calls before and after the submission. */
#define TASK_AS_LIST(place, descriptors, number)                                                            \
    STARPU_DATA_MODE_ARRAY, (descriptors), (number), STARPU_EXECUTE_ON_NODE, (place).rank, STARPU_PRIORITY, \
        (place).priority, 0

/* Without data that this rank doesn't have, as the task runs on another. */
static int describe(struct starpu_data_descr *descriptors, const struct access *accesses, size_t num_accesses)
{
    int number = 0;
    for (size_t i = 0; i < num_accesses; i++)
        if (accesses[i].data && accesses[i].data->handle)
            descriptors[number++] = (struct starpu_data_descr){accesses[i].data->handle, accesses[i].mode};
    return number;
}

status transfers_before_task(struct starpu_task **created, struct operation *operation, struct task_place place,
                             const struct access *accesses, size_t num_accesses)
{
    struct starpu_data_descr descriptors[TASK_MAX_ACCESSES];
    const int number = describe(descriptors, accesses, num_accesses);
    *created = starpu_mpi_task_build(ranks_communicator(), operation_codelet(operation, place.iteration),
                                     TASK_AS_LIST(place, descriptors, number));
    if (!*created && place.rank == runtime_layout()->rank)
        return runtime_failure("StarPU refused the transfers for a task of %s in step %lld", operation->name,
                               (long long)place.iteration->number);
    return STARPULLM_OK;
}

status transfers_after_task(struct operation *operation, struct task_place place, const struct access *accesses,
                            size_t num_accesses)
{
    struct starpu_data_descr descriptors[TASK_MAX_ACCESSES];
    const int number = describe(descriptors, accesses, num_accesses);
    const int error = starpu_mpi_task_post_build(ranks_communicator(), operation_codelet(operation, place.iteration),
                                                 TASK_AS_LIST(place, descriptors, number));
    if (error)
        return runtime_failure("StarPU refused the transfers of a task of %s on rank %d in step %lld (error %d)",
                               operation->name, place.rank, (long long)place.iteration->number, error);
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

status submit_transfer(struct task_place place, struct data *destination, struct data *source)
{
    const int rank = runtime_layout()->rank;
    const struct access accesses[] = {{destination, STARPU_W, false}, {source, STARPU_R, false}};
    struct starpullm_trace_task *record;
    TRY(task_record(&record, OPERATION_transfer, place, accesses, 2));
    if (place.iteration->on_paper)
        return STARPULLM_OK;
    struct transfer *transfer = malloc(sizeof *transfer);
    if (!transfer)
        return out_of_memory("a transfer from %s to %s", source->name, destination->name);
    *transfer = (struct transfer){place.iteration, record};
    if (record)
        record->start_ns = (int64_t)now_ns();
    place.iteration->exchanged++;
    iteration_add_task(place.iteration);
    const int error = rank == source->owner
                          ? starpu_mpi_isend_detached(source->handle, destination->owner, destination->tag,
                                                      ranks_communicator(), transfer_done, transfer)
                          : starpu_mpi_irecv_detached(destination->handle, source->owner, destination->tag,
                                                      ranks_communicator(), transfer_done, transfer);
    if (!error)
        return STARPULLM_OK;
    iteration_task_done(place.iteration);
    free(transfer);
    return runtime_failure("StarPU refused the transfer from %s to %s in step %lld (error %d)", source->name,
                           destination->name, (long long)place.iteration->number, error);
}
