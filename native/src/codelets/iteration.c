/* Counting an iteration's tasks. */
#include "codelets/iteration.h"

#include "data/disk.h"

status check_tasks(struct failure *failure)
{
    failure_keep(failure, disk_check());
    return failure_check(failure);
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
    iteration->tasks = iteration->accesses = 0;
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
