/* Records contents themselves, of tasks that the settings name: to tell which element differs, and by how much. */
#pragma once

#include <starpu.h>
#include <stdbool.h>

#include "log_format.h"
#include "settings.h"

/* Whether contents of this task's accesses are to be recorded; is asked once for each of the program's own tasks, in
 * the order of submission. Calls are serialised. */
bool keep_task(const struct settings *settings, struct starpu_task *task, uint64_t own);

/* Whether contents that the application unregisters are to be recorded. */
bool keep_last(const struct settings *settings);

/* Whether sequential consistency is off for an access. */
bool has_no_order(struct starpu_task *task, unsigned access);

/* Reserves room for contents with this hash and returns true if they aren't recorded yet and the limit allows it. The
 * caller serialises calls, and writes them. */
bool keep_reserve(struct probe_contents *record);
