/* One iteration (a step, an evaluation, a forward pass): counts its unfinished tasks, so that others can wait for them,
 * and keeps the first failure of a task. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "trace/record.h"

/* The first failure of a task of the session, or of the disk: a task can't return a status. */
struct failure {
    pthread_mutex_t mutex;
    status code;
    char sentence[512];
};

void failure_init(struct failure *failure);
void failure_destroy(struct failure *failure);
void failure_set(struct failure *failure, status code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Takes over that of the disk, if there is one and none before. */
void failure_add_of_disk(struct failure *failure);
/* STARPULLM_OK if there is none. */
status failure_check(struct failure *failure);

/* What follows an access of a step, by the plan of offloading: AFTER_LEAVE is to be written early, and to leave the
 * memory once the disk has had time for that. */
enum after_access { AFTER_NOTHING, AFTER_WRITE_EARLY, AFTER_LEAVE, AFTER_DROP };

enum { MAX_LEAVING = 64, TASKS_UNTIL_WRITTEN = 16 };
struct offload_plan {
    uint8_t *after; /* enum after_access of each access of a step, in order */
    /* The next to leave; a ring of the last ones. */
    struct {
        struct data *data;
        int64_t since; /* number of the task that it follows */
    } leaving[MAX_LEAVING];
    size_t first, end; /* of those that have come so far */
    int64_t tasks;     /* so far */
};

struct iteration {
    int64_t number;                /* among the session's, from 0 */
    struct recorder *recorder;     /* NULL: not traced */
    struct instrument *instrument; /* NULL: no instruments; needs the recorder */
    struct hold *hold;             /* NULL: tasks may run; needs the recorder */
    bool on_paper;                 /* tasks are recorded and not submitted; needs the recorder */
    struct offload_plan *plan;     /* NULL: nothing follows an access */
    size_t accesses;               /* so far */
    struct failure *failure;
    int64_t submitted, exchanged; /* tasks of this rank; of others, of which it has sent or received data; so far */
    atomic_int unfinished;        /* tasks, and 1 more while tasks are being submitted */
    pthread_mutex_t mutex;
    pthread_cond_t finished;
};

void iteration_init(struct iteration *iteration, struct recorder *recorder, struct failure *failure);
void iteration_destroy(struct iteration *iteration);

void iteration_open(struct iteration *iteration, int64_t number);
void iteration_add_task(struct iteration *iteration);
void iteration_task_done(struct iteration *iteration); /* called once more when all tasks have been submitted */
void iteration_wait(struct iteration *iteration);
