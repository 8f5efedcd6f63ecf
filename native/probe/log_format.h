/* The log that the probe writes, as it lies in files; starpullm/files/probe_log.py reads it.
 *
 * A log is a folder with one file of header and one of records for each stream. All numbers are little-endian, all
 * records of a stream have one size. A reader takes as many records as the header counts: they are complete, also if
 * the process was killed while it wrote the next one. */
#pragma once

#include <stdint.h>

#define PROBE_MAGIC "STPPROBE"
#define PROBE_FORMAT 7

enum probe_stream {
    PROBE_NAMES,
    PROBE_HANDLES,
    PROBE_TASKS,
    PROBE_ACCESSES,
    PROBE_EVENTS,
    PROBE_HASHES,
    PROBE_CONTENTS,
    PROBE_STREAMS
};

struct probe_header {
    char magic[8];
    uint32_t format;
    uint32_t starpu_version[3];
    uint32_t pid;
    int32_t rank;         /* under mpirun; -1 if the process isn't a rank */
    uint32_t ended;       /* 0: running, or ended without a word; 1: left by exit or return; 2: by a signal */
    int32_t signal;       /* if ended is 2 */
    int32_t write_error;  /* errno of the first failed write, after which nothing more was recorded; or 0 */
    int32_t exit_status;  /* if ended is 1 */
    uint32_t num_ranks;   /* of the job that this process is a rank of; 0 if it isn't one */
    uint32_t signal_task; /* that the signal came in, by its number plus one; 0: in none */
    /* Of a run in which undeclared accesses are looked for: bytes of handles, those of them that are watched, handles
     * that aren't plain memory, and tasks in which all that can be watched was. */
    uint64_t handle_bytes, watched_bytes, unwatched_handles, watched_tasks;
    int64_t unseen_tasks; /* that StarPU has run without a word to the policy; below 0: it doesn't count what it runs */
    uint64_t counts[PROBE_STREAMS];
};

/* A name of a task or of a codelet, cut if it is too long; the first record is the empty name. */
struct probe_name {
    char text[128];
};

/* A handle, when a task was first submitted with it. Elements lie at address + sum of i[d] * strides[d], i[d] <
 * sizes[d]. */
struct probe_handle {
    uint64_t address; /* in main memory; 0 if there is none yet */
    uint64_t bytes;   /* as StarPU counts them */
    int32_t interface;
    uint32_t element_bytes;
    uint64_t sizes[4];   /* elements along each dimension; all 0 for interfaces without a layout */
    uint64_t strides[4]; /* bytes from one element to the next */
    int32_t coordinates[5];
    uint32_t num_coordinates; /* 0: the program has set none */
    uint32_t stack;           /* of the registration, a line of the file `stacks`; 0: not known */
    uint32_t unused[3];
};

enum probe_task_flag {
    PROBE_NO_CODELET = 1, /* only orders other tasks */
    PROBE_NOWHERE = 2,    /* has no function to run */
    PROBE_INTERNAL = 4,   /* StarPU's own */
    PROBE_ACQUIRE = 8,    /* the application's acquisition of data */
    PROBE_LAST = 32,      /* no task: the application unregisters a handle, with what is in it then */
};

struct probe_task {
    uint64_t submit_ns;    /* CLOCK_MONOTONIC, as all times */
    uint64_t first_access; /* in the stream of accesses */
    uint32_t num_accesses;
    uint32_t codelet; /* a name */
    uint32_t name;
    uint32_t flags;
    /* XXH3 of the bytes at cl_arg, or of cl_arg if they can't be read; 0: their number isn't known. */
    uint64_t arguments;
    uint32_t stack;           /* of the submission, a line of the file `stacks`; 0: not known */
    uint32_t implementations; /* of the codelet: a bit each, those for devices from PROBE_ON_DEVICE on */
    uint32_t submitter;       /* the task that has submitted it, by number plus one; 0: none */
    uint32_t thread;          /* that has submitted it, by the system's number */
    uint32_t unused[2];
};

enum probe_access_flag {
    PROBE_NO_ORDER = 1, /* sequential consistency is off for this access */
    PROBE_ORDERED = 2,  /* its mode leaves the order free, but the probe doesn't; COMMUTE is left out of the mode */
};

struct probe_access {
    uint32_t handle;
    uint32_t mode; /* enum starpu_data_access_mode */
    uint32_t flags;
    uint32_t unused;
};

/* Added to the number of an implementation for devices. */
#define PROBE_ON_DEVICE 16

enum probe_event_kind { PROBE_READY = 1, PROBE_START, PROBE_END };

struct probe_event {
    uint64_t task; /* by order of submission, from 0 */
    uint64_t time_ns;
    uint32_t kind;
    int32_t worker;
    uint32_t implementation; /* at a start: of the codelet's, by number */
    uint32_t unused;
};

/* RETURNED: before the probe has waited for the task's device. */
enum probe_hash_time { PROBE_BEFORE = 1, PROBE_AFTER, PROBE_RETURNED };

/* Added to `poison_left`: there was something else than zeros before the poison that a task has left. */
#define PROBE_WAS_FILLED (UINT64_C(1) << 63)

/* The contents of a handle before or after a task; `poison_left` counts the bytes that are poison, after a task only
 * those that it has left as they were. */
struct probe_hash {
    uint64_t task;
    uint32_t access; /* which of the task's */
    uint32_t time;
    uint64_t hash; /* XXH3, 64 bits */
    uint64_t poison_left;
};

/* Contents that were asked for: the bytes of the elements, as they were hashed, lie in the file `bytes`. Contents that
 * come again, by their hash, are recorded once. */
struct probe_contents {
    uint64_t hash;
    uint64_t offset;
    uint64_t bytes;
    uint64_t unused;
};
