/* One case of test_kernels: random sizes, values and threads, its buffers, and their comparison. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "kernels/kernels.h"

enum flavour { ORDINARY, WIDE, TINY, SOME_ZEROS, ALL_ZEROS, SPECIAL, NUM_FLAVOURS };

enum { GUARD = 48, MAX_BUFFERS = 16 };

struct buffer {
    const char *name;
    size_t count, offset; /* in 4-byte elements; data starts at memory + offset */
    bool output;
    /* Memory: the kernel's, as it was at the start, what the team computed, what the reference kernel computed. */
    uint32_t *ours, *start, *computed, *expected;
};

/* An output: the kernel's and the reference kernel's. */
struct pair {
    float *ours, *expected;
};

enum { MAX_THREADS = 40 };

struct the_case {
    const char *operation;
    const char *level; /* NULL before the first */
    size_t next;       /* level */
    const struct kernels *kernels;
    struct team team;
    size_t number;
    struct caches caches; /* that the blocks are for */
    enum flavour flavour;
    char shape[160];
    struct buffer buffers[MAX_BUFFERS];
    size_t num_buffers;
    const char *only_level; /* NULL: all */
};
extern struct the_case the;

#define SHAPE(...) snprintf(the.shape, sizeof the.shape, __VA_ARGS__)

/* ---- Random numbers and sizes ---- */

void seed_random(uint64_t seed);
size_t random_below(size_t limit);
size_t random_size(void);
size_t random_large_size(void);
int random_threads(void);
enum sum_start random_start(void);
const char *start_name(enum sum_start start);
float with_bits(uint32_t bits);

/* Draws sizes until their product is at most `limit`. In every eighth case one of them is large. */
void random_sizes(size_t limit, size_t count, size_t *const sizes[]);
#define RANDOM_SIZES(limit, ...) \
    random_sizes(limit, sizeof((size_t *[]){__VA_ARGS__}) / sizeof(size_t *), (size_t *[]){__VA_ARGS__})

/* ---- Buffers ---- */

float *input(const char *name, size_t count);
const int32_t *indices(const char *name, size_t count, size_t limit);
/* An output that is continued has a present value; any other holds garbage that must not be read. */
struct pair output(const char *name, size_t count, enum sum_start start);
struct pair overwritten(const char *name, size_t count);
/* A value that must not be read: a NaN shows. */
float garbage(void);
/* After the last buffer was changed by hand. */
void last_changed(void);
void free_buffers(void);

/* ---- Calls ---- */

/* The output of the call: the reference kernel's as long as there is no level, else the level's. */
float *at(struct pair output);
/* The next level, after what the last one's kernel computed is checked. */
bool next_level(void);
/* The team's next thread, after the last one's outputs are collected. */
bool next_thread(void);

/* Calls the reference kernel, then the kernel of every level as each of the team's threads, and checks it. */
#define RUN(operation, ...)                                    \
    do {                                                       \
        operation##_ref(__VA_ARGS__, team_of_one);             \
        while (next_level())                                   \
            while (next_thread())                              \
                the.kernels->operation(__VA_ARGS__, the.team); \
    } while (0)
