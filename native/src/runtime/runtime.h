/* StarPU, started and stopped: one runtime in a process, with its partition, its scheduler and its ranks. */
#pragma once

#include <stdbool.h>

#include "kernels/team.h"
#include "status.h"

/* STARPULLM_INVALID_STATE if the runtime isn't the one that is running. */
status runtime_check_running(const struct starpullm_runtime *runtime);

/* A runtime can't be destroyed while sessions are open on it. Every rank enters its sessions in the same order. The tag
 * of a transfer of a handle is *first_tag plus the handle's id; no other session has it. */
status runtime_enter_session(struct starpullm_runtime *runtime, int64_t *first_tag);
void runtime_leave_session(struct starpullm_runtime *runtime);

/* The running runtime's partition and ranks; 1x1 and one rank while none is running. */
struct runtime_layout {
    int workers, threads_per_worker, devices;
    int64_t device_memory; /* bytes, the least of a device */
    int64_t all_workers;   /* of all ranks */
    int rank, ranks;
    int local_ranks;  /* that share this machine */
    unsigned context; /* the scheduling context that tasks are submitted to */
    enum starpullm_arithmetic arithmetic;
    int64_t memory_limit;                     /* bytes of data, the others are on a disk; 0: all are in memory */
    enum starpullm_offload_plan offload_plan; /* with a limit */
};
const struct runtime_layout *runtime_layout(void);

/* The calling worker's number: those of the partition from 0 on, then the devices. */
int runtime_worker(void);

/* ---- team.c: one function in all threads of a worker ---- */

/* Calls function(argument, team) once in each of `threads` threads of the calling worker, in the floating-point
 * environment of numerics.md ("Rules"), and waits for all of them. Returns the number of threads, which is also the
 * size of the teams: it is less than `threads` if OpenMP is limited to fewer. */
int team_run(int threads, void (*function)(void *argument, struct team team), void *argument);

/* Whether OpenMP binds threads itself (OMP_PROC_BIND). */
int team_binds_threads(void);
