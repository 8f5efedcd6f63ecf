// Tasks, accesses and hashes to the log. One lock orders all records; hashes are computed outside of it.
#include "recorder.h"

#include "content.h"
#include "crash.h"
#include "keep.h"
#include "log.h"
#include "names.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct settings settings;
static bool is_started;
static struct log *record_to; // NULL: nothing is recorded
static uint64_t num_tasks;
static const uintptr_t kept = ~(UINTPTR_MAX >> 1); // in a task's number: its contents are recorded
static _Atomic uint64_t last_submitted;

uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

uint64_t last_submission_ns(void)
{
    return last_submitted;
}

// Open MPI's mpirun, MPICH's mpiexec and launchers derived from it, Slurm's srun: as starpullm/processes/keeper.py.
static void read_rank(struct probe_header *header)
{
    static const char *const variables[][2] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                               {"PMI_RANK", "PMI_SIZE"},
                                               {"PMIX_RANK", "SLURM_STEP_NUM_TASKS"},
                                               {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}};
    header->rank = -1;
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *rank = getenv(variables[i][0]), *size = getenv(variables[i][1]);
        if (rank != NULL && size != NULL) {
            header->rank = atoi(rank);
            header->num_ranks = (uint32_t)atoi(size);
            return;
        }
    }
}

static void note_exit(int status, void *unused)
{
    (void)unused;
    if (record_to != NULL)
        log_header(record_to)->exit_status = status;
}

// A forked child has its parent's mapped log, which is not its own to write.
static void forget_log(void)
{
    record_to = NULL;
    crash_unwatch();
    pthread_mutex_init(&lock, NULL);
}

static void open_log(void)
{
    struct probe_header header = {
        .magic = PROBE_MAGIC,
        .format = PROBE_FORMAT,
        .pid = (uint32_t)getpid(),
        .num_workers = starpu_worker_get_count(),
        .seed = settings.seed,
        .start_ns = now_ns(),
    };
    int version[3];
    read_rank(&header);
    starpu_get_version(&version[0], &version[1], &version[2]);
    for (int i = 0; i < 3; i++)
        header.starpu_version[i] = (uint32_t)version[i];
    record_to = log_open(settings.directory, &header);
    if (record_to == NULL)
        return;
    name_index(record_to, NULL);
    pthread_atfork(NULL, NULL, forget_log);
    on_exit(note_exit, NULL);
    crash_watch(log_header(record_to), log_stack_file(record_to));
}

const struct settings *recorder_start(void)
{
    pthread_mutex_lock(&lock);
    if (!is_started) {
        is_started = true;
        settings = read_settings();
        if (settings.directory != NULL)
            open_log();
    }
    pthread_mutex_unlock(&lock);
    return &settings;
}

void recorder_stop(void)
{
    pthread_mutex_lock(&lock);
    if (record_to != NULL)
        log_header(record_to)->deinit_count++;
    pthread_mutex_unlock(&lock);
}

__attribute__((destructor)) static void end_log(void)
{
    pthread_mutex_lock(&lock);
    if (record_to != NULL) {
        crash_unwatch();
        log_header(record_to)->ended = 1;
        log_close(record_to);
        record_to = NULL;
    }
    pthread_mutex_unlock(&lock);
}

static void *interface_of(struct starpu_task *task, unsigned access)
{
    return task->dyn_handles != NULL ? task->dyn_interfaces[access] : task->interfaces[access];
}

static bool runs(const struct starpu_task *task)
{
    return task->cl != NULL && task->cl->where != STARPU_NOWHERE && task->where != STARPU_NOWHERE;
}

static uint32_t flags_of(const struct starpu_task *task)
{
    uint32_t flags = 0;
    if (task->cl == NULL)
        flags |= PROBE_NO_CODELET;
    else if (!runs(task))
        flags |= PROBE_NOWHERE;
    if (task->type & STARPU_TASK_TYPE_INTERNAL || task->no_submitorder)
        flags |= PROBE_INTERNAL;
    if (task->type & STARPU_TASK_TYPE_DATA_ACQUIRE)
        flags |= PROBE_ACQUIRE;
    return flags;
}

// A handle's number is in the field that StarPU keeps in it for schedulers. It is 0 in a new handle, also in one at the
// address of another that was unregistered.
static uint32_t handle_number(starpu_data_handle_t handle)
{
    uintptr_t number = (uintptr_t)starpu_data_get_sched_data(handle);
    if (number != 0)
        return (uint32_t)(number - 1);
    struct probe_handle record = {
        .bytes = starpu_data_get_size(handle),
        .interface = starpu_data_get_interface_id(handle),
    };
    struct layout layout;
    if (content_layout(record.interface, starpu_data_get_interface_on_node(handle, STARPU_MAIN_RAM), &layout)) {
        record.address = layout.address;
        record.element_bytes = (uint32_t)layout.element_bytes;
        memcpy(record.sizes, layout.sizes, sizeof record.sizes);
        memcpy(record.strides, layout.strides, sizeof record.strides);
    }
    uint64_t index = log_append(record_to, PROBE_HANDLES, &record);
    starpu_data_set_sched_data(handle, (void *)(uintptr_t)(index + 1));
    return (uint32_t)index;
}

static void append_task(struct starpu_task *task, uint32_t flags)
{
    unsigned num_accesses = task->cl == NULL ? 0 : STARPU_TASK_GET_NBUFFERS(task);
    struct probe_task record = {
        .submit_ns = now_ns(),
        .first_access = log_header(record_to)->counts[PROBE_ACCESSES],
        .num_accesses = num_accesses,
        .codelet = name_index(record_to, task->cl == NULL ? NULL : starpu_task_get_model_name(task)),
        .name = name_index(record_to, starpu_task_get_name(task)),
        .flags = flags,
        .priority = task->priority,
        .thread = (uint32_t)syscall(SYS_gettid),
        .context = task->sched_ctx,
        .arguments = task->cl_arg == NULL || task->cl_arg_size == 0 ? 0 : XXH3_64bits(task->cl_arg, task->cl_arg_size),
    };
    if (task->cl != NULL && task->cl->name != NULL)
        record.codelet = name_index(record_to, task->cl->name);
    for (unsigned i = 0; i < num_accesses; i++) {
        struct probe_access access = {
            .handle = handle_number(STARPU_TASK_GET_HANDLE(task, i)),
            .mode = STARPU_TASK_GET_MODE(task, i),
            .flags = has_no_order(task, i) ? PROBE_NO_ORDER : 0,
        };
        log_append(record_to, PROBE_ACCESSES, &access);
    }
    log_append(record_to, PROBE_TASKS, &record);
    last_submitted = record.submit_ns;
}

uint64_t task_number(const struct starpu_task *task)
{
    return ((uintptr_t)task->sched_data & ~kept) - 1;
}

static void number_and_append(struct starpu_task *task, uint32_t flags)
{
    uintptr_t number = ++num_tasks;
    bool is_own = (flags & (PROBE_NO_CODELET | PROBE_INTERNAL | PROBE_ACQUIRE)) == 0;
    if (settings.keep != KEEP_NOTHING && is_own && keep_task(&settings, task))
        number |= kept;
    task->sched_data = (void *)number;
    if (record_to != NULL)
        append_task(task, flags);
}

void recorder_submitted(struct starpu_task *task)
{
    pthread_mutex_lock(&lock);
    number_and_append(task, flags_of(task));
    pthread_mutex_unlock(&lock);
}

static void append_event(const struct starpu_task *task, uint32_t kind)
{
    int worker = starpu_worker_get_id();
    struct probe_event event = {
        .task = task_number(task),
        .time_ns = now_ns(),
        .kind = kind,
        .worker = kind == PROBE_READY ? -1 : worker,
        .node = kind == PROBE_READY || worker < 0 ? -1 : (int32_t)starpu_worker_get_memory_node((unsigned)worker),
    };
    log_append(record_to, PROBE_EVENTS, &event);
}

void recorder_ready(struct starpu_task *task)
{
    pthread_mutex_lock(&lock);
    if (record_to != NULL)
        append_event(task, PROBE_READY);
    pthread_mutex_unlock(&lock);
}

// Only memory of CPUs can be read from here. Contributions to a reduction and scratch memory are a worker's own.
static bool can_read(enum starpu_data_access_mode mode, unsigned node)
{
    return (mode & (STARPU_SCRATCH | STARPU_REDUX)) == 0 && starpu_node_get_kind(node) == STARPU_CPU_RAM;
}

static bool only_writes(enum starpu_data_access_mode mode)
{
    return (mode & STARPU_RW) == STARPU_W;
}

static void keep_contents(starpu_data_handle_t handle, void *interface, uint64_t hash)
{
    struct probe_contents record = {.hash = hash, .bytes = content_bytes(handle, interface)};
    pthread_mutex_lock(&lock);
    bool is_new = record_to != NULL && record.bytes > 0 && keep_reserve(&settings, record_to, &record);
    int file = is_new ? log_bytes_file(record_to) : -1;
    pthread_mutex_unlock(&lock);
    if (!is_new)
        return;
    int error = content_write(handle, interface, file, record.offset);
    pthread_mutex_lock(&lock);
    if (record_to != NULL && error == 0)
        log_append(record_to, PROBE_CONTENTS, &record);
    else if (record_to != NULL)
        log_fail(record_to, error);
    pthread_mutex_unlock(&lock);
}

static void hash_access(struct starpu_task *task, unsigned access, enum probe_hash_time when, unsigned node)
{
    starpu_data_handle_t handle = STARPU_TASK_GET_HANDLE(task, access);
    void *interface = interface_of(task, access);
    struct probe_hash record = {.task = task_number(task), .access = access, .time = when};
    if (interface == NULL || !content_hash(handle, interface, node, &record.hash))
        return;
    if (settings.poison && when == PROBE_AFTER && only_writes(STARPU_TASK_GET_MODE(task, access)))
        record.poison_left = content_count_poison(handle, interface, access);
    pthread_mutex_lock(&lock);
    if (record_to != NULL)
        log_append(record_to, PROBE_HASHES, &record);
    pthread_mutex_unlock(&lock);
    if (((uintptr_t)task->sched_data & kept) != 0)
        keep_contents(handle, interface, record.hash);
}

// Whether another entry of the task has the same memory: the same handle, or one that a program has registered for the
// same bytes and switches to by hand. Such memory may have to keep its contents.
static bool is_alone(struct starpu_task *task, unsigned access)
{
    unsigned num_accesses = STARPU_TASK_GET_NBUFFERS(task);
    for (unsigned i = 0; i < num_accesses; i++) {
        if (i != access && (STARPU_TASK_GET_MODE(task, i) & STARPU_SCRATCH) == 0 &&
            content_overlaps(STARPU_TASK_GET_HANDLE(task, i), interface_of(task, i),
                             STARPU_TASK_GET_HANDLE(task, access), interface_of(task, access)))
            return false;
    }
    return true;
}

static void look_before(struct starpu_task *task, unsigned node)
{
    unsigned num_accesses = STARPU_TASK_GET_NBUFFERS(task);
    for (unsigned i = 0; i < num_accesses; i++) {
        enum starpu_data_access_mode mode = STARPU_TASK_GET_MODE(task, i);
        if (!can_read(mode, node))
            continue;
        if (settings.hash && (mode & STARPU_R) != 0)
            hash_access(task, i, PROBE_BEFORE, node);
        if (settings.poison && only_writes(mode) && is_alone(task, i))
            content_poison(STARPU_TASK_GET_HANDLE(task, i), interface_of(task, i), i);
    }
}

void recorder_started(struct starpu_task *task)
{
    int worker = starpu_worker_get_id();
    pthread_mutex_lock(&lock);
    if (task->sched_data == NULL)
        number_and_append(task, flags_of(task) | PROBE_LATE);
    pthread_mutex_unlock(&lock);
    if (worker >= 0 && (settings.hash || settings.poison))
        look_before(task, starpu_worker_get_memory_node((unsigned)worker));
    crash_task(task_number(task));
    pthread_mutex_lock(&lock);
    if (record_to != NULL)
        append_event(task, PROBE_START);
    pthread_mutex_unlock(&lock);
}

// An access whose order is free has been released before this hook, so another task may be changing its data. Where
// sequential consistency is off, the program may have ordered its tasks otherwise; they are looked at when one runs at
// a time.
static void look_after(struct starpu_task *task, unsigned node)
{
    unsigned num_accesses = STARPU_TASK_GET_NBUFFERS(task);
    for (unsigned i = 0; i < num_accesses; i++) {
        enum starpu_data_access_mode mode = STARPU_TASK_GET_MODE(task, i);
        bool is_its_own = settings.max_workers == 1 || !has_no_order(task, i);
        if (can_read(mode, node) && (mode & STARPU_COMMUTE) == 0 && is_its_own)
            hash_access(task, i, PROBE_AFTER, node);
    }
}

void recorder_ended(struct starpu_task *task)
{
    int worker = starpu_worker_get_id();
    if (worker >= 0 && settings.hash)
        look_after(task, starpu_worker_get_memory_node((unsigned)worker));
    pthread_mutex_lock(&lock);
    if (record_to != NULL)
        append_event(task, PROBE_END);
    pthread_mutex_unlock(&lock);
    crash_task(UINT64_MAX);
}
