/* Micro-kernels with other micro-tiles than those of the library. */
#pragma once

#include <stdbool.h>

/* What was computed: `steps` of a micro-tile of so many columns. */
struct tile_work {
    double operations, steps;
    int columns;
};

enum { TILE_ROOM = 1 << 19 }; /* floats */

/* Computes with a micro-kernel until it has done so many operations. a is `packed`, or read in place from rows of 768
 * floats. `room`: TILE_ROOM values. */
typedef struct tile_work tile_function(bool packed, double operations, float *room);

/* Prints, for each micro-tile of the level that was compiled, operations per second and instructions per step. false:
 * the level has none. */
bool bench_tiles(const char *level);
