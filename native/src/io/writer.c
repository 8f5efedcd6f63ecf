/* The thread behind writer.h: a linked queue, and the first failure kept until it is asked for. saving.c hands it the
 * jobs that write training states. */
#include "io/writer.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct writer {
    pthread_t thread;
    pthread_mutex_t mutex; /* of everything below */
    pthread_cond_t queued; /* a job, or that it is time to end */
    pthread_cond_t idle;
    struct writer_job *first;
    struct writer_job **last; /* where the next one is linked in */
    bool busy;                /* a job is running */
    bool ending;
    status failure;
    int failure_number;
    char *sentence; /* NULL if there was no memory for it */
};

/* The sentence is this thread's own: it is carried over. */
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
        while (writer->first == NULL && !writer->ending)
            pthread_cond_wait(&writer->queued, &writer->mutex);
        struct writer_job *job = writer->first;
        if (job == NULL)
            break;
        writer->first = job->next;
        if (writer->first == NULL)
            writer->last = &writer->first;
        writer->busy = true;
        pthread_mutex_unlock(&writer->mutex);
        status result = job->run(job);
        pthread_mutex_lock(&writer->mutex);
        keep_failure(writer, result);
        writer->busy = false;
        if (writer->first == NULL)
            pthread_cond_broadcast(&writer->idle);
    }
    pthread_mutex_unlock(&writer->mutex);
    return NULL;
}

/* Signals go to the threads that the process has handlers for; a write here isn't interrupted by one. */
static int start(struct writer *writer)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&writer->thread, NULL, run_jobs, writer);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

static void destroy_queue(struct writer *writer)
{
    pthread_cond_destroy(&writer->idle);
    pthread_cond_destroy(&writer->queued);
    pthread_mutex_destroy(&writer->mutex);
    free(writer->sentence);
    free(writer);
}

status writer_create(struct writer **writer)
{
    *writer = NULL;
    struct writer *created = calloc(1, sizeof *created);
    if (created == NULL)
        return fail(STARPULLM_OUT_OF_MEMORY, "a writer could not be allocated");
    created->last = &created->first;
    pthread_mutex_init(&created->mutex, NULL);
    pthread_cond_init(&created->queued, NULL);
    pthread_cond_init(&created->idle, NULL);
    int error = start(created);
    if (error != 0) {
        destroy_queue(created);
        return fail(STARPULLM_OUT_OF_MEMORY, "the writer's thread could not be started (error %d)", error);
    }
    pthread_setname_np(created->thread, "starpullm-write");
    *writer = created;
    return STARPULLM_OK;
}

void writer_destroy(struct writer *writer)
{
    if (writer == NULL)
        return;
    pthread_mutex_lock(&writer->mutex);
    writer->ending = true;
    pthread_cond_signal(&writer->queued);
    pthread_mutex_unlock(&writer->mutex);
    pthread_join(writer->thread, NULL);
    destroy_queue(writer);
}

void writer_enqueue(struct writer *writer, struct writer_job *job)
{
    job->next = NULL;
    pthread_mutex_lock(&writer->mutex);
    *writer->last = job;
    writer->last = &job->next;
    pthread_cond_signal(&writer->queued);
    pthread_mutex_unlock(&writer->mutex);
}

/* With the mutex held. */
static status report_failure(struct writer *writer)
{
    status failure = writer->failure;
    if (failure == STARPULLM_OK)
        return STARPULLM_OK;
    const char *sentence = writer->sentence != NULL ? writer->sentence : "writing failed; no memory for the reason";
    fail_again(failure, writer->failure_number, sentence);
    free(writer->sentence);
    writer->sentence = NULL;
    writer->failure = STARPULLM_OK;
    return failure;
}

status writer_status(struct writer *writer)
{
    pthread_mutex_lock(&writer->mutex);
    status result = report_failure(writer);
    pthread_mutex_unlock(&writer->mutex);
    return result;
}

status writer_wait(struct writer *writer)
{
    pthread_mutex_lock(&writer->mutex);
    while (writer->first != NULL || writer->busy)
        pthread_cond_wait(&writer->idle, &writer->mutex);
    status result = report_failure(writer);
    pthread_mutex_unlock(&writer->mutex);
    return result;
}
