/* The mean loss as a future: reference-counted, because the session may end before the caller asks for the value. */
#include "codelets/hold.h"
#include "codelets/iteration.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

struct starpullm_loss {
    atomic_int references;
    const struct iteration *iteration; /* which lasts until the loss is ready */
    pthread_mutex_t mutex;
    pthread_cond_t ready_changed;
    atomic_bool ready;
    float value;
    struct failure failure; /* of the first task that had failed by then */
};

struct starpullm_loss *loss_future_create(const struct iteration *iteration)
{
    struct starpullm_loss *loss = calloc(1, sizeof *loss);
    if (!loss)
        return NULL;
    atomic_init(&loss->references, 1);
    pthread_mutex_init(&loss->mutex, NULL);
    pthread_cond_init(&loss->ready_changed, NULL);
    failure_init(&loss->failure);
    loss->iteration = iteration;
    return loss;
}

void report_loss(const float *mean, struct starpullm_loss *loss, struct failure *failure, struct team team)
{
    if (team.index > 0)
        return;
    failure_keep(&loss->failure, check_tasks(failure));
    pthread_mutex_lock(&loss->mutex);
    loss->value = *mean;
    loss->ready = true;
    pthread_cond_broadcast(&loss->ready_changed);
    pthread_mutex_unlock(&loss->mutex);
    loss_future_release(loss);
}

status starpullm_loss_wait(starpullm_loss *loss, float *value)
{
    CHECK_POINTERS(loss, value);
    pthread_mutex_lock(&loss->mutex);
    const status code = loss->ready ? STARPULLM_OK : check_not_held(loss->iteration->hold);
    while (!loss->ready && code == STARPULLM_OK)
        pthread_cond_wait(&loss->ready_changed, &loss->mutex);
    pthread_mutex_unlock(&loss->mutex);
    TRY(code);
    TRY(failure_check(&loss->failure));
    *value = loss->value;
    return STARPULLM_OK;
}

int starpullm_loss_ready(const starpullm_loss *loss)
{
    return loss && atomic_load(&loss->ready);
}

void loss_future_retain(struct starpullm_loss *loss)
{
    atomic_fetch_add(&loss->references, 1);
}

void loss_future_release(struct starpullm_loss *loss)
{
    if (!loss || atomic_fetch_sub(&loss->references, 1) > 1)
        return;
    failure_destroy(&loss->failure);
    pthread_cond_destroy(&loss->ready_changed);
    pthread_mutex_destroy(&loss->mutex);
    free(loss);
}

void starpullm_loss_destroy(starpullm_loss **loss)
{
    if (!loss)
        return;
    loss_future_release(*loss);
    *loss = NULL;
}
