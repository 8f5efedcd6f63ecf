/* The C ABI of starpullm: GPT-2 training as one StarPU task graph, with llm.c's bits. starpullm_checks.h has what
 * watches and validates it.
 *
 * A function that can fail returns a status; STARPULLM_OK is 0. starpullm_last_error() describes the thread's last
 * failure. The library never prints and never exits. Callers set the member `size` of a struct that has one.
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
#define STARPULLM_ABI_VERSION 11

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
};
STARPULLM_API enum starpullm_status starpullm_build_info(struct starpullm_build_info *info);

struct starpullm_machine_info { /* its texts last until the thread's next call */
    size_t size;
    int32_t cores; /* that this process may run on, at most 1024; processing units if hwloc knows of no cores */
    int32_t processing_units, numa_nodes; /* as hwloc reports them, HWLOC_SYNTHETIC included */
    int32_t synthetic;                    /* 1 if the topology isn't the real machine's */
    const char *processor;                /* hwloc's CPUModel, or "" */
    const char *simd_level;               /* of the kernels in use */
    const char *starpu_version;           /* of the StarPU that is loaded */
    int32_t starpu_max_workers;           /* CPU workers that StarPU was built for */
    int32_t starpu_max_contexts;          /* a worker of several threads needs one; 0: it has no such workers */
    int32_t starpu_max_nodes;             /* memory nodes that StarPU was built for */
    size_t l2_cache;                      /* bytes, a hardware thread's share: matmuls' blocks follow */
};
STARPULLM_API enum starpullm_status starpullm_machine_info(struct starpullm_machine_info *info);

/* Name of the index-th of StarPU's schedulers that a runtime may have, NULL past the last. */
STARPULLM_API const char *starpullm_scheduler_name(size_t index);

/* Name of the index-th SIMD level of this machine and build, "ref" first and the best last; NULL past the last. */
STARPULLM_API const char *starpullm_simd_level_name(size_t index);

/* A device beside the CPUs. Without one of its three abilities it has other bits, and a runtime refuses it. */
struct starpullm_device_info {
    size_t size;
    char name[128];
    int64_t memory; /* bytes */
    /* 1: it has double precision; denormals of binary32; correctly rounded division and square root of binary32. */
    int32_t double_precision, denormals, correctly_rounded;
};

/* Of the index-th OpenCL device that StarPU can use: no CPU unless STARPU_OPENCL_ON_CPUS is 1. Its name is empty past
 * the last; there is none where StarPU was built without OpenCL. */
STARPULLM_API enum starpullm_status starpullm_device_info(int32_t index, struct starpullm_device_info *info);

/* The sizes of a model. */
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

/* What moves to the disk. */
enum starpullm_offload_plan {
    STARPULLM_OFFLOAD_AHEAD = 0, /* by the order of a step: early what isn't used for long, and never what is dead */
    STARPULLM_OFFLOAD_LRU = 1    /* when memory is needed, what hasn't been used for longest */
};

/* The contract of docs/numerics.md by which something was computed. */
enum starpullm_arithmetic {
    STARPULLM_STRICT = 0,
    STARPULLM_NO_CONTRACT = 1, /* a BLAS computed matmuls, or the platform's libm elementary functions */
    STARPULLM_FUSED = 2
};

struct starpullm_runtime_options {
    size_t size;
    int32_t workers;            /* W */
    int32_t threads_per_worker; /* T */
    const char *scheduler;      /* one of starpullm_scheduler_name() */
    /* NULL: this process alone. Otherwise the Fortran handle of an MPI communicator whose ranks run one task graph
     * together. All ranks must make the same calls on runtime and session in the same order, with the same options;
     * only the partition may differ. MPI must have been initialized with MPI_THREAD_MULTIPLE. If the creation of the
     * runtime or of a session fails on some ranks, it fails on all, which name the first of these and its host. After
     * another call that has failed on one rank alone, the others may wait for ever. */
    const int32_t *communicator;
    /* NULL: the library's own matmuls, with llm.c's bits. Otherwise the shared library of a CBLAS, as a path or a name
     * for the dynamic linker: its matmuls are used until the runtime is destroyed, and no result is strict. */
    const char *blas_library;
    /* NULL: data stay in memory. Otherwise a folder on a disk: data that aren't used move there, into a file without a
     * name, so that no more than memory_limit bytes of data are in memory. On one rank, without STARPULLM_AUDIT and
     * `redux`, with eager, lws, prio, random or ws. A request to the disk that fails, fails all sessions' tasks. */
    const char *offload;
    int64_t memory_limit; /* bytes, with offload */
    int32_t offload_plan; /* enum starpullm_offload_plan */
    /* 1: expf, tanhf, coshf, logf and powf are the platform's libm's, in plain loops; no result is strict. It is for
     * comparison with an llm.c that was built so. 0: the library's own, correctly rounded. */
    int32_t platform_functions;
    /* How many OpenCL devices run tasks beside the workers; -1: all. With workers of one thread and the library's own
     * kernels, without offload. What only one iteration needs has no buffer in main memory then. */
    int32_t devices;
    int32_t fused; /* 1: STARPULLM_FUSED, with the library's own kernels */
};
STARPULLM_API enum starpullm_status starpullm_runtime_create(const struct starpullm_runtime_options *options,
                                                             starpullm_runtime **runtime);

/* The BLAS that computes the matmuls: file, name, version, size of its integers; "" if there is none. */
STARPULLM_API const char *starpullm_blas(void);

/* Makes *runtime NULL. STARPULLM_INVALID_STATE while sessions are open on it; then it stays as it is. */
STARPULLM_API enum starpullm_status starpullm_runtime_destroy(starpullm_runtime **runtime);

/* The bytes that have moved to the disk and from it so far; 0 without offload. */
STARPULLM_API enum starpullm_status starpullm_runtime_offloaded(const starpullm_runtime *runtime, int64_t *written,
                                                                int64_t *read);

/* The bytes that have moved to the memory of devices and from it so far, by StarPU's count. */
STARPULLM_API enum starpullm_status starpullm_runtime_moved(const starpullm_runtime *runtime, int64_t *to_devices,
                                                            int64_t *from_devices);

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

/* A list may have passes of their own for the gradients of weights; without any, they belong to the backward passes. */
enum starpullm_pass_kind { STARPULLM_FORWARD = 0, STARPULLM_BACKWARD = 1, STARPULLM_WEIGHTS = 2 };
struct starpullm_pass { /* of a sub-batch through a stage; kind is one of enum starpullm_pass_kind */
    int32_t kind, sub_batch, stage;
};

/* The blocks cut into stages, with the encoder before the first block and the head behind the last. Rank r has stage r
 * modulo their number, which divides that of the ranks; those of a pipeline submit the same batch. Not with `redux`. */
struct starpullm_pipeline {
    int32_t stages;
    const int32_t *blocks;               /* of each stage; NULL: by their cost */
    const struct starpullm_pass *passes; /* of a pipeline's step; NULL: forward passes are activation_sets ahead */
    int64_t num_passes;
    int32_t gradients_of_blocks; /* 1: each block has buffers for what STARPULLM_WEIGHTS reads, which needs them */
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
    STARPULLM_DELAY = 4,
    /* Of the tasks that a device can run, device_percent run on one and the others on none, by device_seed, step and
     * number.
     */
    STARPULLM_DRAW_DEVICE = 8
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
    int32_t keep_activations; /* 1: the intermediates of all layers can be read back after a step */
    int32_t steps_in_flight;  /* the most submissions that are unfinished at a time; 1 to 1024 */
    int32_t trace;            /* 1: record every task */
    int32_t instruments;  /* sum of enum starpullm_instrument; 0: none. They need the trace: findings name its tasks */
    int32_t max_delay_us; /* of STARPULLM_DELAY; at most a second */
    uint64_t delay_seed;  /* of STARPULLM_DELAY */
    int32_t device_percent;         /* of STARPULLM_DRAW_DEVICE; 0 to 100 */
    uint64_t device_seed;           /* of STARPULLM_DRAW_DEVICE */
    int32_t recompute;              /* enum starpullm_recompute; not with keep_activations */
    int32_t reuse_weight_gradients; /* 1: the blocks have two gradients in turn; on one rank with one sub-batch */
    int64_t memory_limit;           /* bytes for buffers that the ranks of this machine share equally; 0: any number */
    const struct starpullm_pipeline *pipeline; /* NULL: one stage */
};
STARPULLM_API enum starpullm_status starpullm_session_create(starpullm_runtime *runtime,
                                                             const struct starpullm_session_options *options,
                                                             starpullm_session **session);

/* Waits for what was submitted, and frees everything but the losses that the caller still has; makes *session NULL. It
 * can't report that the last save failed: ask starpullm_session_wait_saved() before. */
STARPULLM_API void starpullm_session_destroy(starpullm_session **session);

STARPULLM_API enum starpullm_status starpullm_session_config(const starpullm_session *session,
                                                             struct starpullm_model_config *config);

/* A mean loss that is available once its tasks have run. Belongs to the caller. Any thread may wait for it. */
typedef struct starpullm_loss starpullm_loss;
STARPULLM_API enum starpullm_status starpullm_loss_wait(starpullm_loss *loss, float *value);
STARPULLM_API int starpullm_loss_ready(const starpullm_loss *loss);
STARPULLM_API void starpullm_loss_destroy(starpullm_loss **loss); /* makes *loss NULL */

/* Submits forward, backward and update of one batch, and returns before they are done. Waits only while steps_in_flight
 * submissions are unfinished; with STARPULLM_AUDIT or _POISON, any. Tokens are checked and copied first: if one is
 * invalid, nothing has changed. *learning_rate is that of this update, the same on all ranks; NULL: the session's. */
STARPULLM_API enum starpullm_status starpullm_session_submit_step(starpullm_session *session,
                                                                  const int32_t *inputs /* (B,T) */,
                                                                  const int32_t *targets /* (B,T) */,
                                                                  const float *learning_rate, starpullm_loss **loss);

/* Submits forward and loss only. */
STARPULLM_API enum starpullm_status starpullm_session_submit_evaluation(starpullm_session *session,
                                                                        const int32_t *inputs /* (B,T) */,
                                                                        const int32_t *targets /* (B,T) */,
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
    /* Of an activation or a gradient of one: of each pipeline's sub-batches, the last so many can be read. 0: it isn't
     * such, or its layers share a buffer. */
    int32_t sub_batches_kept;
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
 * failure, also of one of the session's tasks, the file of before is unchanged; only if the folder's fsync fails the
 * new file is in place, and the sentence says so. */
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
    float learning_rate;   /* of the last update; of the options before the first */
    float beta1, beta2, eps, weight_decay;
    int32_t arithmetic; /* enum starpullm_arithmetic; STARPULLM_NO_CONTRACT if some of its steps had none */
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

/* Starts saving parameters, m and v as they are after the last submitted step. Meanwhile the forward and backward of
 * the next steps run; only the update of a tensor waits until that tensor is on the disk. Waits for the previous save,
 * and reports its failure; with offload also for this one's tensors. Over ranks each rank writes what it owns. Complete
 * states stay until this one is. Claims the directory. STARPULLM_INVALID_ARGUMENT if another run's is there. */
STARPULLM_API enum starpullm_status starpullm_session_save_state(starpullm_session *session,
                                                                 const struct starpullm_save_options *options);

/* Waits until the last save is on the disk, over ranks this rank's part of it: a session resumes from it when all have
 * waited. Returns its failure unless that has been reported. */
STARPULLM_API enum starpullm_status starpullm_session_wait_saved(starpullm_session *session);

#ifdef __cplusplus
}
#endif
