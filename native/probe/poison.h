/* Poison in memory that a task declares to overwrite: numbers that nobody expects there, so that reading them shows. It
 * stays until somebody overwrites it. Two runs with two kinds of it differ where it was read. */
#pragma once

#include <starpu.h>
#include <stdbool.h>
#include <stdint.h>

#include "content.h"
#include "settings.h"

/* Poison comes in variants, so that what a task has copied isn't taken for what it has left. That of scratch memory is
 * always data where it is found: nothing of it belongs anywhere else. */
enum { POISON_VARIANTS = 4, POISON_OF_SCRATCH = POISON_VARIANTS, ALL_VARIANTS = (1 << POISON_VARIANTS) - 1 };

/* Chooses the mode for all calls after it. */
void poison_start(enum poison_mode mode);

/* Fills a dense interface, or the values of a sparse one, with poison of a variant, and returns whether anything else
 * than zeros was there. Large numbers and zeros come in turn, the first by the number of the task. `is_other`: with the
 * kind that isn't this run's. Nothing is done for other interfaces. */
bool poison_put(starpu_data_handle_t handle, void *interface, uint64_t task, unsigned variant, bool is_other);

/* Counts the bytes of a handle that are poison of these variants, a bit each, and returns those that are there. */
unsigned poison_find(starpu_data_handle_t handle, void *interface, unsigned variants, uint64_t *bytes);

/* What makes equal what two runs with different poison have left as it was; NULL: this run has none. Variants with a
 * bit in `data` count as data, in the next hash that this thread computes. */
content_translate *poison_translation(unsigned data);

/* Fills what nobody has written yet with zeros, as the probe has malloc do, so that it is the same in all runs. */
void poison_clear(starpu_data_handle_t handle, void *interface);
