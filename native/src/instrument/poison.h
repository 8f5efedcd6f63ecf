/* Filling memory with a signalling NaN, and finding what is left of it. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* bytes is a multiple of 4. */
void poison_fill(void *memory, size_t bytes);

/* searched: all elements. left: elements that still hold the pattern. spread: elements that were computed from it;
 * every operation makes of the pattern a quiet NaN with the same payload. With the first one's offset in bytes. */
struct poison_found {
    int64_t searched;
    int64_t left, first_left;
    int64_t spread, first_spread;
};
struct poison_found poison_find(const void *memory, size_t bytes);
