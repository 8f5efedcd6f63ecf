/* Holding tasks back: they all depend on one task that has been submitted but doesn't end. While they wait, their
 * successors are listed. */
#include "codelets/hold.h"

#include <stdlib.h>

#include "codelets/task.h"
#include "runtime/runtime.h"

struct hold {
    struct starpu_task *gate;   /* the task that all others depend on */
    struct starpu_task **tasks; /* those held, and behind them StarPU's own that hold_edges() finds */
    size_t count;
    struct starpu_task *refused; /* that StarPU did not take after it was made to depend on the gate; mostly NULL */
};

/* Gives a list room for one more entry, by doubling it when its length is a power of two; NULL if there is no memory,
 * and the list stays as it was. */
static void *grow(void *entries, size_t count, size_t entry_size)
{
    if (count & (count - 1))
        return entries;
    const size_t larger = count ? 2 * count : 1;
    void *moved = realloc(entries, larger * entry_size);
    if (!moved)
        (void)out_of_memory("a list of %zu tasks or edges", larger);
    return moved;
}

static status append_task(struct hold *hold, struct starpu_task *task)
{
    struct starpu_task **tasks = grow(hold->tasks, hold->count, sizeof *tasks);
    if (!tasks)
        return STARPULLM_OUT_OF_MEMORY;
    hold->tasks = tasks;
    hold->tasks[hold->count++] = task;
    return STARPULLM_OK;
}

status hold_create(struct hold **created)
{
    struct hold *hold = calloc(1, sizeof *hold);
    if (!hold)
        return out_of_memory("a hold of tasks");
    struct starpu_task *gate = starpu_task_create();
    gate->name = "hold";
    gate->sched_ctx = runtime_layout()->context;
    gate->detach = 0; /* so that tasks may be made to depend on it while it runs */
    gate->destroy = 0;
    starpu_task_end_dep_add(gate, 1);
    hold->gate = gate;
    const int error = starpu_task_submit(gate);
    if (error) {
        starpu_task_destroy(gate);
        free(hold);
        return runtime_failure("StarPU refused the task that holds others back (error %d)", error);
    }
    *created = hold;
    return STARPULLM_OK;
}

status hold_task(struct hold *hold, struct starpu_task *task)
{
    TRY(append_task(hold, task));
    starpu_task_declare_deps_array(task, 1, &hold->gate);
    return STARPULLM_OK;
}

void hold_keep_refused(struct hold *hold, struct starpu_task *task)
{
    hold->count--; /* it is the last one */
    hold->refused = task;
}

status check_not_held(const struct hold *hold)
{
    return hold ? invalid_state("the session holds its tasks, expected a release first") : STARPULLM_OK;
}

void hold_release(struct hold *hold)
{
    if (!hold)
        return;
    starpu_task_end_dep_release(hold->gate);
    if (starpu_task_wait(hold->gate) == 0)
        starpu_task_destroy(hold->gate);
    if (hold->refused) /* the gate's list of successors had it until the gate ended */
        starpu_task_destroy(hold->refused);
    free(hold->tasks);
    free(hold);
}

/* ---- The edges ---- */

struct edge_list {
    struct hold *hold;
    size_t held; /* the number of held tasks */
    struct starpu_task **successors;
    unsigned max_successors;
    struct hold_edge *edges;
    size_t count;
};

/* The session's tasks have numbers in the trace; StarPU's own get -1, -2 and so on when they are found. */
static status id_of(struct edge_list *list, struct starpu_task *task, int64_t *id)
{
    if (task->callback_func == task_done) {
        *id = ((const struct task *)task->callback_arg)->record.task->id;
        return STARPULLM_OK;
    }
    size_t i = list->held;
    while (i < list->hold->count && list->hold->tasks[i] != task)
        i++;
    *id = -1 - (int64_t)(i - list->held);
    return i < list->hold->count ? STARPULLM_OK : append_task(list->hold, task);
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
            return out_of_memory("a list of %u tasks", larger);
        list->successors = moved;
        list->max_successors = larger;
    }
    return STARPULLM_OK;
}

static status append_edges_of(struct edge_list *list, struct starpu_task *task)
{
    unsigned count;
    struct hold_edge edge;
    TRY(id_of(list, task, &edge.before));
    TRY(list_successors(list, task, &count));
    for (unsigned i = 0; i < count; i++) {
        TRY(id_of(list, list->successors[i], &edge.after));
        struct hold_edge *edges = grow(list->edges, list->count, sizeof *edges);
        if (!edges)
            return STARPULLM_OUT_OF_MEMORY;
        list->edges = edges;
        list->edges[list->count++] = edge;
    }
    return STARPULLM_OK;
}

status hold_edges(struct hold *hold, struct hold_edge **edges, size_t *count)
{
    struct edge_list list = {.hold = hold, .held = hold->count};
    status code = STARPULLM_OK;
    for (size_t i = 0; i < hold->count && code == STARPULLM_OK; i++) /* more are found meanwhile */
        code = append_edges_of(&list, hold->tasks[i]);
    free(list.successors);
    if (code != STARPULLM_OK) {
        free(list.edges);
        return code;
    }
    *edges = list.edges;
    *count = list.count;
    return STARPULLM_OK;
}
