/* Data over ranks, through StarPU-MPI. */
#include "data/data.h"

#include <stdint.h>
#include <string.h>

#include "runtime/ranks.h"
#include "runtime/runtime.h"

static bool one_rank(void)
{
    return runtime_layout()->ranks == 1;
}

void exchange_register(struct data *data)
{
    if (!one_rank())
        starpu_mpi_data_register_comm(data->handle, data->tag, data->owner, ranks_communicator());
}

/* After a step that was submitted half way, StarPU-MPI has a list of handles with contributions that it hasn't added
 * up; it would follow it when the runtime ends. A reduction without contributors takes a handle off the list. */
void exchange_unregister(struct data *data)
{
    char *contributes = one_rank() ? NULL : starpu_mpi_data_get_redux_map(data->handle);
    if (!contributes)
        return;
    memset(contributes, 0, (size_t)runtime_layout()->ranks);
    (void)starpu_mpi_redux_data_tree(ranks_communicator(), data->handle, 2);
}

status exchange_to(struct data *data, int rank)
{
    if (one_rank())
        return STARPULLM_OK;
    if (data->bytes > INT32_MAX)
        return invalid_argument(
            "%s: found %zu bytes, expected at most %d to copy them to another rank: MPI has no larger messages",
            data->name, data->bytes, INT32_MAX);
    const int error = starpu_mpi_get_data_on_node_detached(ranks_communicator(), data->handle, rank, NULL, NULL);
    if (error)
        return runtime_failure("%s: StarPU refused to copy it to rank %d (error %d)", data->name, rank, error);
    return STARPULLM_OK;
}

void exchange_invalidate(struct data *data)
{
    if (!one_rank() && data && data->handle)
        starpu_mpi_cache_flush(ranks_communicator(), data->handle);
}

status exchange_values(status code, float *values, int64_t count, int owner)
{
    if (one_rank())
        return code;
    /* Under way at the same time as the values: a rank that waits for one message after the other sleeps twice. */
    int failed = code != STARPULLM_OK;
    MPI_Request of_failed;
    MPI_Ibcast(&failed, 1, MPI_INT, owner, ranks_communicator(), &of_failed);
    for (int64_t done = 0; done < count; done += INT32_MAX) {
        const int64_t left = count - done;
        MPI_Request request;
        MPI_Ibcast(values + done, left < INT32_MAX ? (int)left : INT32_MAX, MPI_FLOAT, owner, ranks_communicator(),
                   &request);
        ranks_wait(&request);
    }
    ranks_wait(&of_failed);
    return failed ? ranks_agree(code) : STARPULLM_OK;
}

/* StarPU-MPI knows of this rank's contributions only, and every rank has made some. */
status exchange_reduce(struct data *data)
{
    if (one_rank())
        return STARPULLM_OK;
    memset(starpu_mpi_data_get_redux_map(data->handle), 1, (size_t)runtime_layout()->ranks);
    const int error = starpu_mpi_redux_data_tree(ranks_communicator(), data->handle, 2);
    if (error)
        return runtime_failure("%s: StarPU refused its reduction over ranks (error %d)", data->name, error);
    return STARPULLM_OK;
}
