/* A thread that does jobs one after the other, so that the threads that enqueue them needn't wait for a disk. It knows
 * nothing of files or of StarPU.
 *
 * A job belongs to the caller and is linked into the queue as it is: enqueueing allocates nothing and can't fail, so a
 * callback that may neither fail nor wait can do it. A job may be freed from inside its own run(). */
#ifndef STARPULLM_WRITER_H
#define STARPULLM_WRITER_H

#include "status.h"

struct writer;

struct writer_job {
    status (*run)(struct writer_job *job); /* runs whether or not an earlier job failed */
    struct writer_job *next;               /* the queue's */
};

/* The thread takes over the calling thread's processors, so create it where no worker is bound. It takes no signals. */
status writer_create(struct writer **writer);

/* Waits for all expected jobs, then ends the thread. A failure that nothing has asked for is lost. NULL is allowed. */
void writer_destroy(struct writer *writer);

/* `count` more jobs will be enqueued (fewer, if it is negative). Each job has to be expected before it is enqueued. */
void writer_expect(struct writer *writer, int count);

/* From any thread, jobs included. */
void writer_enqueue(struct writer *writer, struct writer_job *job);

/* Waits for all expected jobs. Returns the first failure since one was last reported, with its sentence and errno
 * value. Not from a job. */
status writer_wait(struct writer *writer);

#endif
