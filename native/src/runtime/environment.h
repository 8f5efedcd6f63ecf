/* Settings that StarPU takes from the environment alone. setenv() isn't used: it may move the array of the environment
 * while another thread reads it. */
#pragma once

#include <stddef.h>

#include "status.h"

/* Adds settings ("NAME=value") to the environment until environment_restore(). Variables that are set already stay as
 * they are, except STARPU_SCHED, which StarPU prefers to the scheduler that it is told: it becomes `scheduler`, unless
 * the user loads a scheduler of his own (STARPU_SCHED_LIB), as `starpullm probe` does. */
status environment_extend(const char *scheduler, char *const *settings, size_t count);
void environment_restore(void);
