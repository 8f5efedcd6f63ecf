/* The C ABI of starpullm: GPT-2 training as one StarPU task graph, with llm.c's bits.
 *
 * A function that can fail returns a status; STARPULLM_OK is 0. starpullm_last_error() describes the thread's last
 * failure. The library never prints and never exits. Structs that callers fill begin with their size.
 *
 * Letters: B batch, T sequence length, C channels, NH heads, L layers, V vocabulary, Vp padded vocabulary,
 * maxT the longest sequence. Arrays are dense, row-major, in the machine's own byte order. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define STARPULLM_API __attribute__((visibility("default")))

/* Raised whenever a struct or a function of this header changes its meaning. */
#define STARPULLM_ABI_VERSION 5

enum starpullm_status {
    STARPULLM_OK = 0,
    STARPULLM_INVALID_ARGUMENT = 1, /* an argument or option that isn't accepted */
    STARPULLM_INVALID_TOKEN = 2,    /* a token id out of range */
    STARPULLM_INVALID_FILE = 3,     /* a file that doesn't have its format */
    STARPULLM_FILE_ERROR = 4,    /* the operating system refused to read or write (see starpullm_last_error_number) */
    STARPULLM_INVALID_STATE = 5, /* a call that isn't possible now: a second runtime, a closed one */
    STARPULLM_OUT_OF_MEMORY = 6,
    STARPULLM_RUNTIME_FAILURE = 7 /* StarPU refused or failed */
};

/* The calling thread's last failure as one sentence; "" if there was none. Valid until the thread's next call. */
STARPULLM_API const char *starpullm_last_error(void);

/* That failure's errno value; 0 if it has none. */
STARPULLM_API int starpullm_last_error_number(void);

STARPULLM_API int starpullm_abi_version(void);

/* ---- What was built, and what it runs on ---- */

struct starpullm_build_info {
    size_t size;
    const char *version;        /* of starpullm */
    const char *compiler;       /* name and version */
    const char *compiler_flags; /* of the files with arithmetic */
    const char *build_type;
    const char *starpu_version; /* of the headers that it was compiled against */
    const char *starpu_prefix;  /* where they were found */
    int32_t mpi;                /* 1 if ranks are supported */
};
STARPULLM_API enum starpullm_status starpullm_build_info(struct starpullm_build_info *info);

struct starpullm_machine_info {
    size_t size;
    int32_t cores, processing_units, numa_nodes; /* as hwloc reports them, HWLOC_SYNTHETIC included */
    int32_t synthetic;                           /* 1 if the topology isn't the real machine's */
    const char *processor;                       /* hwloc's CPUModel, or "" */
    const char *simd_level;                      /* of the kernels in use */
    const char *starpu_version;                  /* of the StarPU that is loaded */
    int32_t starpu_max_workers;                  /* CPU workers that StarPU was built for */
    int32_t starpu_max_contexts;                 /* its scheduling contexts; a worker of several threads needs one */
    int32_t starpu_max_nodes;                    /* memory nodes that StarPU was built for */
    int32_t starpu_parallel_workers;             /* 1 if it was built for workers of several threads */
    size_t l1_cache, l2_cache;                   /* bytes, of L2 a hardware thread's share: matmuls' blocks follow */
};
STARPULLM_API enum starpullm_status starpullm_machine_info(struct starpullm_machine_info *info);

/* Name of StarPU's index-th scheduler, NULL past the last. */
STARPULLM_API const char *starpullm_scheduler_name(size_t index);

/* The libm that the kernels use. function is expf, tanhf, coshf or logf; of powf, in are the bases. */
STARPULLM_API enum starpullm_status starpullm_libm(const char *function, float *out, const float *in, size_t count);
STARPULLM_API enum starpullm_status starpullm_libm_powf(float *out, const float *base, const float *exponent,
                                                        size_t count);

/* Name of the index-th SIMD level of this machine and build, "ref" first and the best last; NULL past the last. */
STARPULLM_API const char *starpullm_simd_level_name(size_t index);

/* Name of the index-th function of libm that a SIMD level has a vector version of; NULL past the last. */
STARPULLM_API const char *starpullm_vector_libm_name(size_t index);

/* *used is 1 if the kernels use the vector version of a function, because it is known to give this libm's bits for all
 * 2^32 inputs, and 0 if they call libm's own. *fingerprint is a hash of sample results, which identifies the libm. */
STARPULLM_API enum starpullm_status starpullm_vector_libm(int32_t *used, uint64_t *fingerprint, const char *function);

/* Compares a level's vector version of a function with libm's for the inputs with bit patterns from begin to end - 1,
 * all NaNs being equal. Gives the number of inputs whose results differ, and the pattern of the first. */
STARPULLM_API enum starpullm_status starpullm_prove_libm(uint64_t *differences, uint32_t *first_difference,
                                                         const char *level, const char *function, uint64_t begin,
                                                         uint64_t end);

/* ---- The kernels alone, to validate a level ---- */

/* Name of the index-th kernel, for example matmul_forward; NULL past the last. */
STARPULLM_API const char *starpullm_kernel_name(size_t index);

struct starpullm_kernel_info {
    size_t size;
    const char *parameters; /* in parentheses, as C declares them: outputs, inputs, sizes, and the team */
    const void *function;   /* which takes these parameters, and returns nothing */
};

/* A kernel of a SIMD level, as a function on the caller's memory. docs/numerics.md has the formulas, kernels.def the
 * shapes. Of the parameters' types, enum sum_start is 0 if the output isn't read, and 1 if a sum continues. struct
 * adamw_options has the five floats of starpullm_session_options. struct team has two ints: a thread and how many there
 * are; the call computes this thread's part of the outputs, in the thread's own floating-point environment. */
STARPULLM_API enum starpullm_status starpullm_kernel(const char *level, const char *name,
                                                     struct starpullm_kernel_info *info);

/* From now on the blocks of matmuls are those for caches of so many bytes; no bit depends on it. No kernel may run. */
STARPULLM_API enum starpullm_status starpullm_fit_caches(size_t l1_cache, size_t l2_cache);

/* Measures for so many seconds the most operations per second of the calling thread, in 10^9, in registers of the SIMD
 * level in use. fused 1: multiplication and addition in one instruction; *gflops is 0 if the level has none. */
STARPULLM_API enum starpullm_status starpullm_peak_gflops(double *gflops, int32_t fused, double seconds);

/* How the calling thread's floating-point environment differs from the one that strict results need (round to nearest,
 * no flush-to-zero, no denormals-are-zero), as a sentence; "" if it doesn't. Kernels always set their own. */
STARPULLM_API const char *starpullm_float_environment(void);

struct starpullm_model_config {
    int32_t max_seq_len;       /* maxT */
    int32_t vocab_size;        /* V */
    int32_t num_layers;        /* L */
    int32_t num_heads;         /* NH */
    int32_t channels;          /* C */
    int32_t padded_vocab_size; /* Vp */
};

/* ---- Runtime ---- */

/* A running StarPU. One at a time in a process. */
typedef struct starpullm_runtime starpullm_runtime;

struct starpullm_runtime_options {
    size_t size;
    int32_t workers;            /* W */
    int32_t threads_per_worker; /* T */
    const char *scheduler;      /* one of starpullm_scheduler_name() */
    /* NULL: this process alone. Otherwise the Fortran handle of an MPI communicator (MPI_THREAD_MULTIPLE) whose ranks
     * run one task graph together. All make the same calls on runtime and session in the same order, with the same
     * options; only the partition may differ. If the creation of the runtime or of a session fails on some ranks, it
     * fails on all. After another call that has failed on one rank alone, the others may wait for ever. */
    const int32_t *communicator;
    /* NULL: the library's own matmuls, with llm.c's bits. Otherwise the shared library of a CBLAS, as a path or a name
     * for the dynamic linker: its matmuls are used until the runtime is destroyed, and no result is strict. */
    const char *blas_library;
};
STARPULLM_API enum starpullm_status starpullm_runtime_create(const struct starpullm_runtime_options *options,
                                                             starpullm_runtime **runtime);

/* The BLAS that computes the matmuls: file, name, version; "" if there is none. */
STARPULLM_API const char *starpullm_blas(void);

/* STARPULLM_INVALID_STATE while sessions are open on it. */
STARPULLM_API enum starpullm_status starpullm_runtime_destroy(starpullm_runtime *runtime);

struct starpullm_thread_info {
    int32_t worker, thread;        /* the thread's number in the worker */
    int32_t first_unit, num_units; /* that it is bound to: the system's number of the first; -1, 0 if unknown */
};

/* Where the partition's threads run, worker 0's first. An array of workers times threads_per_worker. */
STARPULLM_API enum starpullm_status starpullm_runtime_threads(starpullm_runtime *runtime,
                                                              struct starpullm_thread_info *threads, size_t count);

/* ---- Session: one model being trained ---- */

/* All calls on a session come from one thread at a time. */
typedef struct starpullm_session starpullm_session;

/* How the gradients of the sub-batches become one. S is the number of sub-batches of all ranks. */
enum starpullm_reduction {
    STARPULLM_REDUCTION_ORDERED = 0, /* one sum in order: the bits of the whole batch; one gradient per rank */
    STARPULLM_REDUCTION_TREE = 1,    /* a binary tree: the bits depend on S alone; S gradients over all ranks */
    STARPULLM_REDUCTION_REDUX = 2 /* StarPU's reduction: the bits vary, the error is bounded; one gradient per worker */
};

/* What the backward pass computes again, so that all blocks share it, instead of reading it. */
enum starpullm_recompute {
    STARPULLM_RECOMPUTE_NONE = 0,
    STARPULLM_RECOMPUTE_ATTENTION = 1, /* att and atty */
    STARPULLM_RECOMPUTE_BLOCK = 2      /* all in a block but residual3, which the next one reads */
};

enum starpullm_pass_kind { STARPULLM_FORWARD = 0, STARPULLM_BACKWARD = 1 };
struct starpullm_pass { /* of a sub-batch through a stage; kind is one of enum starpullm_pass_kind */
    int32_t kind, sub_batch, stage;
};

/* The blocks cut into stages, one on each rank, with the encoder before the first block and the head behind the last.
 * With `ordered`. More than one need as many ranks, which all submit the same batch. */
struct starpullm_pipeline {
    int32_t stages;
    const int32_t *blocks;               /* of each stage; NULL: by their cost */
    const struct starpullm_pass *passes; /* of a step in order; NULL: forward passes are activation_sets ahead */
    int64_t num_passes;
};

/* Watching a run, or disturbing it, for checks. All of them cost time, and none changes a result. */
enum starpullm_instrument {
    /* Memory is closed outside of tasks. The first access to a page is compared with what the task declared; a
     * difference is a finding, and the run goes on. On one rank with one worker of one thread, not with `redux`. */
    STARPULLM_AUDIT = 1,
    /* Buffers are filled with a signalling NaN: before a task, those that it declares to write; between submissions,
     * those whose values the next one doesn't need. What is left or computed from it is a finding. On one rank. */
    STARPULLM_POISON = 2,
    /* Every task waits before its kernel, for 0 to max_delay_us microseconds by delay_seed and its number. */
    STARPULLM_DELAY = 4
};

struct starpullm_session_options {
    size_t size;
    const char *checkpoint; /* parameters to start from; NULL if a training state is given */
    const char *resume; /* NULL, or a state to go on from: its folder, or that of several, whose newest one is taken */
    int64_t batch_size, seq_len;   /* of one rank, or pipeline: the whole batch is that of all; seq_len at most maxT */
    int64_t sub_batches;           /* likewise; divides batch_size */
    int64_t activation_sets;       /* likewise: so many sub-batches have buffers, and run, at a time; 0: all */
    int32_t reduction;             /* enum starpullm_reduction */
    int32_t weight_gradient_tiles; /* sums by rows of each weight's gradient, if ordered; 0: by model and workers */
    float learning_rate, beta1, beta2, eps, weight_decay;
    int32_t keep_activations; /* 1: every intermediate can be read back after a step */
    int32_t steps_in_flight;  /* the most submissions that are unfinished at a time; at least 1 */
    int32_t trace;            /* 1: record every task */
    int32_t instruments;  /* sum of enum starpullm_instrument; 0: none. They need the trace: findings name its tasks */
    int32_t max_delay_us; /* of STARPULLM_DELAY; at most a second */
    uint64_t delay_seed;  /* of STARPULLM_DELAY */
    int32_t recompute;    /* enum starpullm_recompute; not with keep_activations */
    int32_t reuse_weight_gradients; /* 1: the blocks have two gradients in turn; on one rank with one sub-batch */
    int64_t memory_limit;           /* bytes for buffers that the ranks of this machine share equally; 0: any number */
    const struct starpullm_pipeline *pipeline; /* NULL: one stage */
};
STARPULLM_API enum starpullm_status starpullm_session_create(starpullm_runtime *runtime,
                                                             const struct starpullm_session_options *options,
                                                             starpullm_session **session);

/* Waits for what was submitted, and frees everything but the losses that the caller still has. It can't report that the
 * last save failed: ask starpullm_session_wait_saved() before. */
STARPULLM_API void starpullm_session_destroy(starpullm_session *session);

STARPULLM_API enum starpullm_status starpullm_session_config(const starpullm_session *session,
                                                             struct starpullm_model_config *config);

/* A mean loss that is available once its tasks have run. Belongs to the caller. */
typedef struct starpullm_loss starpullm_loss;
STARPULLM_API enum starpullm_status starpullm_loss_wait(starpullm_loss *loss, float *value);
STARPULLM_API int starpullm_loss_ready(const starpullm_loss *loss);
STARPULLM_API void starpullm_loss_destroy(starpullm_loss *loss);

/* Submits forward, backward and update of one batch, and returns before they are done. Waits only while steps_in_flight
 * submissions are unfinished. Tokens are checked and copied first: if one is invalid, nothing has changed.
 * inputs and targets are (B,T). *learning_rate is that of this update, the same on all ranks; NULL: the session's. */
STARPULLM_API enum starpullm_status starpullm_session_submit_step(starpullm_session *session, const int32_t *inputs,
                                                                  const int32_t *targets, const float *learning_rate,
                                                                  starpullm_loss **loss);

/* Submits forward and loss only. */
STARPULLM_API enum starpullm_status starpullm_session_submit_evaluation(starpullm_session *session,
                                                                        const int32_t *inputs, const int32_t *targets,
                                                                        starpullm_loss **loss);

/* Submits forward up to the probabilities of inputs (B,T). */
STARPULLM_API enum starpullm_status starpullm_session_submit_forward(starpullm_session *session, const int32_t *inputs);

/* Waits for everything that was submitted. */
STARPULLM_API enum starpullm_status starpullm_session_wait(starpullm_session *session);

enum starpullm_group {
    STARPULLM_PARAMS = 0,
    STARPULLM_GRADS = 1,
    STARPULLM_M = 2,
    STARPULLM_V = 3,
    STARPULLM_ACTIVATIONS = 4,
    STARPULLM_ACTIVATION_GRADS = 5,
    STARPULLM_NUM_GROUPS = 6
};

/* How many tensors a group has; 0 if there is no such group. */
STARPULLM_API int32_t starpullm_tensor_count(int32_t group);

struct starpullm_tensor_info {
    size_t size;
    const char *name;
    int32_t instances; /* L if there is one per layer, else 1 */
    int32_t layered, num_dims;
    int64_t dims[4]; /* of one instance */
};

/* The group's index-th tensor of this session, in the order of the checkpoint (parameters) or of execution
 * (activations). STARPULLM_INVALID_ARGUMENT past the last. */
STARPULLM_API enum starpullm_status starpullm_session_tensor_info(const starpullm_session *session, int32_t group,
                                                                  int32_t index, struct starpullm_tensor_info *info);

/* Waits for the tasks that write the tensor, and copies count elements from offset on. Over ranks every rank gets them.
 * Fails if a task of the session has failed on this rank by then. STARPULLM_INVALID_STATE for activations and
 * gradients that the session doesn't keep. What no task has written yet is +0. */
STARPULLM_API enum starpullm_status starpullm_session_read_tensor(starpullm_session *session, int32_t group,
                                                                  int32_t index, int32_t layer, int64_t offset,
                                                                  int64_t count, float *values);

/* Writes the parameters after the last submitted step, to a temporary file in the same folder that is then renamed. On
 * failure the file of before is unchanged, unless the sentence says otherwise. */
STARPULLM_API enum starpullm_status starpullm_session_save_checkpoint(starpullm_session *session, const char *path);

/* ---- Training states: what a run resumes from (docs/formats.md) ---- */

struct starpullm_training_state_info {
    size_t size;
    char path[1024]; /* the state's own folder */
    struct starpullm_model_config config;
    int64_t step;                         /* number of updates before it */
    int64_t batches, batch_size, seq_len; /* batches read so far, and their size on all ranks together */
    int64_t seed;
    uint64_t data_id;
    int32_t ranks;         /* that wrote it; any number of ranks can resume from it */
    char passed_over[512]; /* if there are newer states that aren't complete: what is wrong with the newest; else "" */
    float learning_rate;   /* of the last update */
    float beta1, beta2, eps, weight_decay;
    int32_t blas; /* 1: a BLAS computed the matmuls of some of its steps, so its bits aren't strict */
};

/* Of the newest complete state in a folder, or of the one whose folder it is. */
STARPULLM_API enum starpullm_status starpullm_training_state_info(const char *path,
                                                                  struct starpullm_training_state_info *info);

struct starpullm_save_options {
    size_t size;
    const char *directory; /* of all states; each gets a folder in it */
    uint64_t run;          /* identifies the run: the same on all ranks and for all its states */
    int64_t batches, seed; /* the position in the data; stored for the caller, who gives it a meaning */
    uint64_t data_id;      /* likewise */
    int32_t keep;          /* how many of the newest states to keep, at least 1 */
};

/* Makes the directory unless it is there, and keeps other runs from saving into it until the session is destroyed: that
 * fails with STARPULLM_FILE_ERROR and EBUSY. STARPULLM_INVALID_ARGUMENT if the directory is itself a state, or has a
 * complete state of a later step than this session's, from which a run would resume instead of from this session's.
 * Each save does the same; before the first step, a run learns it before it computes. All ranks fail if one does. */
STARPULLM_API enum starpullm_status starpullm_session_claim_directory(starpullm_session *session, const char *directory,
                                                                      uint64_t run);

/* Starts saving parameters, m and v as they are after the last submitted step; each rank writes what it owns. Meanwhile
 * the next steps run; only the update of a tensor waits until it is on the disk. Waits for the previous save, and
 * reports its failure. Complete states stay. Claims the directory; another run's state of this step is refused:
 * STARPULLM_INVALID_ARGUMENT. */
STARPULLM_API enum starpullm_status starpullm_session_save_state(starpullm_session *session,
                                                                 const struct starpullm_save_options *options);

/* Waits until the last save is on the disk. Returns its failure unless that has been reported. */
STARPULLM_API enum starpullm_status starpullm_session_wait_saved(starpullm_session *session);

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
    size_t size;
    char name[64]; /* params/qkvw[3]; activations/att[0]#1 (of sub-batch 1); grads/wte%4/rank1 (tile 4 on rank 1) */
    int64_t bytes;
    int32_t owner; /* the rank that keeps the value */
};

/* Name of the index-th operation, NULL past the last. */
STARPULLM_API const char *starpullm_operation_name(int32_t index);

/* Waits for everything that was submitted, then counts the recorded tasks and accesses. */
STARPULLM_API enum starpullm_status starpullm_session_trace_size(starpullm_session *session, size_t *tasks,
                                                                 size_t *accesses);
/* Copies them; num_tasks and num_accesses must be the numbers just given. */
STARPULLM_API enum starpullm_status starpullm_session_trace_read(starpullm_session *session,
                                                                 struct starpullm_trace_task *tasks, size_t num_tasks,
                                                                 struct starpullm_trace_access *accesses,
                                                                 size_t num_accesses);
/* Removes all recorded tasks and findings. */
STARPULLM_API enum starpullm_status starpullm_session_trace_clear(starpullm_session *session);

/* All ranks' handles: the same on every rank. */
STARPULLM_API int32_t starpullm_session_handle_count(const starpullm_session *session);
STARPULLM_API enum starpullm_status starpullm_session_handle_info(const starpullm_session *session, int32_t index,
                                                                  struct starpullm_handle_info *info);

/* This rank's share of the session. */
struct starpullm_session_share {
    size_t size;
    int64_t handles;   /* that are registered with StarPU */
    int64_t submitted; /* tasks so far that run here */
    int64_t exchanged; /* messages of gradients so far, and others' tasks whose data it sent, received or discarded */
};
STARPULLM_API enum starpullm_status starpullm_session_share(const starpullm_session *session,
                                                            struct starpullm_session_share *share);

/* ---- The task graph on paper ---- */

/* The tasks of training steps on any number of ranks, and their data, without a runtime, buffers or other ranks. */
typedef struct starpullm_plan starpullm_plan;

struct starpullm_plan_options {
    size_t size;
    struct starpullm_model_config config;
    int64_t batch_size, seq_len; /* of one rank */
    int64_t sub_batches;         /* of one rank; divides batch_size */
    int64_t activation_sets;     /* as in starpullm_session_options */
    int32_t ranks;
    int32_t reduction; /* STARPULLM_REDUCTION_ORDERED or _TREE; StarPU adds tasks of its own to _REDUX */
    int32_t weight_gradient_tiles, keep_activations; /* as in starpullm_session_options */
    int32_t recompute, reuse_weight_gradients;       /* likewise */
    int32_t workers;                                 /* of each rank */
    int32_t steps;                                   /* at least 1 */
    const struct starpullm_pipeline *pipeline;       /* as in starpullm_session_options */
};
STARPULLM_API enum starpullm_status starpullm_plan_create(const struct starpullm_plan_options *options,
                                                          starpullm_plan **plan);
STARPULLM_API void starpullm_plan_destroy(starpullm_plan *plan);

STARPULLM_API enum starpullm_status starpullm_plan_size(const starpullm_plan *plan, size_t *tasks, size_t *accesses,
                                                        size_t *handles);
/* The numbers of tasks and accesses must be those just given. No task has a worker or times. */
STARPULLM_API enum starpullm_status starpullm_plan_read(const starpullm_plan *plan, struct starpullm_trace_task *tasks,
                                                        size_t num_tasks, struct starpullm_trace_access *accesses,
                                                        size_t num_accesses);
STARPULLM_API enum starpullm_status starpullm_plan_handle_info(const starpullm_plan *plan, int32_t index,
                                                               struct starpullm_handle_info *info);

/* ---- StarPU's task graph ---- */

/* Waits for everything that was submitted. Tasks that are submitted from now on, at most steps_in_flight submissions,
 * don't run before starpullm_session_release(), _wait() or _destroy(). Until then, other functions that would wait for
 * tasks return STARPULLM_INVALID_STATE. On one rank, with trace, without STARPULLM_AUDIT and STARPULLM_POISON. */
STARPULLM_API enum starpullm_status starpullm_session_hold(starpullm_session *session);

/* Asks StarPU which of the held tasks depend on which, and lets them run. Gives the number of such pairs. */
STARPULLM_API enum starpullm_status starpullm_session_release(starpullm_session *session, size_t *num_edges);

/* The pairs that the last release found: numbers in the trace; those below 0 are StarPU's own tasks. */
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

/* Waits, then counts the findings since the last starpullm_session_trace_clear(). */
STARPULLM_API enum starpullm_status starpullm_session_findings_size(starpullm_session *session, size_t *count);
/* What the instruments have looked at since the last starpullm_session_trace_clear(). */
struct starpullm_instrument_counts {
    size_t size;
    int64_t pages;            /* audit: the tasks' first reads of a page, and first writes */
    int64_t poisoned;         /* elements of what a task declares to write that held the NaN before it */
    int64_t poisoned_between; /* the same of buffers between submissions */
    int64_t searched;         /* elements that were searched for the NaN after a task */
};
STARPULLM_API enum starpullm_status starpullm_session_instrument_counts(starpullm_session *session,
                                                                        struct starpullm_instrument_counts *counts);

/* Copies them; count must be the number just given. */
STARPULLM_API enum starpullm_status starpullm_session_findings_read(starpullm_session *session,
                                                                    struct starpullm_finding *findings, size_t count);

#ifdef __cplusplus
}
#endif
