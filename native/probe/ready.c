/* A binary heap. */
#include "ready.h"

#include <stdlib.h>

static void sift_up(struct ready *ready, size_t i, struct ready_task entry)
{
    while (i > 0 && ready->heap[(i - 1) / 2].key > entry.key) {
        ready->heap[i] = ready->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    ready->heap[i] = entry;
}

static void sift_down(struct ready *ready, size_t i, struct ready_task entry)
{
    for (size_t child; (child = 2 * i + 1) < ready->count; i = child) {
        if (child + 1 < ready->count && ready->heap[child + 1].key < ready->heap[child].key)
            child++;
        if (ready->heap[child].key >= entry.key)
            break;
        ready->heap[i] = ready->heap[child];
    }
    ready->heap[i] = entry;
}

bool ready_push(struct ready *ready, uint64_t key, struct starpu_task *task)
{
    if (ready->count == ready->room) {
        const size_t room = ready->room == 0 ? 64 : 2 * ready->room;
        struct ready_task *heap = realloc(ready->heap, room * sizeof *heap);
        if (!heap)
            return false;
        ready->heap = heap;
        ready->room = room;
    }
    sift_up(ready, ready->count++, (struct ready_task){key, task});
    return true;
}

static void remove_at(struct ready *ready, size_t i)
{
    struct ready_task last = ready->heap[--ready->count];
    if (i == ready->count)
        return;
    if (i > 0 && ready->heap[(i - 1) / 2].key > last.key)
        sift_up(ready, i, last);
    else
        sift_down(ready, i, last);
}

struct starpu_task *ready_pop(struct ready *ready, bool (*accept)(struct starpu_task *, const void *),
                              const void *state)
{
    size_t best = SIZE_MAX;
    if (ready->count > 0 && accept(ready->heap[0].task, state))
        best = 0;
    else
        for (size_t i = 1; i < ready->count; i++)
            if ((best == SIZE_MAX || ready->heap[i].key < ready->heap[best].key) && accept(ready->heap[i].task, state))
                best = i;
    if (best == SIZE_MAX)
        return NULL;
    struct starpu_task *task = ready->heap[best].task;
    remove_at(ready, best);
    return task;
}
