/* One submission (a step, an evaluation, a forward pass): counts its unfinished tasks and tells who waits.
 * session.c opens, closes and waits; codelets/insert_*.c counts tasks in and out. */
#ifndef STARPULLM_SUBMISSION_H
#define STARPULLM_SUBMISSION_H

#include <pthread.h>
#include <stdatomic.h>

#include "trace/record.h"

struct submission {
    int64_t number;            /* from 0 */
    struct recorder *recorder; /* NULL: not traced */
    atomic_int unfinished;     /* tasks, and one for the submitter while it is submitting */
    pthread_mutex_t mutex;
    pthread_cond_t finished;
};

status submission_init(struct submission *submission, struct recorder *recorder);
void submission_destroy(struct submission *submission);

void submission_open(struct submission *submission, int64_t number);
void submission_add_task(struct submission *submission);
void submission_task_done(struct submission *submission); /* also closes, for the submitter */
void submission_wait(struct submission *submission);

/* What a submission's caller is promised: a value that one of its tasks will set. Shared by task and caller. */
struct starpullm_loss *loss_create(void);
void loss_set(struct starpullm_loss *loss, float value);
float loss_wait(struct starpullm_loss *loss);
int loss_ready(const struct starpullm_loss *loss);
void loss_release(struct starpullm_loss *loss);

#endif
