/* Poison that stays is told from data by as many bytes as fit: eight where elements allow it, else four. */
#include "poison.h"

#include <stdlib.h>
#include <string.h>

#include "log_format.h"

enum { WORD = 4 };

/* Twice the same word: a signalling NaN in binary64, a quiet one in binary32; and a large number in both. The lowest
 * byte of poison that is restored says which access it is for, so that poison that a task has copied isn't taken for
 * poison that it has left in place. */
static const uint32_t nan_word = 0x7ff41eaf, large_word = 0x4b1eaf5e;

static enum poison_mode mode;

/* Contents from before the task that this thread runs. */
struct kept {
    struct kept *next;
    const struct starpu_task *task;
    unsigned access;
    char contents[];
};
static _Thread_local struct kept *all_kept;

struct state {
    uint32_t word;
    size_t group;
    char *kept;      /* of the next run; NULL: nothing is kept */
    bool was_filled; /* some of what was restored isn't zero */
    uint64_t found;
};

void poison_start(enum poison_mode chosen)
{
    mode = chosen;
}

static size_t group_of(size_t element_bytes)
{
    return element_bytes % (2 * WORD) == 0 ? 2 * WORD : element_bytes % WORD == 0 ? WORD : 0;
}

static struct state state_of(size_t element_bytes, unsigned access)
{
    if (mode == POISON_RESTORED)
        return (struct state){.word = nan_word ^ (access & 0xff), .group = WORD};
    return (struct state){.word = mode == POISON_LARGE ? large_word : nan_word, .group = group_of(element_bytes)};
}

static bool is_poison(const char *bytes, size_t count, uint32_t word)
{
    return memcmp(bytes, &word, count < WORD ? count : WORD) == 0 &&
           (count <= WORD || memcmp(bytes + WORD, &word, WORD) == 0);
}

/* What can be poisoned: elements, of sparse interfaces the values alone, because a task may have to follow the indices.
 * False if there is nothing like that. */
static bool poisoned_layout(starpu_data_handle_t handle, void *interface, struct layout *layout)
{
    return content_values(starpu_data_get_interface_id(handle), interface, layout) && layout->address != 0;
}

static void put_run(void *pointer, char *row, size_t bytes)
{
    struct state *state = pointer;
    if (state->kept) {
        memcpy(state->kept, row, bytes);
        state->kept += bytes;
    }
    for (size_t i = 0; i < bytes; i += WORD)
        memcpy(row + i, &state->word, bytes - i < WORD ? bytes - i : WORD);
}

static void take_run(void *pointer, char *row, size_t bytes)
{
    struct state *state = pointer;
    for (size_t i = 0; i < bytes; i += state->group) {
        const size_t count = bytes - i < state->group ? bytes - i : state->group;
        if (!is_poison(row + i, count, state->word))
            continue;
        state->found += count;
        if (!state->kept)
            continue;
        memcpy(row + i, state->kept + i, count);
        for (size_t byte = 0; byte < count; byte++)
            state->was_filled |= row[i + byte] != 0;
    }
    if (state->kept)
        state->kept += bytes;
}

void poison_put(const struct starpu_task *task, unsigned access, starpu_data_handle_t handle, void *interface)
{
    struct layout layout;
    if (!poisoned_layout(handle, interface, &layout))
        return;
    struct state state = state_of(layout.element_bytes, access);
    if (state.group == 0)
        return;
    if (mode == POISON_RESTORED) {
        struct kept *kept = malloc(sizeof *kept + layout_bytes(&layout));
        if (!kept)
            return;
        kept->next = all_kept;
        kept->task = task;
        kept->access = access;
        state.kept = kept->contents;
        all_kept = kept;
    }
    content_for_each_run(&layout, put_run, &state);
}

void poison_scratch(starpu_data_handle_t handle, void *interface)
{
    struct layout layout;
    struct state state = {.word = nan_word, .group = WORD};
    if (poisoned_layout(handle, interface, &layout))
        content_for_each_run(&layout, put_run, &state);
}

uint64_t poison_take(const struct starpu_task *task, unsigned access, starpu_data_handle_t handle, void *interface)
{
    struct layout layout;
    struct kept **link = &all_kept;
    if (mode != POISON_RESTORED)
        return poison_count(handle, interface);
    while (*link && ((*link)->task != task || (*link)->access != access))
        link = &(*link)->next;
    struct kept *kept = *link;
    if (!kept || !poisoned_layout(handle, interface, &layout))
        return 0;
    struct state state = state_of(layout.element_bytes, access);
    state.kept = kept->contents;
    content_for_each_run(&layout, take_run, &state);
    *link = kept->next;
    free(kept);
    return state.found | (state.was_filled ? PROBE_WAS_FILLED : 0);
}

uint64_t poison_count(starpu_data_handle_t handle, void *interface)
{
    struct layout layout;
    if ((mode != POISON_NAN && mode != POISON_LARGE) || !poisoned_layout(handle, interface, &layout))
        return 0;
    struct state state = state_of(layout.element_bytes, 0);
    if (state.group != 0)
        content_for_each_run(&layout, take_run, &state);
    return state.found;
}

static void translate(char *elements, size_t bytes, size_t element_bytes)
{
    const size_t group = group_of(element_bytes);
    for (size_t i = 0; group > 0 && i + group <= bytes; i += group) {
        if (!is_poison(elements + i, group, large_word))
            continue;
        for (size_t word = 0; word < group; word += WORD)
            memcpy(elements + i + word, &nan_word, WORD);
    }
}

content_translate *poison_translation(void)
{
    return mode == POISON_LARGE ? translate : NULL;
}

static void clear_run(void *unused, char *row, size_t bytes)
{
    (void)unused;
    memset(row, 0, bytes);
}

void poison_clear(starpu_data_handle_t handle, void *interface)
{
    struct layout layout;
    if (content_layout(starpu_data_get_interface_id(handle), interface, &layout) && layout.address != 0)
        content_for_each_run(&layout, clear_run, NULL);
}
