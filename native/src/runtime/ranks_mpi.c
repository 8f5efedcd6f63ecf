/* Ranks by MPI. */
#include "runtime/ranks.h"

#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* starpullm parity deep on 4 ranks of 2 cores (Zen 4, 2026-11-25): 10 s with pauses of up to 0.1 ms, 13 s with 1 ms,
 * and more than 200 s if MPI waits. */
enum { SHORTEST_PAUSE_NS = 10000, LONGEST_PAUSE_NS = 100000 };

static MPI_Comm communicator = MPI_COMM_NULL;
static uint64_t *gathered; /* a value of each rank */

MPI_Comm ranks_communicator(void)
{
    return communicator;
}

void ranks_wait(MPI_Request *request)
{
    int done = 0;
    long pause = SHORTEST_PAUSE_NS;
    MPI_Test(request, &done, MPI_STATUS_IGNORE);
    while (!done) {
        nanosleep(&(struct timespec){.tv_nsec = pause}, NULL);
        pause = pause < LONGEST_PAUSE_NS / 2 ? 2 * pause : LONGEST_PAUSE_NS;
        MPI_Test(request, &done, MPI_STATUS_IGNORE);
    }
}

static status check_running(void)
{
    int initialized = 0, finalized = 0;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    if (initialized && !finalized)
        return STARPULLM_OK;
    return invalid_state("MPI is %s, expected to be running", finalized ? "finalized" : "not initialized");
}

static status check_thread_level(void)
{
    static const struct {
        int level;
        const char *name;
    } levels[] = {{MPI_THREAD_SINGLE, "MPI_THREAD_SINGLE"},
                  {MPI_THREAD_FUNNELED, "MPI_THREAD_FUNNELED"},
                  {MPI_THREAD_SERIALIZED, "MPI_THREAD_SERIALIZED"}};
    int level = MPI_THREAD_SINGLE;
    MPI_Query_thread(&level);
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
        if (level == levels[i].level)
            return invalid_state("MPI: found it initialized with %s, expected MPI_THREAD_MULTIPLE: a thread of "
                                 "StarPU's calls it at any time",
                                 levels[i].name);
    return STARPULLM_OK;
}

/* All ranks return the failure of the first one that has one, unless each has its own. */
static status agree(MPI_Comm ranks, status code)
{
    char host[MPI_MAX_PROCESSOR_NAME];
    int rank, length, least[2];
    MPI_Comm_rank(ranks, &rank);
    const int mine[] = {code == STARPULLM_OK ? INT_MAX : rank, code != STARPULLM_OK};
    MPI_Request request;
    MPI_Iallreduce(mine, least, 2, MPI_INT, MPI_MIN, ranks, &request);
    ranks_wait(&request);
    if (least[0] == INT_MAX || least[1])
        return code;
    struct failure first;
    failure_init(&first);
    failure_keep(&first, code);
    MPI_Get_processor_name(host, &length);
    snprintf(first.sentence, sizeof first.sentence, "rank %d on %s: %s", rank, host, starpullm_last_error());
    MPI_Bcast(&first.code, (int)(sizeof first - offsetof(struct failure, code)), MPI_BYTE, least[0], ranks);
    code = failure_check(&first);
    failure_destroy(&first);
    return code;
}

status ranks_agree(status code)
{
    return communicator == MPI_COMM_NULL ? code : agree(communicator, code);
}

status ranks_check_same(uint64_t value, int neighbours, const char *sentence)
{
    int size;
    MPI_Request request;
    MPI_Comm_size(communicator, &size);
    MPI_Iallgather(&value, 1, MPI_UINT64_T, gathered, 1, MPI_UINT64_T, communicator, &request);
    ranks_wait(&request);
    for (int rank = 0; rank < size; rank++)
        if (gathered[rank] != gathered[rank - rank % neighbours])
            return invalid_argument("%s", sentence);
    return STARPULLM_OK;
}

/* mpirun may have bound all ranks of a socket to its cores. */
static void count(int64_t workers, int64_t threads, int core, struct ranks *ranks)
{
    MPI_Comm local, here;
    MPI_Allreduce(&workers, &ranks->workers, 1, MPI_INT64_T, MPI_SUM, communicator);
    MPI_Comm_split_type(communicator, MPI_COMM_TYPE_SHARED, ranks->rank, MPI_INFO_NULL, &local);
    MPI_Comm_size(local, &ranks->local_size);
    MPI_Comm_split(local, core, ranks->rank, &here);
    MPI_Comm_free(&local);
    MPI_Allreduce(&threads, &ranks->threads_here, 1, MPI_INT64_T, MPI_SUM, here);
    ranks->first_thread = 0; /* MPI_Exscan leaves it as it is on the first rank */
    MPI_Exscan(&threads, &ranks->first_thread, 1, MPI_INT64_T, MPI_SUM, here);
    MPI_Comm_free(&here);
}

status ranks_open(int32_t fortran_communicator, status code, int64_t workers, int64_t threads, int core,
                  struct ranks *ranks)
{
    TRY(check_running());
    MPI_Comm theirs = MPI_Comm_f2c(fortran_communicator);
    if (theirs == MPI_COMM_NULL)
        return invalid_argument("communicator: found MPI_COMM_NULL, expected one that includes this rank");
    TRY(agree(theirs, code == STARPULLM_OK ? check_thread_level() : code));
    MPI_Comm_rank(theirs, &ranks->rank);
    MPI_Comm_size(theirs, &ranks->size);
    gathered = calloc((size_t)ranks->size, sizeof *gathered);
    code = gathered ? STARPULLM_OK : out_of_memory("a table of %d ranks", ranks->size);
    if (MPI_Comm_dup(theirs, &communicator) != MPI_SUCCESS)
        code = runtime_failure("MPI could not duplicate the communicator");
    code = agree(theirs, code);
    if (code == STARPULLM_OK)
        count(workers, threads, core, ranks);
    else
        ranks_close();
    return code;
}

void ranks_close(void)
{
    if (communicator != MPI_COMM_NULL)
        MPI_Comm_free(&communicator);
    communicator = MPI_COMM_NULL;
    free(gathered);
    gathered = NULL;
}

/* StarPU-MPI sends its tags, of 64 bits, within its messages: MPI_TAG_UB doesn't limit them. */
int64_t ranks_max_tag(void)
{
    int64_t *bound = NULL;
    int known = 0;
    starpu_mpi_comm_get_attr(communicator, STARPU_MPI_TAG_UB, &bound, &known);
    return known ? *bound : 0;
}

/* A rank submits the tasks of another one only if they need a value that wasn't sent before. */
static status check_cache(void)
{
    return starpu_mpi_cache_is_enabled()
               ? STARPULLM_OK
               : invalid_argument("STARPU_MPI_CACHE: found 0, expected ranks that keep copies of each other's values");
}

status ranks_start(void)
{
    const int error = starpu_mpi_init_comm(NULL, NULL, 0, communicator);
    const status code = ranks_agree(
        error ? runtime_failure("StarPU's transfers over MPI could not be started (error %d)", error) : check_cache());
    if (code != STARPULLM_OK && !error)
        starpu_mpi_shutdown_comm(communicator);
    return code;
}

void ranks_stop(void)
{
    starpu_mpi_barrier(communicator);
    starpu_mpi_shutdown_comm(communicator);
}
