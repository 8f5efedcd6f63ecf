/* The writer's thread: order, failures, and jobs from several threads. */
#include <pthread.h>
#include <stdatomic.h>

#include "io/writer.h"
#include "states.h"

struct note {
    struct writer_job job;
    struct writer *writer;
    int number;
    status result;
    int *order; /* written behind the last number */
    struct note *then;
};

static int noted;

static status note_down(struct writer_job *job)
{
    struct note *note = (struct note *)job;
    if (note->order != NULL)
        note->order[noted++] = note->number;
    if (note->then != NULL)
        writer_enqueue(note->writer, &note->then->job);
    if (note->result == STARPULLM_OK)
        return STARPULLM_OK;
    return note->result == STARPULLM_FILE_ERROR ? fail_errno(note->result, ENOSPC, "note %d", note->number)
                                                : fail(note->result, "note %d", note->number);
}

static atomic_int counted;

static status count_and_free(struct writer_job *job)
{
    atomic_fetch_add(&counted, 1);
    free(job);
    return STARPULLM_OK;
}

static void *enqueue_many(void *argument)
{
    for (int i = 0; i < 1000; i++) {
        struct writer_job *job = must(malloc(sizeof *job));
        job->run = count_and_free;
        writer_enqueue(argument, job);
    }
    return NULL;
}

static atomic_int late;

static void *enqueue_late(void *argument)
{
    struct note *note = argument;
    usleep(20000);
    atomic_store(&late, 1);
    writer_enqueue(note->writer, &note->job);
    writer_expect(note->writer, -1);
    return NULL;
}

void test_writer(void)
{
    struct writer *writer;
    struct note notes[6];
    int order[6];
    pthread_t threads[4];
    WORKS(writer_create(&writer));
    WORKS(writer_wait(writer));
    for (int i = 0; i < 6; i++)
        notes[i] = (struct note){.job = {.run = note_down}, .writer = writer, .number = i, .order = order};
    notes[1].result = STARPULLM_FILE_ERROR;
    notes[2].result = STARPULLM_INVALID_STATE;
    notes[4].then = &notes[5]; /* from a job */
    writer_expect(writer, 6);
    for (int i = 0; i < 5; i++)
        writer_enqueue(writer, &notes[i].job);
    REFUSED(writer_wait(writer), STARPULLM_FILE_ERROR, "note 1: No space left on device"); /* the first */
    CHECK(last_error_number() == ENOSPC);
    CHECK(noted == 6 && order[5] == 5);
    for (int i = 0; i < 5; i++)
        CHECK(order[i] == i);
    WORKS(writer_wait(writer)); /* once */
    notes[3].result = STARPULLM_OUT_OF_MEMORY;
    notes[3].order = NULL;
    writer_expect(writer, 1);
    writer_enqueue(writer, &notes[3].job);
    REFUSED(writer_wait(writer), STARPULLM_OUT_OF_MEMORY, "note 3");

    /* An expected job that isn't enqueued yet is waited for; one that is expected no more isn't. */
    notes[0].order = NULL;
    writer_expect(writer, 2);
    CHECK(pthread_create(&threads[0], NULL, enqueue_late, &notes[0]) == 0);
    WORKS(writer_wait(writer));
    CHECK(atomic_load(&late) == 1);
    pthread_join(threads[0], NULL);
    WORKS(writer_wait(writer));

    writer_expect(writer, 4000);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, enqueue_many, writer) == 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    writer_destroy(writer); /* does what is queued first */
    CHECK(atomic_load(&counted) == 4000);
    writer_destroy(NULL);
}

struct save_job {
    struct writer_job job;
    struct training_state_meta meta;
    bool released;
};

static status save_in_job(struct writer_job *job)
{
    struct save_job *save_job = (struct save_job *)job;
    status result = write_file("root", &save_job->meta, false);
    save_job->released = true;
    return result;
}

/* A disk that fills up in the middle of a save that nobody waits for. */
void test_failing_in_background(void)
{
    struct writer *writer;
    struct save_job first = {{save_in_job, NULL}, meta_of(&tiny, 7, 0, 1), false};
    struct save_job second = {{save_in_job, NULL}, meta_of(&tiny, 8, 0, 1), false};
    struct save_job third = {{save_in_job, NULL}, meta_of(&tiny, 9, 0, 1), false};
    WORKS(writer_create(&writer));
    writer_expect(writer, 1);
    writer_enqueue(writer, &first.job);
    WORKS(writer_wait(writer));
    fail_call(CALL_WRITE, 40, ENOSPC);
    writer_expect(writer, 1);
    writer_enqueue(writer, &second.job);
    REFUSED(writer_wait(writer), STARPULLM_FILE_ERROR, "root/step-000000000008/rank-00000-of-00001.state: byte ",
            "No space left on device");
    CHECK(last_error_number() == ENOSPC && second.released);
    CHECK(entries("root") == 1 && read_state("root") == 7);
    no_faults();
    writer_expect(writer, 1);
    writer_enqueue(writer, &third.job);
    WORKS(writer_wait(writer));
    CHECK(read_state("root") == 9);
    writer_destroy(writer);
    remove_all("root");
}
