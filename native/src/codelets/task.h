/* A task from its submission to its end: its argument block, its record in the trace, the messages between ranks that
 * it needs. */
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

/* What StarPU measures of an operation is kept by the name of its model, for later runs and other programs. Tasks that
 * instruments watch or delay have none. */
enum model { MODEL_STRICT, MODEL_BLAS, NUM_MODELS, NO_MODEL = NUM_MODELS };

struct task;
struct operation {
    int number; /* in operations.def */
    const char *name;
    void (*run)(const struct task *task, void *const buffers[], struct team team); /* in each thread of the team */
    char model_names[NUM_MODELS][96];
    struct starpu_perfmodel models[NUM_MODELS];
    struct starpu_codelet codelets[NUM_MODELS + 1]; /* [enum model]; made when the first task needs them */
};

/* The codelet of the tasks that an iteration adds. */
struct starpu_codelet *operation_codelet(struct operation *operation, const struct iteration *iteration);

struct access {
    struct data *data;
    enum starpu_data_access_mode mode;
    bool may_be_absent; /* its data may be NULL */
};

_Static_assert(TASK_MAX_ACCESSES <= STARPU_NMAXBUFS,
               "an operation has more accesses than this StarPU allows: configure it with --enable-maxbuffers");

/* The argument of a StarPU task, which frees it. */
struct task {
    const struct operation *operation;
    struct iteration *iteration;
    struct starpullm_trace_task *record; /* NULL: not traced */
    struct watch watch;                  /* its instrument is NULL: none */
    int num_buffers;
    const struct data *data[TASK_MAX_ACCESSES];
    int num_leaving;
    const struct data *leaving[TASK_MAX_ACCESSES]; /* of earlier tasks, which leave the memory after this one */
    union arguments arguments;
};

/* Inserts a task on the rank of its place, without the accesses that are absent. Arguments are copied. */
status insert_task(struct operation *operation, struct task_place place, struct access *accesses, size_t num_accesses,
                   const union arguments *arguments);

/* Copies the arguments, and tells the recorder and the instruments of the task, if there are any. The task keeps a
 * reference to the loss among them, if there is one, which its kernel releases. */
status task_create(struct task **task, const struct operation *operation, struct task_place place,
                   const struct access *accesses, size_t num_accesses, const union arguments *arguments);

/* The buffer of one of the task's data; NULL of NULL. */
void *task_buffer(const struct task *task, const struct data *data, void *const buffers[]);

/* Adds a task or a transfer to the trace; *record is NULL if nothing is traced. */
status task_record(struct starpullm_trace_task **record, int operation_number, struct task_place place,
                   const struct access *accesses, size_t num_accesses);

/* Destroys a task that won't run on this rank. */
void task_destroy(struct task *task);

/* The callback of a task that has run. */
void task_done(void *task);

/* Over ranks, a task's rank gets what the task reads and the rank doesn't own: transfer_mpi.c.
 *
 * Before a task is submitted, on every rank that has to do with it: submits the transfers. *created is a StarPU task
 * with codelet, accesses and priority on the rank of the place, and NULL on the others. */
status transfers_before_task(struct starpu_task **created, struct operation *operation, struct task_place place,
                             const struct access *accesses, size_t num_accesses);

/* After it, on the same ranks: what was received before is no longer valid where the task has changed it. */
status transfers_after_task(struct operation *operation, struct task_place place, const struct access *accesses,
                            size_t num_accesses);
