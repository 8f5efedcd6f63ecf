/* The processes (ranks) that run one task graph together. They are opened before StarPU is started; their transfers are
 * started after it. */
#pragma once

#include <starpu_mpi.h>

#include "status.h"

struct ranks {
    int rank, size;
    int64_t workers; /* of all of them */
    int local_size;  /* on the same machine */
    /* Of the ranks on this machine that may run on the same cores: how many threads all of them have, and those before
     * this one. */
    int64_t threads_here, first_thread;
};

/* Collective. communicator: a Fortran handle, of which a duplicate is used. code: how matters stand on this rank; a
 * failure on one rank is one on all of them. workers, threads: of this rank. core: the first one that it may run on;
 * ranks that have the same one are taken to share all their cores. MPI must be initialized with MPI_THREAD_MULTIPLE. */
status ranks_open(int32_t communicator, status code, int64_t workers, int64_t threads, int core, struct ranks *ranks);
void ranks_close(void);

/* Collective: STARPULLM_OK if `code` is so on every rank. Otherwise all get the failure of the first rank that has one,
 * with its number and host, unless each has its own. Without open ranks, `code`. */
status ranks_agree(status code);

/* Collective: refuses with this sentence, on all ranks, unless each so many neighbours have the same value. */
status ranks_check_same(uint64_t value, int neighbours, const char *sentence);

/* The largest tag of a transfer. */
int64_t ranks_max_tag(void);

/* Collective: starts StarPU's transfers between ranks, on all of them or on none. StarPU must be running. */
status ranks_start(void);
/* Collective: waits for the other ranks. */
void ranks_stop(void);

/* ---- For the files that call MPI ---- */

/* The runtime's own duplicate; MPI_COMM_NULL if the runtime is this process alone. */
MPI_Comm ranks_communicator(void);

/* Waits for a request, asleep: a rank that waits inside MPI keeps a core busy, which other ranks and StarPU-MPI's
 * thread need where there are more of them than cores. */
void ranks_wait(MPI_Request *request);
