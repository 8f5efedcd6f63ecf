/* Poison in memory that a task declares to overwrite: numbers that nobody expects there, so that reading them shows. */
#pragma once

#include <starpu.h>
#include <stdbool.h>
#include <stdint.h>

#include "content.h"
#include "settings.h"

/* Chooses the mode for all calls after it. */
void poison_start(enum poison_mode mode);

/* Fills scratch memory likewise; what a task leaves there is nobody's. */
void poison_scratch(starpu_data_handle_t handle, void *interface);

/* Before the task's function: fills a dense interface, or the values of a sparse one, with poison. Nothing is done
 * for other interfaces, and where there is no memory for what POISON_RESTORED has to keep. */
void poison_put(const struct starpu_task *task, unsigned access, starpu_data_handle_t handle, void *interface);

/* After the task's function: returns the bytes that it has left as they were. With POISON_RESTORED they get the
 * contents back that they had before poison_put, so that all the rest of memory is what it would be without poison; and
 * PROBE_WAS_FILLED is added if these aren't all zeros. */
uint64_t poison_take(const struct starpu_task *task, unsigned access, starpu_data_handle_t handle, void *interface);

/* The bytes of a handle that are poison which has stayed. */
uint64_t poison_count(starpu_data_handle_t handle, void *interface);

/* What makes poison that stays the poison of every such run, so that two runs with different poison give equal hashes;
 * NULL: this run's needs no translation. */
content_translate *poison_translation(void);

/* Fills what nobody has written yet with zeros, as the probe has malloc do, so that it is the same in all runs. */
void poison_clear(starpu_data_handle_t handle, void *interface);
