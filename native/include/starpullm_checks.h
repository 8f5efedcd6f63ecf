/* What watches and validates training; starpullm.h says how functions fail, and what the letters are. */
#pragma once

#include "starpullm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- The kernels alone, to validate a level ---- */

/* Name of the index-th kernel, for example matmul_forward; NULL past the last. */
STARPULLM_API const char *starpullm_kernel_name(size_t index);

struct starpullm_kernel_info {
    size_t size;
    const char *parameters; /* in parentheses, as C declares them: outputs, inputs, sizes, and the team */
    const void *function;   /* which takes these parameters, and returns nothing */
};

/* A kernel of a SIMD level, or of "platform": those of "ref", with the elementary functions of the platform's libm
 * instead of the library's own. It is a function on the caller's memory. Arrays are dense; docs/numerics.md has the
 * formulas, native/src/kernels/kernels.def the shapes. Of the parameters' types, enum sum_start is 0 if the output
 * isn't read, and 1 if a sum continues from its present value. struct adamw_options has the five floats of
 * starpullm_session_options in their order. struct team has two ints, the number of a thread and how many threads
 * there are, and a pointer, NULL; the call computes this thread's part of the outputs, in the thread's own
 * floating-point environment. */
STARPULLM_API enum starpullm_status starpullm_kernel(const char *level, const char *name,
                                                     struct starpullm_kernel_info *info);

/* From now on the blocks of matmuls are those for a second-level cache of so many bytes; no bit of a result depends on
 * them. Not while kernels run. starpullm_machine_info() has the present size. */
STARPULLM_API enum starpullm_status starpullm_fit_caches(size_t l2_cache);

/* Measures for so many seconds the most operations per second that the calling thread can do, in 10^9: it multiplies
 * and adds in registers with the vectors of the SIMD level in use. fused 0: each operation is rounded, as in the
 * kernels. 1: multiplication and addition in one instruction; *gflops is 0 if the level has none. */
STARPULLM_API enum starpullm_status starpullm_peak_gflops(double *gflops, int32_t fused, double seconds);

/* How the calling thread's floating-point environment differs from the one that strict results need (round to nearest,
 * no flush-to-zero, no denormals-are-zero), as a sentence; "" if it doesn't. Sessions set their own. */
STARPULLM_API const char *starpullm_float_environment(void);

/* Why starpullm_runtime_create refuses STARPULLM_SIMD or STARPULLM_L2_CACHE, in a sentence; empty if it doesn't. */
STARPULLM_API const char *starpullm_kernels_refusal(void);

/* ---- Trace ---- */

enum starpullm_access_mode {
    STARPULLM_READ = 1,
    STARPULLM_WRITE = 2,
    STARPULLM_READ_WRITE = 3,
    STARPULLM_REDUX = 4 /* adds to the value; such accesses in a row commute */
};

struct starpullm_trace_task {
    int64_t id;   /* in submission order, from 0 */
    int64_t step; /* the submission (step, evaluation or forward) that it belongs to, from 0 */
    int32_t operation;
    int32_t sub_batch, layer; /* -1 where there is none */
    int32_t rank, worker;     /* worker -1: hasn't started */
    int32_t num_accesses;
    int32_t priority;                    /* of the tasks that are ready, one of the highest runs first */
    int64_t first_access;                /* index into the accesses */
    int64_t submit_ns, start_ns, end_ns; /* monotonic clock */
};

struct starpullm_trace_access {
    int32_t handle;
    int32_t mode; /* enum starpullm_access_mode */
};

struct starpullm_handle_info {
    char name[64]; /* params/qkvw[3]; activations/att[0]#1 (of sub-batch 1); grads/wte%4/rank1 (tile 4 on rank 1) */
    int64_t bytes;
    int32_t owner; /* the rank that keeps the value */
};

/* Name of the index-th operation, NULL past the last. */
STARPULLM_API const char *starpullm_operation_name(int32_t index);

/* Tasks in the order of submission, their accesses, and all ranks' handles, the same on every rank. */
struct starpullm_trace {
    size_t num_tasks, num_accesses, num_handles;
    struct starpullm_trace_task *tasks;
    struct starpullm_trace_access *accesses;
    struct starpullm_handle_info *handles;
};
STARPULLM_API void starpullm_trace_destroy(struct starpullm_trace **trace); /* makes *trace NULL */

/* Waits for everything that was submitted, and copies what is recorded of it. */
STARPULLM_API enum starpullm_status starpullm_session_trace(starpullm_session *session, struct starpullm_trace **trace);
/* Removes all recorded tasks and findings. */
STARPULLM_API enum starpullm_status starpullm_session_trace_clear(starpullm_session *session);

/* This rank's share of the session. */
struct starpullm_session_share {
    size_t size;
    int64_t handles;   /* that are registered with StarPU */
    int64_t submitted; /* tasks so far that run here */
    int64_t exchanged; /* messages of gradients so far, and others' tasks whose data it sent, received or discarded */
    int64_t planned_written, planned_read; /* by the plan of offloading: bytes of a step that follows another */
};
STARPULLM_API enum starpullm_status starpullm_session_share(const starpullm_session *session,
                                                            struct starpullm_session_share *share);

/* ---- The task graph on paper ---- */

/* The tasks of training steps on any number of ranks, and the data that they access: written down as they would be
 * submitted, without a runtime, buffers or other ranks. No task has a worker, a start or an end.
 *
 * options: those of a session with these tasks; what isn't about tasks is ignored. Not `redux`, to which StarPU adds
 * tasks of its own. workers: of each rank. */
STARPULLM_API enum starpullm_status starpullm_plan_create(const struct starpullm_model_config *config,
                                                          const struct starpullm_session_options *options,
                                                          int32_t ranks, int32_t workers, int32_t steps,
                                                          struct starpullm_trace **plan);

/* ---- StarPU's task graph ---- */

/* Waits for everything that was submitted. Tasks that are submitted from now on don't run before
 * starpullm_session_release(), at most steps_in_flight submissions of them. Until then, functions that would wait for
 * tasks, starpullm_loss_wait() too, return STARPULLM_INVALID_STATE; only starpullm_session_wait() and _destroy()
 * release the tasks themselves. On one rank, with trace, without offload, STARPULLM_AUDIT and STARPULLM_POISON. */
STARPULLM_API enum starpullm_status starpullm_session_hold(starpullm_session *session);

/* Asks StarPU which of the held tasks depend on which, and lets them run. Gives the number of such pairs. */
STARPULLM_API enum starpullm_status starpullm_session_release(starpullm_session *session, size_t *num_edges);

/* The pairs that the last release found: the numbers in the trace of a task and of one that depends on it. Numbers
 * below 0 are StarPU's own tasks. */
STARPULLM_API enum starpullm_status
starpullm_session_runtime_edges(starpullm_session *session, int64_t *edges /* (num_edges, 2) */, size_t num_edges);

/* ---- Findings of the instruments ---- */

enum starpullm_finding_kind {
    STARPULLM_UNDECLARED_READ = 1, /* the first access to count pages was a read that isn't declared */
    STARPULLM_UNDECLARED_WRITE = 2,
    STARPULLM_READ_NEVER_HAPPENED = 3, /* declared, but no page was read before it was written */
    STARPULLM_WRITE_NEVER_HAPPENED = 4,
    STARPULLM_NOT_WRITTEN = 5,  /* count elements that the task declared to write, and didn't */
    STARPULLM_POISON_SPREAD = 6 /* count elements that the task computed from elements that nothing had written */
};

struct starpullm_finding {
    int64_t task; /* its number in the trace; -1: the access wasn't a task's */
    int32_t handle;
    int32_t kind;   /* enum starpullm_finding_kind */
    int64_t offset; /* of the first, in bytes in the buffer; may be beyond its end, in the last page */
    int64_t count;
};

/* Waits for everything that was submitted, then counts the findings since the last
 * starpullm_session_trace_clear(). STARPULLM_INVALID_STATE in a session without instruments. */
STARPULLM_API enum starpullm_status starpullm_session_findings_size(starpullm_session *session, size_t *count);
/* What the instruments have looked at since the last starpullm_session_trace_clear(). Without findings, only these
 * numbers show that they did. */
struct starpullm_instrument_counts {
    size_t size;
    int64_t pages;            /* audit: the tasks' first reads of a page, and first writes */
    int64_t poisoned;         /* elements of what a task declares to write that held the NaN before it */
    int64_t poisoned_between; /* the same of buffers between submissions */
    int64_t searched;         /* elements that were searched for the NaN after a task */
};
/* Waits for everything that was submitted. STARPULLM_INVALID_STATE in a session without instruments. */
STARPULLM_API enum starpullm_status starpullm_session_instrument_counts(starpullm_session *session,
                                                                        struct starpullm_instrument_counts *counts);

/* Copies the findings; count must be the number that starpullm_session_findings_size() has given. */
STARPULLM_API enum starpullm_status starpullm_session_findings_read(starpullm_session *session,
                                                                    struct starpullm_finding *findings, size_t count);

#ifdef __cplusplus
}
#endif
