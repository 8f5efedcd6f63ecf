/* A build without MPI links this file instead of the *_mpi.c files: it refuses a communicator, so that there is one
 * rank, which has everything and sends nothing. */
#include "codelets/submit.h"
#include "codelets/task.h"
#include "data/exchange.h"
#include "runtime/ranks.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"

int ranks_supported(void)
{
    return 0;
}

status ranks_open(int32_t communicator, status code, int64_t workers, int64_t threads, struct ranks *ranks)
{
    return fail(STARPULLM_INVALID_ARGUMENT,
                "communicator: this build of starpullm has no MPI, expected none, or a build with STARPULLM_MPI=ON");
}

void ranks_close(void)
{
}

status ranks_agree(status code)
{
    return code;
}

status ranks_check_same(uint64_t value, int neighbours, const char *sentence)
{
    return STARPULLM_OK;
}

int64_t ranks_max_tag(void)
{
    return INT64_MAX;
}

static status refuse(const char *what)
{
    return fail(STARPULLM_INVALID_STATE, "%s: found several ranks, expected one in a build without MPI", what);
}

status ranks_start(void)
{
    return refuse("StarPU");
}

void ranks_stop(void)
{
}

void exchange_register(struct data *data)
{
}

void exchange_unregister(struct data *data)
{
}

status exchange_to(struct data *data, int rank)
{
    return STARPULLM_OK;
}

void exchange_drop(struct data *data)
{
}

void exchange_values(float *values, int64_t count, int owner)
{
    (void)values, (void)count, (void)owner;
}

status exchange_reduce(struct data *data)
{
    return STARPULLM_OK;
}

status transfers_before_task(struct starpu_task **created, struct operation *operation, struct task_place place,
                             const struct access *accesses, size_t num_accesses)
{
    return refuse(operation->name);
}

status transfers_after_task(struct operation *operation, struct task_place place, const struct access *accesses,
                            size_t num_accesses)
{
    return refuse(operation->name);
}

status submit_transfer(struct task_place place, struct data *destination, struct data *source)
{
    return refuse(destination->name);
}
