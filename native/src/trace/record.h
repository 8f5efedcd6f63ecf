/* The recorder: this rank's tasks with their accesses, in submission order, and when and where it ran. The
 * application's thread appends; meanwhile each worker completes the record of the task that it runs. */
#pragma once

#include "status.h"

struct recorder;

/* The most accesses of one operation: attention_backward's and layernorm's. */
enum { TASK_MAX_ACCESSES = 6 };

status recorder_create(struct recorder **recorder);
void recorder_destroy(struct recorder *recorder);

/* A task's record, and what the task declared, at addresses that stay valid until recorder_clear(). */
struct record {
    struct starpullm_trace_task *task; /* NULL: not traced */
    const struct starpullm_trace_access *accesses;
};

/* Appends a task, whose id, access and submit fields are set here. */
status recorder_append(struct recorder *recorder, const struct starpullm_trace_task *task,
                       const struct starpullm_trace_access *accesses, size_t num_accesses, struct record *record);

/* Counts a task that another rank records: ids are those of all ranks' tasks. NULL is allowed. */
void recorder_skip(struct recorder *recorder);

/* Copies all tasks and accesses, which the caller frees, even on failure; no recorded task may be running. */
status recorder_copy(const struct recorder *recorder, struct starpullm_trace *trace);
void recorder_clear(struct recorder *recorder);
