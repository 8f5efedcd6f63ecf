/* The processes (ranks) that run one task graph together. They are opened before StarPU is started; their transfers are
 * started after it. */
#ifndef STARPULLM_RANKS_H
#define STARPULLM_RANKS_H

#include "status.h"

struct ranks {
    int rank, size;
    int local_rank, local_size; /* among those on the same machine */
};

/* 1 if this build has ranks. */
int ranks_supported(void);

/* Collective. communicator: a Fortran handle, of which a duplicate is used. MPI must be initialized for several
 * threads. */
status ranks_open(int32_t communicator, struct ranks *ranks);
void ranks_close(void);

/* Starts StarPU's transfers between ranks. StarPU must be running. */
status ranks_start(void);
/* Collective: waits for the other ranks. */
void ranks_stop(void);

#endif
