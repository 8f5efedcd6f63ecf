/* Ranges of bytes, sorted and apart from each other. Those that meet are one, so that a page on the border of two
 * handles is watched too. */
#include "pages.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct range {
    uintptr_t begin, end;
};

enum { MOST = 1 << 16 };

static struct range ranges[MOST];
static size_t count;

uintptr_t page_bytes(void)
{
    static uintptr_t bytes;
    if (bytes == 0)
        bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    return bytes;
}

static uintptr_t page_down(uintptr_t address)
{
    return address & ~(page_bytes() - 1);
}

static uintptr_t page_up(uintptr_t address)
{
    return page_down(address + page_bytes() - 1);
}

/* The first range that ends at an address or behind it. */
static size_t first_from(uintptr_t address)
{
    size_t low = 0, high = count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (ranges[middle].end < address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Puts ranges in place of others; false if there is no room. */
static bool replace(size_t first, size_t last, const struct range *with, size_t number)
{
    if (count - (last - first) + number > MOST)
        return false;
    memmove(ranges + first + number, ranges + last, (count - last) * sizeof *ranges);
    memcpy(ranges + first, with, number * sizeof *ranges);
    count = count - (last - first) + number;
    return true;
}

bool pages_add(uintptr_t begin, uintptr_t end)
{
    struct range added = {begin, end};
    const size_t first = first_from(begin);
    size_t last = first;
    if (first < count && ranges[first].begin <= begin && ranges[first].end >= end)
        return false;
    for (; last < count && ranges[last].begin <= end; last++) {
        added.begin = ranges[last].begin < added.begin ? ranges[last].begin : added.begin;
        added.end = ranges[last].end > added.end ? ranges[last].end : added.end;
    }
    return replace(first, last, &added, 1);
}

void pages_remove(uintptr_t begin, uintptr_t end)
{
    pages_protect(begin, end, PROT_READ | PROT_WRITE);
    const size_t first = first_from(begin + 1);
    size_t last = first, kept = 0;
    struct range rest[2];
    for (; last < count && ranges[last].begin < end; last++) {
        if (ranges[last].begin < begin)
            rest[kept++] = (struct range){ranges[last].begin, begin};
        if (ranges[last].end > end)
            rest[kept++] = (struct range){end, ranges[last].end};
    }
    /* One range more than before has no room in a full table; then its end isn't watched any more. */
    if (!replace(first, last, rest, kept)) {
        pages_protect(end, rest[1].end, PROT_READ | PROT_WRITE);
        replace(first, last, rest, 1);
    }
}

static bool protect(const struct range *range, uintptr_t begin, uintptr_t end, int protection)
{
    const uintptr_t from = page_up(range->begin), until = page_down(range->end);
    begin = begin > from ? begin : from;
    end = end < until ? end : until;
    return begin >= end || mprotect((void *)begin, end - begin, protection) == 0;
}

bool pages_protect(uintptr_t begin, uintptr_t end, int protection)
{
    bool is_done = true;
    begin = page_down(begin);
    end = page_up(end);
    for (size_t i = first_from(begin + 1); i < count && ranges[i].begin < end; i++)
        is_done &= protect(&ranges[i], begin, end, protection);
    return is_done;
}

bool pages_protect_all(int protection)
{
    return pages_protect(0, page_down(UINTPTR_MAX), protection);
}

bool pages_watch(uintptr_t address)
{
    const uintptr_t page = page_down(address);
    const size_t i = first_from(page + page_bytes());
    return i < count && ranges[i].begin <= page;
}

static void add_run(void *is_new, char *row, size_t bytes)
{
    *(bool *)is_new |= pages_add((uintptr_t)row, (uintptr_t)row + bytes);
}

bool pages_add_layout(const struct layout *layout)
{
    bool is_new = false;
    content_for_each_run(layout, add_run, &is_new);
    return is_new;
}

static void remove_run(void *unused, char *row, size_t bytes)
{
    (void)unused;
    pages_remove((uintptr_t)row, (uintptr_t)row + bytes);
}

void pages_remove_layout(const struct layout *layout)
{
    content_for_each_run(layout, remove_run, NULL);
}

static void count_run(void *watched, char *row, size_t bytes)
{
    const uintptr_t begin = (uintptr_t)row, end = begin + bytes;
    for (size_t i = first_from(begin + 1); i < count && ranges[i].begin < end; i++) {
        const uintptr_t from = page_up(ranges[i].begin), until = page_down(ranges[i].end);
        const uintptr_t first = begin > from ? begin : from, last = end < until ? end : until;
        *(uint64_t *)watched += first < last ? last - first : 0;
    }
}

uint64_t pages_watched_bytes(const struct layout *layout)
{
    uint64_t bytes = 0;
    content_for_each_run(layout, count_run, &bytes);
    return bytes;
}

/* Runs of elements whose pages meet are protected together. */
struct protecting {
    uintptr_t begin, end;
    int protection;
    bool is_done;
};

static void protect_run(void *pointer, char *row, size_t bytes)
{
    struct protecting *state = pointer;
    const uintptr_t begin = (uintptr_t)row;
    if (state->end == 0 || begin >= state->end + page_bytes() || begin < state->begin) {
        state->is_done &= pages_protect(state->begin, state->end, state->protection);
        state->begin = begin;
    }
    state->end = begin + bytes;
}

bool pages_protect_layout(const struct layout *layout, int protection)
{
    struct protecting state = {.protection = protection, .is_done = true};
    content_for_each_run(layout, protect_run, &state);
    return pages_protect(state.begin, state.end, protection) && state.is_done;
}
