/* Arithmetic on sizes that several files of this folder need. */
#pragma once

#include <stddef.h>

static inline size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline size_t parts_of(size_t items, size_t part)
{
    return (items + part - 1) / part;
}

/* The smallest multiple of grain that isn't below `items`. */
static inline size_t rounded_up(size_t items, size_t grain)
{
    return parts_of(items, grain) * grain;
}
