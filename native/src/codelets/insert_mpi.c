/* The one place that inserts a task, in a build with MPI: on the rank that the task's place names. Every rank calls it
 * for every task, in the same order; StarPU moves the data that the task's rank lacks. Called by every
 * submit_<operation>(). */
#include <stdlib.h>

#include "codelets/task.h"
#include "runtime/ranks_mpi.h"
#include "runtime/runtime.h"

/* A task that runs here keeps `task`; elsewhere only StarPU's transfers are submitted. */
static status insert_over_ranks(struct task *task, struct operation *operation, struct task_place place,
                                const struct access *accesses, size_t num_accesses)
{
    struct starpu_data_descr descriptors[STARPU_NMAXBUFS];
    for (size_t i = 0; i < num_accesses; i++)
        descriptors[i] = (struct starpu_data_descr){accesses[i].data->handle, accesses[i].mode};
    const bool here = place.rank == runtime_layout()->rank;
    if (here)
        iteration_add_task(place.iteration);
    int error = starpu_mpi_task_insert(ranks_communicator(), &operation->codelet, STARPU_DATA_MODE_ARRAY, descriptors,
                                       (int)num_accesses, STARPU_EXECUTE_ON_NODE, place.rank, STARPU_SCHED_CTX,
                                       runtime_layout()->context, STARPU_PRIORITY, place.priority, STARPU_NAME,
                                       operation->codelet.name, STARPU_CL_ARGS, task, task->size,
                                       STARPU_CALLBACK_WITH_ARG_NFREE, task_done, task, 0);
    if (!here)
        free(task);
    if (!error)
        return STARPULLM_OK;
    if (here)
        iteration_task_done(place.iteration);
    return fail(STARPULLM_RUNTIME_FAILURE, "StarPU refused a task of %s on rank %d (error %d)", operation->codelet.name,
                place.rank, error);
}

status insert_task(struct operation *operation, struct task_place place, const struct access *accesses,
                   size_t num_accesses, const void *arguments, size_t arguments_size)
{
    struct task *task;
    TRY(task_create(&task, operation, place, num_accesses, arguments, arguments_size));
    status code = task_observe(task, place, accesses);
    if (code != STARPULLM_OK) {
        free(task);
        return code;
    }
    if (runtime_layout()->ranks == 1)
        return task_submit(task, operation, accesses);
    return insert_over_ranks(task, operation, place, accesses, num_accesses);
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
        transfer->record->end_ns = recorder_now();
    iteration_task_done(transfer->iteration);
    free(transfer);
}

status submit_transfer(struct task_place place, struct data *destination, struct data *source)
{
    const int me = runtime_layout()->rank;
    const struct access accesses[] = {{destination, STARPU_W}, {source, STARPU_R}};
    struct starpullm_trace_task *record;
    TRY(task_record(&record, transfer_number(), place, accesses, 2));
    if (me != source->owner && me != destination->owner)
        return STARPULLM_OK;
    struct transfer *transfer = malloc(sizeof *transfer);
    if (!transfer)
        return fail(STARPULLM_OUT_OF_MEMORY, "a transfer from %s to %s", source->name, destination->name);
    *transfer = (struct transfer){place.iteration, record};
    if (record)
        record->start_ns = recorder_now();
    iteration_add_task(place.iteration);
    const int error = me == source->owner
                          ? starpu_mpi_isend_detached(source->handle, destination->owner, destination->id,
                                                      ranks_communicator(), transfer_done, transfer)
                          : starpu_mpi_irecv_detached(destination->handle, source->owner, destination->id,
                                                      ranks_communicator(), transfer_done, transfer);
    if (!error)
        return STARPULLM_OK;
    iteration_task_done(place.iteration);
    free(transfer);
    return fail(STARPULLM_RUNTIME_FAILURE, "StarPU refused the transfer from %s to %s (error %d)", source->name,
                destination->name, error);
}
