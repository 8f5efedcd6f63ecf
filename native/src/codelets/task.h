/* A task from its submission to its end: its accesses, its argument block, its record in the trace, the messages
 * between ranks that it needs. */
#pragma once

#include <starpu.h>

#include "codelets/operation.h"
#include "instrument/instrument.h"

enum {
#define OPERATION(name, operands, values) OPERATION_##name,
#define MESSAGE(name) OPERATION_##name,
#include "codelets/operations.def"
    NUM_OPERATIONS
};

union arguments {
#define OPERATION(name, operands, values) struct name name;
#include "codelets/operations.def"
};

/* A model for each enum starpullm_arithmetic: what StarPU measures of an operation is kept by the model's name, for
 * later runs and other programs. Tasks that instruments watch or delay have none. */
enum { NUM_MODELS = STARPULLM_FUSED + 1, NO_MODEL = NUM_MODELS };

struct task;
struct operation {
    int number; /* in operations.def */
    const char *name;
    void (*run)(const struct task *task, void *const buffers[], struct team team); /* in each thread of the team */
    char model_names[NUM_MODELS][96];
    struct starpu_perfmodel models[NUM_MODELS];
    struct starpu_codelet
        codelets[NUM_MODELS + 1]; /* [enum starpullm_arithmetic]; made when the first task needs them */
};
extern struct operation operations[NUM_OPERATIONS];

struct access {
    struct data *data; /* NULL: this rank doesn't have them, as the task runs on another */
    enum starpu_data_access_mode mode;
};

_Static_assert(TASK_MAX_ACCESSES <= STARPU_NMAXBUFS,
               "an operation has more accesses than this StarPU allows: configure it with --enable-maxbuffers");

/* The argument of a StarPU task, which frees it. */
struct task {
    struct operation *operation;
    struct task_attributes attributes;
    int num_accesses;
    struct access accesses[TASK_MAX_ACCESSES]; /* in the order of the operands, without those that are absent */
    union arguments arguments;
    struct record record;
    int num_evicted;
    const struct data *evicted[TASK_MAX_ACCESSES]; /* data of earlier tasks, after this one */
};

/* Inserts a task on the rank of its attributes. It is copied. */
status insert_task(struct task *task);

/* Copies a task, and tells the recorder of it, if there is one. The copy keeps a reference to the loss among its
 * arguments, if there is one, which its kernel releases. */
status task_create(struct task **created, const struct task *task);
/* Destroys a task that won't run on this rank. */
void task_destroy(struct task *task);

/* Adds a task or a transfer to the trace, if tasks are traced. */
status task_record(struct record *record, const struct task *task);

/* Record and instruments of a task that a worker runs; the buffers are in the order of its accesses. */
void task_begin(struct task *task, void *const buffers[]);
void task_end(struct task *task, void *const buffers[]);

/* What there is in the order of the accesses, of an operand's data; NULL of NULL. */
void *task_buffer(const struct task *task, const struct data *data, void *const buffers[]);

/* ---- run.c: the worker's side ---- */

/* The codelet of a task. */
struct starpu_codelet *task_codelet(const struct task *task);

/* The callback of a task that has run. */
void task_done(void *task);

/* ---- on_device.c: a device's side ---- */

/* The device's function of an operation; NULL: it has none. */
typedef void device_function(void *interfaces[], void *task);
device_function *device_function_of(int operation);

/* ---- transfer_mpi.c: over ranks, a task's rank gets what the task reads and the rank doesn't own ---- */

/* Before a task is submitted, on every rank that has to do with it: submits the transfers. *created is a StarPU task
 * with codelet, accesses and priority on the rank of the task, and NULL on the others. */
status transfers_before_task(struct starpu_task **created, const struct task *task);

/* After it, on the same ranks: what was received before is no longer valid where the task has changed it. */
status transfers_after_task(const struct task *task);
