/* One submission (a step, an evaluation, a forward pass): counts its unfinished tasks and tells who waits.
 * session.c opens, closes and waits; codelets/insert_*.c counts tasks in and out. */
#ifndef STARPULLM_ITERATION_H
#define STARPULLM_ITERATION_H

#include <pthread.h>
#include <stdatomic.h>

#include "trace/record.h"

/* What went wrong first in a task of a session; tasks have no status to return. */
struct failure {
    pthread_mutex_t mutex;
    status code;
    char sentence[512];
};

void failure_init(struct failure *failure);
void failure_destroy(struct failure *failure);
void failure_set(struct failure *failure, status code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* STARPULLM_OK if there was none. */
status failure_check(struct failure *failure);

struct iteration {
    int64_t number;                /* from 0 */
    struct recorder *recorder;     /* NULL: not traced */
    struct instrument *instrument; /* NULL: none; else traced too */
    struct hold *hold;             /* NULL: tasks may run; else traced too */
    struct failure *failure;
    atomic_int unfinished; /* tasks, and one for the submitter while it is submitting */
    pthread_mutex_t mutex;
    pthread_cond_t finished;
};

status iteration_init(struct iteration *iteration, struct recorder *recorder, struct failure *failure);
void iteration_destroy(struct iteration *iteration);

void iteration_open(struct iteration *iteration, int64_t number);
void iteration_add_task(struct iteration *iteration);
void iteration_task_done(struct iteration *iteration); /* also closes, for the submitter */
void iteration_wait(struct iteration *iteration);

/* What a submission's caller is promised: a value that one of its tasks will set. Shared by task and caller. */
struct starpullm_loss *loss_create(void);
/* code: how the submission's tasks went so far; its sentence if they failed. */
void loss_set(struct starpullm_loss *loss, float value, struct failure *failure);
status loss_wait(struct starpullm_loss *loss, float *value);
int loss_ready(const struct starpullm_loss *loss);
void loss_release(struct starpullm_loss *loss);

#endif
