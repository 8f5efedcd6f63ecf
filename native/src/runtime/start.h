/* What StarPU needs around its start: settings that it takes from the environment alone, and no other process that
 * starts it with the same home folder. */
#pragma once

#include "status.h"

/* Adds settings ("NAME=value") to the environment until environment_restore(): those that the runtime's options imply,
 * and those that a variable of the user's replaces. StarPU prefers STARPU_SCHED to the scheduler that it is told: it
 * becomes `scheduler`, unless the user loads a scheduler of his own (STARPU_SCHED_LIB), as `starpullm probe` does.
 * Lists end with NULL. setenv() isn't used: it may move the array of the environment while another thread reads it. */
status environment_extend(const char *scheduler, char *const *implied, char *const *defaults);
void environment_restore(void);

/* starpu_init(), after other processes of this machine that start StarPU with the same home folder: StarPU 1.4 keeps a
 * file of the machine's bus speeds in STARPU_HOME, XDG_CACHE_HOME or HOME, which the first process writes, and aborts a
 * process that reads it before it is complete. After ten seconds, or if the folder can't be locked, it starts all the
 * same. */
struct starpu_conf;
int start_in_turn(struct starpu_conf *conf);
