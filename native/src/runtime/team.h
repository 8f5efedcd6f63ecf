/* The threads of one worker, running one function together. Called by codelets/ for every task. */
#ifndef STARPULLM_RUNTIME_TEAM_H
#define STARPULLM_RUNTIME_TEAM_H

#include "kernels/team.h"

/* Calls function(argument, team) once in each of `threads` threads of the calling worker, under the contract's
 * floating-point environment (numerics.md, Rules), and waits for all. Returns how many threads there were: fewer than
 * asked for if OpenMP was told to give fewer; the function has then been called with teams of that size. */
int team_run(int threads, void (*function)(void *argument, struct team team), void *argument);

/* Whether OpenMP was told to bind threads itself (OMP_PROC_BIND). */
int team_binds_threads(void);

#endif
