/* Holding tasks back: they all depend on one task that isn't submitted. While they wait, their successors are listed.
 */
#include "codelets/hold.h"

#include <starpu.h>
#include <stdlib.h>

#include "runtime/runtime.h"

struct held_task {
    struct starpu_task *task;
    int64_t id;
};

struct task_list {
    struct held_task *entries;
    size_t count, capacity;
};

struct hold {
    struct starpu_task *gate; /* the task that all others depend on */
    struct task_list tasks;
};

/* Gives the list room for one more entry; NULL if there is no memory, and the list stays as it was. */
static void *grow(void *entries, size_t count, size_t *capacity, size_t entry_size)
{
    if (count < *capacity)
        return entries;
    const size_t larger = *capacity ? 2 * *capacity : 1024;
    void *moved = realloc(entries, larger * entry_size);
    if (moved)
        *capacity = larger;
    else
        (void)fail(STARPULLM_OUT_OF_MEMORY, "a list of %zu tasks or edges", larger);
    return moved;
}

static status append(struct task_list *list, struct starpu_task *task, int64_t id)
{
    struct held_task *entries = grow(list->entries, list->count, &list->capacity, sizeof *entries);
    if (!entries)
        return STARPULLM_OUT_OF_MEMORY;
    list->entries = entries;
    list->entries[list->count++] = (struct held_task){task, id};
    return STARPULLM_OK;
}

status hold_create(struct hold **created)
{
    struct hold *hold = calloc(1, sizeof *hold);
    if (!hold)
        return fail(STARPULLM_OUT_OF_MEMORY, "a hold of tasks");
    hold->gate = starpu_task_create();
    hold->gate->name = "hold";
    hold->gate->sched_ctx = runtime_layout()->context;
    *created = hold;
    return STARPULLM_OK;
}

status hold_task(struct hold *hold, struct starpu_task *task, int64_t id)
{
    TRY(append(&hold->tasks, task, id));
    starpu_task_declare_deps_array(task, 1, &hold->gate);
    return STARPULLM_OK;
}

status hold_release(struct hold *hold)
{
    if (!hold)
        return STARPULLM_OK;
    const int error = starpu_task_submit(hold->gate);
    free(hold->tasks.entries);
    free(hold);
    return error ? fail(STARPULLM_RUNTIME_FAILURE, "StarPU refused to release the held tasks (error %d)", error)
                 : STARPULLM_OK;
}

/* ---- The edges ---- */

struct edge_list {
    const struct task_list *held; /* sorted by address */
    struct task_list internal;    /* StarPU's own tasks, in the order in which they were found */
    struct starpu_task **successors;
    unsigned max_successors;
    struct hold_edge *edges;
    size_t count, capacity;
};

static int compare_tasks(const void *left, const void *right)
{
    const struct held_task *a = left, *b = right;
    return ((uintptr_t)a->task > (uintptr_t)b->task) - ((uintptr_t)a->task < (uintptr_t)b->task);
}

static status id_of(struct edge_list *list, struct starpu_task *task, int64_t *id)
{
    const struct held_task key = {task, 0};
    const struct held_task *found = bsearch(&key, list->held->entries, list->held->count, sizeof key, compare_tasks);
    for (size_t i = 0; !found && i < list->internal.count; i++)
        if (list->internal.entries[i].task == task)
            found = &list->internal.entries[i];
    if (found) {
        *id = found->id;
        return STARPULLM_OK;
    }
    *id = -1 - (int64_t)list->internal.count;
    return append(&list->internal, task, *id);
}

/* The array grows until it isn't full: StarPU 1.4.10 never gives a number larger than the array's size, so a full array
 * may be incomplete. */
static status list_successors(struct edge_list *list, struct starpu_task *task, unsigned *count)
{
    while ((*count = (unsigned)starpu_task_get_task_succs(task, list->max_successors, list->successors)) >=
           list->max_successors) {
        const unsigned larger = list->max_successors ? 2 * list->max_successors : 64;
        struct starpu_task **moved = realloc(list->successors, larger * sizeof(struct starpu_task *));
        if (!moved)
            return fail(STARPULLM_OUT_OF_MEMORY, "a list of %u tasks", larger);
        list->successors = moved;
        list->max_successors = larger;
    }
    return STARPULLM_OK;
}

static status append_edges_of(struct edge_list *list, struct held_task before)
{
    unsigned count;
    TRY(list_successors(list, before.task, &count));
    for (unsigned i = 0; i < count; i++) {
        int64_t after;
        TRY(id_of(list, list->successors[i], &after));
        struct hold_edge *edges = grow(list->edges, list->count, &list->capacity, sizeof *edges);
        if (!edges)
            return STARPULLM_OUT_OF_MEMORY;
        list->edges = edges;
        list->edges[list->count++] = (struct hold_edge){before.id, after};
    }
    return STARPULLM_OK;
}

static status append_all_edges(struct edge_list *list)
{
    for (size_t i = 0; i < list->held->count; i++)
        TRY(append_edges_of(list, list->held->entries[i]));
    for (size_t i = 0; i < list->internal.count; i++) /* more are found meanwhile */
        TRY(append_edges_of(list, list->internal.entries[i]));
    return STARPULLM_OK;
}

status hold_edges(struct hold *hold, struct hold_edge **edges, size_t *count)
{
    struct edge_list list = {.held = &hold->tasks};
    if (hold->tasks.count)
        qsort(hold->tasks.entries, hold->tasks.count, sizeof *hold->tasks.entries, compare_tasks);
    status code = append_all_edges(&list);
    free(list.internal.entries);
    free(list.successors);
    if (code != STARPULLM_OK) {
        free(list.edges);
        return code;
    }
    *edges = list.edges;
    *count = list.count;
    return STARPULLM_OK;
}
