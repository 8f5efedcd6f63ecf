/* A thread of our own that does jobs one after the other, so that whoever hands them over needn't wait for a disk.
 * saving.c gives it the writing of training states; it knows nothing of files or of StarPU.
 *
 * A job belongs to the caller, is linked into the queue as it is, and may be freed from inside its own run(): handing
 * one over allocates nothing and can't fail, so that it can be done in a callback that may neither fail nor wait. */
#ifndef STARPULLM_WRITER_H
#define STARPULLM_WRITER_H

#include "status.h"

struct writer;

struct writer_job {
    status (*run)(struct writer_job *job); /* runs whether or not an earlier job failed */
    struct writer_job *next;               /* the queue's */
};

/* The thread takes over the calling one's processors, so this is called where no worker is bound to one. It takes no
 * signals. */
status writer_create(struct writer **writer);

/* Does what is queued, then ends the thread. A failure that nothing has asked for is lost. NULL is allowed. */
void writer_destroy(struct writer *writer);

/* From any thread, jobs included. */
void writer_enqueue(struct writer *writer, struct writer_job *job);

/* The first failure since one was last reported, with its sentence and errno value, in the calling thread. */
status writer_status(struct writer *writer);

/* The same, once the queue is empty and the last job has returned. Not from a job. */
status writer_wait(struct writer *writer);

#endif
