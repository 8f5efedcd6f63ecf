/* One iteration (a step, an evaluation, a forward pass): counts its unfinished tasks, so that others can wait for them,
 * and keeps the first failure of a task. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "trace/record.h"

/* The first failure of a task of the session: a task can't return a status. */
struct failure {
    pthread_mutex_t mutex;
    status code;
    char sentence[512];
};

void failure_init(struct failure *failure);
void failure_destroy(struct failure *failure);
void failure_set(struct failure *failure, status code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* STARPULLM_OK if no task has failed. */
status failure_check(struct failure *failure);

struct iteration {
    int64_t number;                /* among the session's, from 0 */
    struct recorder *recorder;     /* NULL: not traced */
    struct instrument *instrument; /* NULL: no instruments; needs the recorder */
    struct hold *hold;             /* NULL: tasks may run; needs the recorder */
    bool on_paper;                 /* tasks are recorded and not submitted; needs the recorder */
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
