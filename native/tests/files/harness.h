/* Checks, folders, files and failing system calls for the ctests of files. */
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "status.h"

extern int checks, failures;

void check_at(const char *file, int line, bool passed, const char *what);
#define CHECK(condition) check_at(__FILE__, __LINE__, (condition), #condition)
#define WORKS(call) check_at(__FILE__, __LINE__, (call) == STARPULLM_OK, #call)

/* Checks that the call was refused with this status, in a sentence that has every one of the given parts. */
void refused_at(const char *file, int line, status found, status expected, ...);
#define REFUSED(call, ...) refused_at(__FILE__, __LINE__, (call), __VA_ARGS__, (const char *)NULL)

/* Aborts if it is NULL. */
void *must(void *memory);

/* At least 0 and below limit; the same numbers in every run. */
uint64_t next_random(uint64_t limit);

/* Number of names in a folder. */
int entries(const char *folder);
int open_descriptors(void);
/* Empties a folder. */
void remove_all(const char *folder);

struct bytes {
    unsigned char *data;
    size_t size, room;
};
void save_part(const char *path, const struct bytes *bytes, size_t size);
void save(const char *path, const struct bytes *bytes);

/* Runs the tests in a new folder under argv[1], and checks that they leave nothing open. Returns the exit status. */
int run_tests(int argc, char **argv, const char *name, void (*tests)(void));

/* ---- System calls of the library that fail on demand ---- */

enum call { CALL_READ, CALL_WRITE, CALL_RESERVE, CALL_SYNC, CALL_RENAME, NUM_CALLS };
struct fault {
    int calls;
    int fail_at; /* the n-th call fails, counted from 1; 0: none; -1: every one */
    int error;   /* its errno; 0: the call moves no byte */
};
extern struct fault faults[NUM_CALLS];
extern size_t most;                  /* bytes in one read or write; 0: no limit */
extern int interrupt_every;          /* every n-th read, and every n-th write, fails with EINTR; 0: none */
extern bool refuse_direct;           /* writes past the page cache fail with EINVAL */
extern int direct_writes;            /* past the page cache */
extern const void *looked_for;       /* a buffer ... */
extern bool written_from_looked_for; /* ... and whether something was written from there */
void no_faults(void);
void fail_call(enum call call, int at, int error);
void limit_transfers(size_t most_bytes, int interrupted_every);
