/* The comparison of micro-tiles. All of a level run in turn in each round, so that other load on the machine affects
 * all of them; speeds are medians over the rounds. */
#include "bench_tiles.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "instructions.h"
#include "timing.h"

#define TILE(level, rows, vectors) tile_function tile_##level##_##rows##_##vectors;
#include "tiles.def"
#undef TILE

enum { ROUNDS = 101, HUGE_PAGE = 2 << 20 /* bytes */ };

/* `speed`: operations per second of each round. */
struct candidate {
    const char *level;
    int rows, columns; /* columns: found by the first call */
    tile_function *run;
    bool packed;
    double instructions; /* of a step; 0: not counted */
    double speed[ROUNDS];
};

static struct candidate candidates[] = {
#define TILE(level, rows, vectors)                                       \
    {#level, rows, 0, tile_##level##_##rows##_##vectors, false, 0, {0}}, \
        {#level, rows, 0, tile_##level##_##rows##_##vectors, true, 0, {0}},
#include "tiles.def"
#undef TILE
};

enum { NUM_CANDIDATES = sizeof candidates / sizeof *candidates };

static double operations_per_second(const struct candidate *candidate, double operations, float *room)
{
    const double start = now(), done = candidate->run(candidate->packed, operations, room).operations;
    return done / (now() - start);
}

bool bench_tiles(const char *level)
{
    const double operations = 3e7; /* some 0.5 ms */
    bool found = false;
    float *room = aligned_alloc(HUGE_PAGE, TILE_ROOM * sizeof *room);
    if (!room)
        return false;
    (void)madvise(room, TILE_ROOM * sizeof *room, MADV_HUGEPAGE); /* as the library's large buffers */
    for (size_t i = 0; i < TILE_ROOM; i++)
        room[i] = 0.5F;
    for (size_t i = 0; i < NUM_CANDIDATES; i++) {
        struct candidate *candidate = &candidates[i];
        if (strcmp(candidate->level, level) != 0)
            continue;
        found = true;
        candidate->columns = candidate->run(candidate->packed, operations, room).columns;
        if (instructions_start()) {
            const double before = instructions_read(),
                         steps = candidate->run(candidate->packed, operations, room).steps;
            candidate->instructions = (instructions_read() - before) / steps;
        }
    }
    for (size_t round = 0; round < ROUNDS; round++)
        for (size_t i = 0; i < NUM_CANDIDATES; i++)
            if (strcmp(candidates[i].level, level) == 0)
                candidates[i].speed[round] = operations_per_second(&candidates[i], operations, room);
    if (found)
        printf("%-8s %-10s %-9s %8s %22s\n", "level", "tile", "a", "GF/s", "instructions a step");
    for (size_t i = 0; i < NUM_CANDIDATES; i++) {
        struct candidate *candidate = &candidates[i];
        if (strcmp(candidate->level, level) != 0)
            continue;
        char tile[16], instructions[16] = "not counted here";
        snprintf(tile, sizeof tile, "%d x %d", candidate->rows, candidate->columns);
        if (candidate->instructions > 0)
            snprintf(instructions, sizeof instructions, "%.1f", candidate->instructions);
        printf("%-8s %-10s %-9s %8.1f %22s\n", level, tile, candidate->packed ? "packed" : "in place",
               1e-9 * median(candidate->speed, ROUNDS), instructions);
    }
    free(room);
    return found;
}
