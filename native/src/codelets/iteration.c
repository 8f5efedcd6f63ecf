/* Counting an iteration's tasks, and the first failure among them. */
#include "codelets/iteration.h"

#include <stdarg.h>
#include <stdio.h>

#include "data/disk.h"

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

void failure_add_of_disk(struct failure *failure)
{
    const status code = disk_check();
    if (code != STARPULLM_OK)
        failure_set(failure, code, "%s", starpullm_last_error());
}

status failure_check(struct failure *failure)
{
    failure_add_of_disk(failure);
    pthread_mutex_lock(&failure->mutex);
    status code = failure->code;
    pthread_mutex_unlock(&failure->mutex);
    /* The sentence is set once and then stays as it is. */
    return code == STARPULLM_OK ? STARPULLM_OK : fail(code, "%s", failure->sentence);
}

void iteration_init(struct iteration *iteration, struct recorder *recorder, struct failure *failure)
{
    *iteration = (struct iteration){.number = -1, .recorder = recorder, .failure = failure};
    pthread_mutex_init(&iteration->mutex, NULL);
    pthread_cond_init(&iteration->finished, NULL);
}

void iteration_destroy(struct iteration *iteration)
{
    pthread_cond_destroy(&iteration->finished);
    pthread_mutex_destroy(&iteration->mutex);
}

void iteration_open(struct iteration *iteration, int64_t number)
{
    iteration->number = number;
    iteration->plan = NULL;
    iteration->accesses = 0;
    atomic_store(&iteration->unfinished, 1);
}

void iteration_add_task(struct iteration *iteration)
{
    atomic_fetch_add(&iteration->unfinished, 1);
}

void iteration_task_done(struct iteration *iteration)
{
    /* Under the mutex, because whoever waits may open the iteration again as soon as the count is 0. */
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
