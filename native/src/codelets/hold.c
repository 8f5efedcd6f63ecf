/* Holding tasks back behind one that isn't submitted, and asking for their successors. Called by session.c and
 * codelets/task.c. */
#include "codelets/hold.h"

#include <starpu.h>
#include <stdlib.h>

#include "runtime/runtime.h"

struct named {
    struct starpu_task *task;
    int64_t id;
};

struct list {
    struct named *entries;
    size_t count, capacity;
};

struct hold {
    struct starpu_task *gate; /* all others wait for it */
    struct list held;
};

static status append(struct list *list, struct starpu_task *task, int64_t id)
{
    if (list->count == list->capacity) {
        const size_t capacity = list->capacity ? 2 * list->capacity : 1024;
        struct named *entries = realloc(list->entries, capacity * sizeof *entries);
        if (!entries)
            return fail(STARPULLM_OUT_OF_MEMORY, "a list of %zu tasks", capacity);
        list->entries = entries;
        list->capacity = capacity;
    }
    list->entries[list->count++] = (struct named){task, id};
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
    TRY(append(&hold->held, task, id));
    starpu_task_declare_deps_array(task, 1, &hold->gate);
    return STARPULLM_OK;
}

/* ---- Asking ---- */

static int compare_tasks(const void *left, const void *right)
{
    const struct named *a = left, *b = right;
    return ((uintptr_t)a->task > (uintptr_t)b->task) - ((uintptr_t)a->task < (uintptr_t)b->task);
}

struct question {
    struct list known;          /* the held tasks, sorted by address */
    struct list own;            /* tasks of StarPU's own, in the order in which they were found */
    struct starpu_task **after; /* of one task */
    unsigned room;
    struct hold_edge *edges;
    size_t count, capacity;
};

static status id_of(struct question *question, struct starpu_task *task, int64_t *id)
{
    const struct named key = {task, 0};
    const struct named *found =
        bsearch(&key, question->known.entries, question->known.count, sizeof key, compare_tasks);
    for (size_t i = 0; !found && i < question->own.count; i++)
        if (question->own.entries[i].task == task)
            found = &question->own.entries[i];
    if (found) {
        *id = found->id;
        return STARPULLM_OK;
    }
    *id = -1 - (int64_t)question->own.count;
    return append(&question->own, task, *id);
}

static status append_edge(struct question *question, struct hold_edge edge)
{
    if (question->count == question->capacity) {
        const size_t capacity = question->capacity ? 2 * question->capacity : 4096;
        struct hold_edge *edges = realloc(question->edges, capacity * sizeof *edges);
        if (!edges)
            return fail(STARPULLM_OUT_OF_MEMORY, "a list of %zu edges", capacity);
        question->edges = edges;
        question->capacity = capacity;
    }
    question->edges[question->count++] = edge;
    return STARPULLM_OK;
}

/* The successors of a task are put into `after`, which grows until they leave room: StarPU 1.4.10 says of an array that
 * is too small, or NULL, that there are no more than it holds. */
static status list_successors(struct question *question, struct starpu_task *task, unsigned *count)
{
    for (;;) {
        *count = (unsigned)starpu_task_get_task_succs(task, question->room, question->after);
        if (*count < question->room)
            return STARPULLM_OK;
        const unsigned room = question->room ? 2 * question->room : 64;
        struct starpu_task **after = realloc(question->after, room * sizeof(struct starpu_task *));
        if (!after)
            return fail(STARPULLM_OUT_OF_MEMORY, "a list of %u tasks", room);
        question->after = after;
        question->room = room;
    }
}

static status ask(struct question *question, struct named before)
{
    unsigned count;
    TRY(list_successors(question, before.task, &count));
    for (unsigned i = 0; i < count; i++) {
        struct hold_edge edge = {.before = before.id};
        TRY(id_of(question, question->after[i], &edge.after));
        TRY(append_edge(question, edge));
    }
    return STARPULLM_OK;
}

static status ask_all(struct question *question, const struct hold *hold)
{
    for (size_t i = 0; i < hold->held.count; i++)
        TRY(append(&question->known, hold->held.entries[i].task, hold->held.entries[i].id));
    qsort(question->known.entries, question->known.count, sizeof *question->known.entries, compare_tasks);
    for (size_t i = 0; i < question->known.count; i++)
        TRY(ask(question, question->known.entries[i]));
    for (size_t i = 0; i < question->own.count; i++) /* grows */
        TRY(ask(question, question->own.entries[i]));
    return STARPULLM_OK;
}

status hold_edges(const struct hold *hold, struct hold_edge **edges, size_t *count)
{
    struct question question = {0};
    status code = hold->held.count ? ask_all(&question, hold) : STARPULLM_OK;
    free(question.known.entries);
    free(question.own.entries);
    free(question.after);
    if (code != STARPULLM_OK) {
        free(question.edges);
        return code;
    }
    *edges = question.edges;
    *count = question.count;
    return STARPULLM_OK;
}

status hold_let_go(struct hold *hold)
{
    if (!hold)
        return STARPULLM_OK;
    const int error = starpu_task_submit(hold->gate);
    free(hold->held.entries);
    free(hold);
    return error ? fail(STARPULLM_RUNTIME_FAILURE, "StarPU refused to let held tasks go (error %d)", error)
                 : STARPULLM_OK;
}
