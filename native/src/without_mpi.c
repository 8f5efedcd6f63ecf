/* A build without MPI links this file instead of the *_mpi.c files: it refuses a communicator, so that there is one
 * rank, which has everything and sends nothing. */
#include "codelets/task.h"
#include "data/exchange.h"
#include "runtime/ranks.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"

#define NOTHING(name, ...) \
    void name(__VA_ARGS__) \
    {                      \
    }
#define RETURNS(type, value, name, ...) \
    type name(__VA_ARGS__)              \
    {                                   \
        return value;                   \
    }
#define REFUSED(name, ...)                                                                                   \
    RETURNS(status, invalid_state(#name ": found several ranks, expected one in a build without MPI"), name, \
            __VA_ARGS__)

RETURNS(int, 0, ranks_supported, void)

status ranks_open(int32_t communicator, status code, int64_t workers, int64_t threads, struct ranks *ranks)
{
    return invalid_argument(
        "communicator: this build of starpullm has no MPI, expected none, or a build with STARPULLM_MPI=ON");
}

/* ---- Of one rank ---- */

NOTHING(ranks_close, void)
NOTHING(exchange_register, struct data *data)
NOTHING(exchange_unregister, struct data *data)
NOTHING(exchange_drop, struct data *data)
NOTHING(exchange_values, float *values, int64_t count, int owner)
RETURNS(status, code, ranks_agree, status code)
RETURNS(status, STARPULLM_OK, ranks_check_same, uint64_t value, int neighbours, const char *sentence)
RETURNS(status, STARPULLM_OK, exchange_to, struct data *data, int rank)
RETURNS(status, STARPULLM_OK, exchange_reduce, struct data *data)

/* ---- Of several ---- */

RETURNS(int64_t, INT64_MAX, ranks_max_tag, void)
NOTHING(ranks_stop, void)
REFUSED(ranks_start, void)
REFUSED(submit_transfer, struct task_place place, struct data *destination, struct data *source)
REFUSED(transfers_before_task, struct starpu_task **created, struct operation *operation, struct task_place place,
        const struct access *accesses, size_t num_accesses)
REFUSED(transfers_after_task, struct operation *operation, struct task_place place, const struct access *accesses,
        size_t num_accesses)
