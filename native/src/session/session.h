/* What the files of this folder share: the session, and the few functions that one file offers another. The exported
 * functions of a session are spread over these files. */
#pragma once

#include "codelets/hold.h"
#include "graph/graph.h"
#include "instrument/instrument.h"
#include "io/training_state.h"
#include "runtime/runtime.h"

struct starpullm_session {
    struct starpullm_runtime *runtime; /* NULL: not entered yet */
    int64_t batch_size;                /* sequences of this rank's pipeline */
    struct workload work;
    struct adamw_options adamw; /* of a step that gives no learning rate */
    float learning_rate;        /* of the last update */
    struct handles *handles;
    struct recorder *recorder;     /* NULL: not traced */
    struct instrument *instrument; /* NULL: none */
    struct hold *hold;             /* NULL: tasks may run */
    int64_t first_held;            /* number of the first iteration that is held */
    struct hold_edge *edges;       /* of the last hold */
    size_t num_edges;
    struct iteration *iterations; /* [slot] */
    int slots;
    int64_t submitted; /* number of iterations */
    int64_t updates;   /* number of steps among them, and before the state that the session resumed from */
    enum starpullm_arithmetic arithmetic; /* of its steps, and of those before the state that it resumes from */
    bool broken;                          /* a submission failed half way */
    fenv_t callers;                       /* floating-point environment, during a submission */
    struct disk_share share;              /* of the disk; without a number if there is none */
    struct offload_plan plan;             /* of its steps; without accesses if there is none */
    struct failure failure;               /* of a task */
    struct saving *saving;                /* of training states */
};

/* options.c: refuses options that this model and the running runtime can't serve. */
status session_check_options(const struct starpullm_session_options *options, const model_config *config);
/* A setting of AdamW other than the betas. */
status session_check_number(const char *name, float value);

/* workload.c: of the options, those that say what is computed. The ranks are the layout's, with so many workers. */
status workload_check(const struct starpullm_session_options *options, const model_config *config, int64_t ranks);
status workload_create(struct workload *work, const struct starpullm_session_options *options,
                       const model_config *config, const struct runtime_layout *layout);
void workload_destroy(struct workload *work);
status session_check_range(const char *name, int64_t value, int64_t least, int64_t most);

/* plan.c: records the tasks of so many steps, without submitting them. */
status record_on_paper(const struct workload *work, const struct handles *handles, int steps,
                       struct recorder *recorder);

/* trace.c: copies what is recorded, and the handles. */
status trace_create(const struct recorder *recorder, const struct handles *handles, struct starpullm_trace **trace);

/* offload.c: refuses a limit, or a device's memory, that is too low; with a limit, takes the session's share of the
 * disk, and plans its steps. */
status session_prepare_memory(struct starpullm_session *session);

/* submit.c */
status session_check_usable(const struct starpullm_session *session);
/* Lets held tasks run, and waits for all tasks. */
void session_wait_all(struct starpullm_session *session);
/* Comes before an access to a buffer from outside of tasks: the audit doesn't see what a task does to an open buffer,
 * so none of the session may be running. */
void session_wait_if_audited(struct starpullm_session *session);

/* read.c: collective, every rank gets the values of a parameter, m or v. */
status session_read_parameter(const struct starpullm_session *session, int32_t group, int32_t index, int32_t layer,
                              int64_t offset, int64_t count, float *values);

/* checkpoint.c: `state` is what the session resumes from; NULL: it starts from the checkpoint at `path`. */
status session_load(struct starpullm_session *session, const char *path, struct training_state *state);
/* save_state.c */
status saving_create(struct starpullm_session *session);
/* Waits for the last save; NULL is allowed. */
void saving_destroy(struct saving *saving);
