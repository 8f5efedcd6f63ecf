/* Writes what is known of a process at a fatal signal: which one, in which task, and the stack. */
#pragma once

#include <stdbool.h>

#include "log_format.h"

/* Sets handlers for fatal signals, which then go on to those that were there before. `file` is where they write. */
void crash_watch(struct probe_header *header, int file);

/* From now on nothing is written; the log is closed, or belongs to another process. */
void crash_unwatch(void);

/* Calls a function of the program's that the program itself might never call. False if it returns false, or if it calls
 * abort, which then ends the call and not the process. */
bool crash_survive(bool (*function)(void *), void *state);

/* Which task the calling thread runs; UINT64_MAX: none. */
void crash_task(uint64_t number);
