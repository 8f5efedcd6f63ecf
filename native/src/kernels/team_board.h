/* How the threads of a team take work from each other and wait for each other, during one call of a kernel. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>

#include "kernels/team.h"

/* What the threads of a team share during one call of a kernel; all 0 before it. Thread 0 doesn't end before the call
 * has ended for all threads. */
struct team_board {
    _Alignas(64) atomic_size_t taken; /* units of work, of all phases */
    _Alignas(64) atomic_size_t done;
    _Atomic(float *) memory; /* thread 0's, for all (kernels/simd/scratch.h) */
};

/* A phase of a kernel: units of work from 0 on, for each of which `work` is called by one thread, with some in a row.
 * The threads of a team with a board take units from each other, several at first and at last one by one, so that a
 * slow core has fewer. *before counts the units of the phases so far; it is 0 before the first. */
typedef void team_work(void *argument, struct share units);
void team_phase(struct team team, size_t *before, size_t units, team_work *work, void *argument);

/* Waits until all units so far are done. Without a board there is nothing to wait for. */
void team_wait(struct team team, size_t before);

/* Those that do together what all threads need: without a board each thread does it alone. */
static inline struct team team_together(struct team team)
{
    return team.board ? team : team_of_one;
}
