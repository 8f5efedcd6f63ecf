/* Checks and folders for the ctests of files. */
#ifndef TESTS_HARNESS_H
#define TESTS_HARNESS_H

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

/* Runs the tests in a new folder under argv[1], and checks that they leave nothing open. Returns the exit status. */
int run_tests(int argc, char **argv, const char *name, void (*tests)(void));

#endif
