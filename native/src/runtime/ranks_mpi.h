/* The MPI communicator of the ranks, for the files that call MPI. */
#pragma once

#include <starpu_mpi.h>

#include "runtime/ranks.h"

/* The runtime's own duplicate; MPI_COMM_NULL if the runtime is this process alone. */
MPI_Comm ranks_communicator(void);

/* Waits for a request, asleep: a rank that waits inside MPI keeps a core busy, which other ranks and StarPU-MPI's
 * thread need where there are more of them than cores. */
void ranks_wait(MPI_Request *request);
