/* Counting a submission's tasks, and losses that arrive later. Called by session.c, api.c and codelets/. */
#include "codelets/submission.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "defects.h"

void failure_init(struct failure *failure)
{
    pthread_mutex_init(&failure->mutex, NULL);
    failure->code = STARPULLM_OK;
    failure->sentence[0] = '\0';
}

void failure_destroy(struct failure *failure)
{
    pthread_mutex_destroy(&failure->mutex);
}

void failure_set(struct failure *failure, status code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    pthread_mutex_lock(&failure->mutex);
    if (failure->code == STARPULLM_OK) {
        failure->code = code;
        vsnprintf(failure->sentence, sizeof failure->sentence, format, arguments);
    }
    pthread_mutex_unlock(&failure->mutex);
    va_end(arguments);
}

status failure_check(struct failure *failure)
{
    pthread_mutex_lock(&failure->mutex);
    status code = failure->code;
    pthread_mutex_unlock(&failure->mutex);
    /* Set once: the sentence doesn't change any more. */
    return code == STARPULLM_OK ? STARPULLM_OK : fail(code, "%s", failure->sentence);
}

status submission_init(struct submission *submission, struct recorder *recorder, struct failure *failure)
{
    submission->number = -1;
    submission->recorder = recorder;
    submission->instrument = NULL;
    submission->hold = NULL;
    submission->failure = failure;
    atomic_init(&submission->unfinished, 0);
    if (pthread_mutex_init(&submission->mutex, NULL))
        return fail(STARPULLM_OUT_OF_MEMORY, "a mutex");
    if (pthread_cond_init(&submission->finished, NULL)) {
        pthread_mutex_destroy(&submission->mutex);
        return fail(STARPULLM_OUT_OF_MEMORY, "a condition variable");
    }
    return STARPULLM_OK;
}

void submission_destroy(struct submission *submission)
{
    pthread_cond_destroy(&submission->finished);
    pthread_mutex_destroy(&submission->mutex);
}

void submission_open(struct submission *submission, int64_t number)
{
    submission->number = number;
    atomic_store(&submission->unfinished, 1);
}

void submission_add_task(struct submission *submission)
{
    atomic_fetch_add(&submission->unfinished, 1);
}

void submission_task_done(struct submission *submission)
{
    /* The last decrement under the mutex: the waiter may reuse the submission as soon as it sees zero. */
    pthread_mutex_lock(&submission->mutex);
    if (atomic_fetch_sub(&submission->unfinished, 1) == 1 && !DEFECT(lost_wakeup))
        pthread_cond_broadcast(&submission->finished);
    pthread_mutex_unlock(&submission->mutex);
}

void submission_wait(struct submission *submission)
{
    pthread_mutex_lock(&submission->mutex);
    while (atomic_load(&submission->unfinished) > 0)
        pthread_cond_wait(&submission->finished, &submission->mutex);
    pthread_mutex_unlock(&submission->mutex);
}

struct starpullm_loss {
    atomic_int holders;
    pthread_mutex_t mutex;
    pthread_cond_t arrived;
    int ready;
    float value;
    status code;        /* how the tasks before it went */
    char sentence[512]; /* of a failure: the session may be gone when it is asked for */
};

struct starpullm_loss *loss_create(void)
{
    struct starpullm_loss *loss = calloc(1, sizeof *loss);
    if (!loss)
        return NULL;
    atomic_init(&loss->holders, 2 + DEFECT(loss_leak));
    pthread_mutex_init(&loss->mutex, NULL);
    pthread_cond_init(&loss->arrived, NULL);
    return loss;
}

void loss_set(struct starpullm_loss *loss, float value, struct failure *failure)
{
    pthread_mutex_lock(&failure->mutex);
    pthread_mutex_lock(&loss->mutex);
    loss->value = value;
    loss->code = failure->code;
    memcpy(loss->sentence, failure->sentence, sizeof loss->sentence);
    loss->ready = 1;
    if (!DEFECT(lost_loss))
        pthread_cond_broadcast(&loss->arrived);
    pthread_mutex_unlock(&loss->mutex);
    pthread_mutex_unlock(&failure->mutex);
}

status loss_wait(struct starpullm_loss *loss, float *value)
{
    pthread_mutex_lock(&loss->mutex);
    while (!loss->ready)
        pthread_cond_wait(&loss->arrived, &loss->mutex);
    pthread_mutex_unlock(&loss->mutex);
    if (loss->code != STARPULLM_OK)
        return fail(loss->code, "%s", loss->sentence);
    *value = loss->value;
    return STARPULLM_OK;
}

int loss_ready(const struct starpullm_loss *loss)
{
    struct starpullm_loss *locked = (struct starpullm_loss *)loss;
    pthread_mutex_lock(&locked->mutex);
    int ready = locked->ready;
    pthread_mutex_unlock(&locked->mutex);
    return ready;
}

void loss_release(struct starpullm_loss *loss)
{
    if (!loss || atomic_fetch_sub(&loss->holders, 1) > 1)
        return;
    pthread_cond_destroy(&loss->arrived);
    pthread_mutex_destroy(&loss->mutex);
    free(loss);
}
