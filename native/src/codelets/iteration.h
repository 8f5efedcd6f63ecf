/* One iteration (a step, an evaluation, a forward pass): counts its unfinished tasks, so that others can wait for them.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "kernels/team.h"
#include "trace/record.h"

/* The first failure of a task of the session, or of the disk. */
status check_tasks(struct failure *failure);

/* What follows an access of a step, by the plan of offloading: AFTER_EVICT is to be written early, and evicted once
 * the disk has had time for that. */
enum after_access { AFTER_NOTHING, AFTER_WRITE_EARLY, AFTER_EVICT, AFTER_INVALIDATE };

/* After task t of a step data[first[t]] to data[first[t + 1] - 1] are fetched. */
struct fetches {
    size_t *first; /* NULL: none */
    struct data **data;
};

enum { MAX_EVICTIONS = 64, TASKS_UNTIL_WRITTEN = 16 };
struct offload_plan {
    uint8_t *after; /* enum after_access of each access of a step, in order */
    struct fetches fetches;
    /* The next to be evicted; a ring of the last ones. */
    struct {
        struct data *data;
        int64_t since; /* number of the task that it follows */
    } evictions[MAX_EVICTIONS];
    size_t first, end;     /* of those that have come so far */
    int64_t tasks;         /* so far */
    int64_t written, read; /* bytes that a step which follows another moves */
};

struct iteration {
    int64_t number;                /* among the session's, from 0 */
    struct recorder *recorder;     /* NULL: not traced */
    struct instrument *instrument; /* NULL: no instruments; needs the recorder */
    struct hold *_Atomic hold;    /* NULL: tasks may run; needs the recorder. Whoever waits for the loss reads it too */
    bool on_paper;                /* tasks are recorded and not submitted; needs the recorder */
    struct offload_plan *plan;    /* NULL: nothing follows an access */
    size_t tasks, accesses;       /* so far */
    struct failure *failure;      /* of its session's tasks */
    int64_t submitted, exchanged; /* tasks of this rank; of others, of which it has sent or received data; so far */
    atomic_int unfinished;        /* tasks, and 1 more while tasks are being submitted */
    pthread_mutex_t mutex;
    pthread_cond_t finished;
};

void iteration_init(struct iteration *iteration, struct recorder *recorder, struct failure *failure);
void iteration_destroy(struct iteration *iteration);

void iteration_open(struct iteration *iteration, int64_t number);
void iteration_add_task(struct iteration *iteration);
void iteration_task_done(struct iteration *iteration); /* called once more when all tasks have been submitted */
void iteration_wait(struct iteration *iteration);

/* ---- loss_future.c: the mean loss of an iteration, which its caller gets at once, and report_loss sets ---- */

/* With one reference, the creator's; NULL if there is no memory. The last release frees it. */
struct starpullm_loss *loss_future_create(const struct iteration *iteration);
void loss_future_retain(struct starpullm_loss *loss);
void loss_future_release(struct starpullm_loss *loss); /* NULL: does nothing */

/* The operation report_loss: makes `loss` ready, with the value or with a failure of a task if there was one so far,
 * and releases it. */
void report_loss(const float *mean, struct starpullm_loss *loss, struct failure *failure, struct team team);
