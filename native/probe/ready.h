/* The tasks that are ready, ordered by a key; the smallest key is the next. */
#pragma once

#include <starpu.h>
#include <stdbool.h>
#include <stdint.h>

struct ready_task {
    uint64_t key;
    struct starpu_task *task;
};

struct ready {
    struct ready_task *heap;
    size_t count, room;
};

/* False if there is no memory. */
bool ready_push(struct ready *ready, uint64_t key, struct starpu_task *task);

/* The task with the smallest key of those that `accept` takes, which is removed; NULL if there is none. */
struct starpu_task *ready_pop(struct ready *ready, bool (*accept)(struct starpu_task *, const void *),
                              const void *state);
