/* Counting a submission's tasks, and losses that arrive later. Called by session.c, api.c and codelets/. */
#include "codelets/iteration.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

status iteration_init(struct iteration *iteration, struct recorder *recorder, struct failure *failure)
{
    iteration->number = -1;
    iteration->recorder = recorder;
    iteration->instrument = NULL;
    iteration->hold = NULL;
    iteration->failure = failure;
    atomic_init(&iteration->unfinished, 0);
    if (pthread_mutex_init(&iteration->mutex, NULL))
        return fail(STARPULLM_OUT_OF_MEMORY, "a mutex");
    if (pthread_cond_init(&iteration->finished, NULL)) {
        pthread_mutex_destroy(&iteration->mutex);
        return fail(STARPULLM_OUT_OF_MEMORY, "a condition variable");
    }
    return STARPULLM_OK;
}

void iteration_destroy(struct iteration *iteration)
{
    pthread_cond_destroy(&iteration->finished);
    pthread_mutex_destroy(&iteration->mutex);
}

void iteration_open(struct iteration *iteration, int64_t number)
{
    iteration->number = number;
    atomic_store(&iteration->unfinished, 1);
}

void iteration_add_task(struct iteration *iteration)
{
    atomic_fetch_add(&iteration->unfinished, 1);
}

void iteration_task_done(struct iteration *iteration)
{
    /* The last decrement under the mutex: the waiter may reuse the submission as soon as it sees zero. */
    pthread_mutex_lock(&iteration->mutex);
    if (atomic_fetch_sub(&iteration->unfinished, 1) == 1)
        pthread_cond_broadcast(&iteration->finished);
    pthread_mutex_unlock(&iteration->mutex);
}

void iteration_wait(struct iteration *iteration)
{
    pthread_mutex_lock(&iteration->mutex);
    while (atomic_load(&iteration->unfinished) > 0)
        pthread_cond_wait(&iteration->finished, &iteration->mutex);
    pthread_mutex_unlock(&iteration->mutex);
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
    atomic_init(&loss->holders, 2);
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
