/* What the hooks of the scheduling policy record of each task. */
#pragma once

#include <starpu.h>
#include <stdbool.h>
#include <stdint.h>

#include "settings.h"

/* Opens the log on the first call; StarPU may be started several times in a process. Settings stay those of the first
 * call. */
const struct settings *recorder_start(void);

/* Gives the task its number, by order of submission, and records it with its accesses. */
void recorder_submitted(struct starpu_task *task);
void recorder_ready(struct starpu_task *task);

/* Before and after the task's function, on its worker: hashes of contents as the settings ask for them. */
void recorder_started(struct starpu_task *task);
void recorder_ended(struct starpu_task *task);

/* When a task was last submitted, by now_ns(). */
uint64_t last_submission_ns(void);
