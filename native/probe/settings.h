/* What a run of the probe does, from environment variables, since the program knows nothing of it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "log_format.h"

/* What is put where a task declares to overwrite; LARGE: large numbers and zeros in turn. */
enum poison_mode { POISON_NONE, POISON_NAN, POISON_LARGE };

struct settings {
    const char *directory; /* where the log's folder is made; NULL: nothing is recorded */
    uint64_t seed;         /* 0: tasks in the order of submission */
    unsigned max_workers;  /* that may run tasks at the same time; 0: all */
    bool in_turn;          /* one task at a time, in the order of submission, each on another worker */
    unsigned delay_us;     /* longest random delay of a task */
    unsigned settle_ms;    /* tasks wait until a while nothing has been submitted: all these waits together */
    unsigned prompt_ms;    /* instead, a submission of a ready task waits until it has run: all these waits together */
    const char *held;      /* tasks that wait until another one starts: numbers that ascend, with commas; or NULL */
    uint64_t until;        /* that other one; all of them among the program's own tasks */
    bool ordered;          /* sums, of which the order is free */
    bool hash;
    bool stacks;             /* of submissions and of registrations */
    bool watch;              /* accesses that tasks don't declare */
    enum poison_mode poison; /* of what tasks declare as written only */
    unsigned other_poison;   /* an access of the kept task, by number plus one, with another kind of poison; 0: none */
    enum { KEEP_NOTHING, KEEP_ONE_TASK, KEEP_FROM_FREE } keep; /* whose contents are recorded */
    uint64_t kept_task;                                        /* among the program's own tasks, for KEEP_ONE_TASK */
};

/* Reads STARPULLM_PROBE_*; a value that is no number counts as 0. */
struct settings read_settings(void);

/* Sets this process's rank, and the number of ranks. */
void read_rank(struct probe_header *header);
