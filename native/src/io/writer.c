/* The thread behind writer.h: a linked queue, and the first failure, kept until it is asked for. */
#include "io/writer.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct writer {
    pthread_t thread;
    bool started;
    pthread_mutex_t mutex;  /* of everything below */
    pthread_cond_t changed; /* the queue, expected or ending */
    struct writer_job *first;
    struct writer_job **last; /* where the next job is linked in */
    int expected;             /* jobs that haven't returned, enqueued or not */
    bool ending;
    status failure;
    int failure_number;
    char *sentence; /* NULL if there was no memory for it */
};

/* A failure's sentence belongs to the thread that failed, so it is copied. */
static void keep_failure(struct writer *writer, status failure)
{
    if (failure == STARPULLM_OK || writer->failure != STARPULLM_OK)
        return;
    writer->failure = failure;
    writer->failure_number = last_error_number();
    writer->sentence = strdup(last_error());
}

static void *run_jobs(void *argument)
{
    struct writer *writer = argument;
    pthread_mutex_lock(&writer->mutex);
    for (;;) {
        while (!writer->first && !writer->ending)
            pthread_cond_wait(&writer->changed, &writer->mutex);
        struct writer_job *job = writer->first;
        if (!job)
            break;
        writer->first = job->next;
        if (!writer->first)
            writer->last = &writer->first;
        pthread_mutex_unlock(&writer->mutex);
        const status code = job->run(job);
        pthread_mutex_lock(&writer->mutex);
        keep_failure(writer, code);
        writer->expected--;
        pthread_cond_broadcast(&writer->changed);
    }
    pthread_mutex_unlock(&writer->mutex);
    return NULL;
}

/* The thread blocks all signals: a write in it isn't interrupted by one. */
static int start(struct writer *writer)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&writer->thread, NULL, run_jobs, writer);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    writer->started = error == 0;
    return error;
}

status writer_create(struct writer **writer)
{
    *writer = NULL;
    struct writer *created = calloc(1, sizeof *created);
    if (!created)
        return fail(STARPULLM_OUT_OF_MEMORY, "a writer could not be allocated");
    created->last = &created->first;
    pthread_mutex_init(&created->mutex, NULL);
    pthread_cond_init(&created->changed, NULL);
    const int error = start(created);
    if (error != 0) {
        writer_destroy(created);
        return fail(STARPULLM_OUT_OF_MEMORY, "the writer's thread could not be started (error %d)", error);
    }
    pthread_setname_np(created->thread, "starpullm-write");
    *writer = created;
    return STARPULLM_OK;
}

static void wait_for_jobs(struct writer *writer)
{
    while (writer->expected > 0)
        pthread_cond_wait(&writer->changed, &writer->mutex);
}

void writer_destroy(struct writer *writer)
{
    if (!writer)
        return;
    pthread_mutex_lock(&writer->mutex);
    wait_for_jobs(writer);
    writer->ending = true;
    pthread_cond_broadcast(&writer->changed);
    pthread_mutex_unlock(&writer->mutex);
    if (writer->started)
        pthread_join(writer->thread, NULL);
    pthread_cond_destroy(&writer->changed);
    pthread_mutex_destroy(&writer->mutex);
    free(writer->sentence);
    free(writer);
}

void writer_expect(struct writer *writer, int count)
{
    pthread_mutex_lock(&writer->mutex);
    writer->expected += count;
    pthread_cond_broadcast(&writer->changed);
    pthread_mutex_unlock(&writer->mutex);
}

void writer_enqueue(struct writer *writer, struct writer_job *job)
{
    job->next = NULL;
    pthread_mutex_lock(&writer->mutex);
    *writer->last = job;
    writer->last = &job->next;
    pthread_cond_broadcast(&writer->changed);
    pthread_mutex_unlock(&writer->mutex);
}

status writer_wait(struct writer *writer)
{
    pthread_mutex_lock(&writer->mutex);
    wait_for_jobs(writer);
    const status failure = writer->failure;
    if (failure != STARPULLM_OK)
        fail_again(failure, writer->failure_number,
                   writer->sentence ? writer->sentence : "writing failed; there was no memory for the reason");
    free(writer->sentence);
    writer->sentence = NULL;
    writer->failure = STARPULLM_OK;
    pthread_mutex_unlock(&writer->mutex);
    return failure;
}
