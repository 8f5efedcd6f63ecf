/* Running one function in all threads of a worker. */
#pragma once

#include "kernels/team.h"

/* Calls function(argument, team) once in each of `threads` threads of the calling worker, in the floating-point
 * environment of numerics.md ("Rules"), and waits for all of them. Returns the number of threads, which is also the
 * size of the teams: it is less than `threads` if OpenMP is limited to fewer. */
int team_run(int threads, void (*function)(void *argument, struct team team), void *argument);

/* Whether OpenMP binds threads itself (OMP_PROC_BIND). */
int team_binds_threads(void);
