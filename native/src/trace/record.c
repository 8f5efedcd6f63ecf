/* The recorder's storage: blocks that never move, so that a worker can complete a record while others are appended. */
#include "trace/record.h"

#include <stdlib.h>
#include <string.h>

#include "clock.h"

enum { BLOCK_TASKS = 1024 };

struct block {
    struct block *next;
    size_t tasks, accesses;
    struct starpullm_trace_task task[BLOCK_TASKS];
    struct starpullm_trace_access access[BLOCK_TASKS * TASK_MAX_ACCESSES];
};

struct recorder {
    struct block *first, *last;
    size_t tasks, accesses;
    int64_t next_id;
};

status recorder_create(struct recorder **recorder)
{
    *recorder = calloc(1, sizeof **recorder);
    return *recorder ? STARPULLM_OK : out_of_memory("the trace's recorder");
}

void recorder_destroy(struct recorder *recorder)
{
    if (!recorder)
        return;
    recorder_clear(recorder);
    free(recorder);
}

status recorder_append(struct recorder *recorder, const struct starpullm_trace_task *task,
                       const struct starpullm_trace_access *accesses, size_t num_accesses, struct record *record)
{
    struct block *block = recorder->last;
    if (!block || block->tasks == BLOCK_TASKS) {
        block = malloc(sizeof *block);
        if (!block)
            return out_of_memory("the trace of more than %zu tasks", recorder->tasks);
        block->next = NULL;
        block->tasks = block->accesses = 0;
        *(recorder->last ? &recorder->last->next : &recorder->first) = block;
        recorder->last = block;
    }
    struct starpullm_trace_task *entry = &block->task[block->tasks++];
    *entry = *task;
    entry->id = recorder->next_id++;
    recorder->tasks++;
    entry->first_access = (int64_t)recorder->accesses;
    entry->num_accesses = (int32_t)num_accesses;
    entry->submit_ns = (int64_t)now_ns();
    *record = (struct record){entry, &block->access[block->accesses]};
    memcpy(&block->access[block->accesses], accesses, num_accesses * sizeof *accesses);
    block->accesses += num_accesses;
    recorder->accesses += num_accesses;
    return STARPULLM_OK;
}

void recorder_skip(struct recorder *recorder)
{
    if (recorder)
        recorder->next_id++;
}

status recorder_copy(const struct recorder *recorder, struct starpullm_trace *trace)
{
    trace->num_tasks = recorder->tasks;
    trace->num_accesses = recorder->accesses;
    trace->tasks = calloc(trace->num_tasks, sizeof *trace->tasks);
    trace->accesses = calloc(trace->num_accesses, sizeof *trace->accesses);
    if (!trace->tasks || !trace->accesses)
        return out_of_memory("a trace of %zu tasks and %zu accesses", trace->num_tasks, trace->num_accesses);
    struct starpullm_trace_task *tasks = trace->tasks;
    struct starpullm_trace_access *accesses = trace->accesses;
    for (const struct block *block = recorder->first; block; block = block->next) {
        memcpy(tasks, block->task, block->tasks * sizeof *tasks);
        memcpy(accesses, block->access, block->accesses * sizeof *accesses);
        tasks += block->tasks;
        accesses += block->accesses;
    }
    return STARPULLM_OK;
}

void recorder_clear(struct recorder *recorder)
{
    for (struct block *block = recorder->first, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    *recorder = (struct recorder){0};
}
