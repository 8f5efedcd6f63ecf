/* The threads that run one kernel together, and which outputs each of them computes. */
#pragma once

#include <stddef.h>

/* Thread `index` of `count`, from 0. */
struct team {
    int index, count;
    struct team_board *board; /* NULL: the threads don't know of each other, and may run one after the other */
};

/* A thread that computes alone. */
static const struct team team_of_one = {.count = 1};

/* The grain for floats: no two threads write to the same cache line of 64 bytes. */
enum { FLOATS_PER_LINE = 16 };

/* Items begin <= i < end. */
struct share {
    size_t begin, end;
};

/* This thread's part of `items` outputs: the parts of all threads cover them once, begin at multiples of `grain` (so
 * that a micro-tile or a cache line belongs to one thread) and differ by at most one grain. */
static inline struct share team_share(struct team team, size_t items, size_t grain)
{
    const size_t grains = (items + grain - 1) / grain;
    const size_t index = (size_t)team.index, count = (size_t)team.count;
    const size_t each = grains / count, more = grains % count;
    const size_t first = index * each + (index < more ? index : more);
    const size_t begin = first * grain, end = (first + each + (index < more)) * grain;
    return (struct share){begin < items ? begin : items, end < items ? end : items};
}
