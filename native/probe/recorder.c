/* Tasks, accesses and hashes to the log. One lock orders all records; hashes are computed outside of it. */
#include "recorder.h"

#define XXH_INLINE_ALL
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <starpu_profiling_tool.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <xxhash.h>

#include "clock.h"
#include "content.h"
#include "crash.h"
#include "handles.h"
#include "keep.h"
#include "log.h"
#include "marks.h"
#include "names.h"
#include "pages.h"
#include "poison.h"
#include "sums.h"
#include "undeclared.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct settings settings;
static bool is_started;
static struct log *record_to; /* NULL: nothing is recorded */
static uint64_t num_tasks;
static _Atomic uint64_t last_submitted;
static _Atomic int64_t num_unseen; /* functions that have run, without those of which the policy has heard */
static _Thread_local unsigned variants_before; /* of poison, that the task has found or got, a bit each */
static handle_hook registered, unregistered;

uint64_t last_submission_ns(void)
{
    return last_submitted;
}

static void note_exit(int status, void *unused)
{
    (void)unused;
    if (record_to)
        record_to->header->exit_status = status;
}

/* A forked child has its parent's mapped log, which is not its own to write. */
static void forget_log(void)
{
    record_to = NULL;
    if (settings.watch)
        undeclared_forked();
    settings.watch = false;
    crash_unwatch();
    pthread_mutex_init(&lock, NULL);
}

static void open_log(void)
{
    struct probe_header header = {
        .magic = PROBE_MAGIC,
        .format = PROBE_FORMAT,
        .pid = (uint32_t)getpid(),
    };
    int version[3];
    read_rank(&header);
    starpu_get_version(&version[0], &version[1], &version[2]);
    for (int i = 0; i < 3; i++)
        header.starpu_version[i] = (uint32_t)version[i];
    record_to = log_open(settings.directory, &header);
    if (!record_to)
        return;
    name_index(record_to, NULL);
    pthread_atfork(NULL, NULL, forget_log);
    on_exit(note_exit, NULL);
    crash_watch(record_to->header, record_to->files[STACK_FILE]);
    handles_start(registered, unregistered);
    if (settings.watch)
        undeclared_start(record_to->header, record_to->files[UNDECLARED_FILE]);
}

const struct settings *recorder_start(void)
{
    pthread_mutex_lock(&lock);
    if (!is_started) {
        is_started = true;
        settings = read_settings();
        poison_start(settings.poison);
        if (settings.directory)
            open_log();
    }
    pthread_mutex_unlock(&lock);
    return &settings;
}

/* StarPU calls it last before a task's function, whose frame begins where this one's does. What others have left there
 * would come into the padding of structures that the function copies from its own. */
static void start_function(struct starpu_prof_tool_info *info, union starpu_prof_tool_event_info *event,
                           struct starpu_prof_tool_api_info *api)
{
    volatile uint64_t below[2048];
    (void)info;
    (void)event;
    (void)api;
    num_unseen++;
    for (size_t i = 0; i < sizeof below / sizeof *below; i++)
        below[i] = 0;
}

/* StarPU calls it by STARPU_PROF_TOOL, and what it adds in contexts with other policies, too. */
__attribute__((visibility("default"))) void
starpu_prof_tool_library_register(starpu_prof_tool_entry_register_func add, starpu_prof_tool_entry_register_func remove)
{
    (void)remove;
    add(starpu_prof_tool_event_start_cpu_exec, start_function, starpu_prof_tool_command_reg);
    add(starpu_prof_tool_event_start_gpu_exec, start_function, starpu_prof_tool_command_reg);
}

__attribute__((destructor)) static void end_log(void)
{
    pthread_mutex_lock(&lock);
    if (record_to) {
        crash_unwatch();
        if (settings.watch)
            undeclared_stop();
        record_to->header->ended = 1;
        record_to->header->unseen_tasks = num_unseen;
        log_close(record_to);
        record_to = NULL;
    }
    pthread_mutex_unlock(&lock);
}

static void *interface_of(struct starpu_task *task, unsigned access)
{
    return task->dyn_handles ? task->dyn_interfaces[access] : task->interfaces[access];
}

static bool runs(const struct starpu_task *task)
{
    return task->cl && task->cl->where != STARPU_NOWHERE && task->where != STARPU_NOWHERE;
}

static uint32_t flags_of(const struct starpu_task *task)
{
    uint32_t flags = 0;
    if (!task->cl)
        flags |= PROBE_NO_CODELET;
    else if (!runs(task))
        flags |= PROBE_NOWHERE;
    if (task->type & STARPU_TASK_TYPE_INTERNAL || task->no_submitorder)
        flags |= PROBE_INTERNAL;
    if (task->type & STARPU_TASK_TYPE_DATA_ACQUIRE)
        flags |= PROBE_ACQUIRE;
    return flags;
}

static uint32_t number_of(starpu_data_handle_t handle)
{
    return known_of(handle)->number - 1;
}

static bool is_own(uint32_t flags)
{
    return (flags & (PROBE_NO_CODELET | PROBE_INTERNAL | PROBE_ACQUIRE)) == 0;
}

/* Contents may be addresses of what is mapped at this time. */
static void copy_maps(int to)
{
    const int from = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    char part[1 << 12];
    ssize_t bytes;
    while ((bytes = read(from, part, sizeof part)) > 0 && write(to, part, (size_t)bytes) == bytes)
        ;
    close(from);
}

static void keep_contents(starpu_data_handle_t handle, void *interface, uint64_t hash)
{
    struct layout layout;
    if (!content_layout(starpu_data_get_interface_id(handle), interface, &layout) || layout.address == 0)
        return;
    struct probe_contents record = {.hash = hash, .bytes = layout_bytes(&layout)};
    pthread_mutex_lock(&lock);
    const bool is_new = record_to && record.bytes > 0 && keep_reserve(&record);
    const int file = is_new ? record_to->files[BYTES_FILE] : -1, maps = is_new ? record_to->files[MAPS_FILE] : -1;
    pthread_mutex_unlock(&lock);
    if (!is_new)
        return;
    const int error = content_write(&layout, file, record.offset);
    if (settings.keep == KEEP_ONE_TASK)
        copy_maps(maps);
    pthread_mutex_lock(&lock);
    if (record_to && error == 0)
        log_append(record_to, PROBE_CONTENTS, &record);
    else if (record_to)
        log_fail(record_to, error);
    pthread_mutex_unlock(&lock);
}

/* What is in a handle when the application unregisters it, and so may use it; or what StarPU copies into it from a sum,
 * in memory of which nothing is left then. It is recorded as a task that reads it, because so much of a log is about
 * tasks. */
static void look_at_the_last(starpu_data_handle_t handle, starpu_data_handle_t source)
{
    void *interface = starpu_data_get_interface_on_node(source, STARPU_MAIN_RAM);
    struct probe_hash hash = {.time = PROBE_BEFORE};
    bool is_kept = false;
    if (!content_hash(source, interface, STARPU_MAIN_RAM, poison_translation(0), &hash.hash))
        return;
    pthread_mutex_lock(&lock);
    if (record_to) {
        struct probe_access access = {.handle = number_of(handle), .mode = STARPU_R};
        struct probe_task task = {
            .submit_ns = now_ns(),
            .first_access = record_to->header->counts[PROBE_ACCESSES],
            .num_accesses = 1,
            .flags = PROBE_LAST | PROBE_NOWHERE,
        };
        hash.task = num_tasks++;
        is_kept = keep_last(&settings);
        log_append(record_to, PROBE_ACCESSES, &access);
        log_append(record_to, PROBE_TASKS, &task);
        log_append(record_to, PROBE_HASHES, &hash);
    }
    pthread_mutex_unlock(&lock);
    if (is_kept)
        keep_contents(source, interface, hash.hash);
}

static void unregistered(starpu_data_handle_t handle)
{
    if (settings.hash && starpu_data_get_home_node(handle) == STARPU_MAIN_RAM)
        look_at_the_last(handle, handle);
    if (settings.watch)
        undeclared_remove(number_of(handle));
}

static uint32_t append_handle(starpu_data_handle_t handle, struct layout *layout)
{
    struct probe_handle record = {
        .bytes = starpu_data_get_size(handle),
        .interface = starpu_data_get_interface_id(handle),
        .stack = known_of(handle)->stack,
    };
    record.num_coordinates = starpu_data_get_coordinates_array(
        handle, sizeof record.coordinates / sizeof *record.coordinates, record.coordinates);
    if (content_layout(record.interface, starpu_data_get_interface_on_node(handle, STARPU_MAIN_RAM), layout)) {
        record.address = layout->address;
        record.element_bytes = (uint32_t)layout->element_bytes;
        memcpy(record.sizes, layout->sizes, sizeof record.sizes);
        memcpy(record.strides, layout->strides, sizeof record.strides);
    }
    return (uint32_t)log_append(record_to, PROBE_HANDLES, &record);
}

/* It is recorded at once, because tasks may use its parts only, which have no registration of their own. */
static void registered(starpu_data_handle_t handle)
{
    struct layout layout;
    if (!settings.stacks)
        return;
    pthread_mutex_lock(&lock);
    if (record_to) {
        make_known(handle)->stack = stack_number(record_to);
        append_handle(handle, &layout);
    }
    pthread_mutex_unlock(&lock);
}

static uint32_t numbered(starpu_data_handle_t handle)
{
    struct layout layout = {0};
    if (make_known(handle)->number != 0)
        return number_of(handle);
    const uint32_t index = append_handle(handle, &layout);
    const int interface = starpu_data_get_interface_id(handle);
    if (settings.watch && interface != STARPU_VOID_INTERFACE_ID && layout.element_bytes == 0)
        undeclared_add(index, NULL);
    else if (settings.watch && layout.address != 0)
        undeclared_add(index, &layout);
    known_of(handle)->number = index + 1;
    handles_watch(starpu_data_get_interface_ops(handle));
    return index;
}

/* Many programs pass an integer as the pointer, some of them with a size. The system says of each page without a signal
 * whether it can be read: it reads a set of signals before it refuses that there is no such operation on one. */
static uint64_t hash_arguments(const struct starpu_task *task)
{
    const uintptr_t begin = (uintptr_t)task->cl_arg, end = begin + task->cl_arg_size;
    for (uintptr_t at = begin & ~(sizeof(uint64_t) - 1); at < end; at = (at | (page_bytes() - 1)) + 1)
        if (syscall(SYS_rt_sigprocmask, ~0, at, NULL, sizeof(uint64_t)) == 0 || errno != EINVAL)
            return XXH3_64bits(&begin, sizeof begin);
    return begin < end ? XXH3_64bits(task->cl_arg, task->cl_arg_size) : 0;
}

static void append_task(struct starpu_task *task, uint32_t flags, uint32_t submitter)
{
    const unsigned num_accesses = task->cl ? STARPU_TASK_GET_NBUFFERS(task) : 0;
    struct probe_task record = {
        .submit_ns = now_ns(),
        .first_access = record_to->header->counts[PROBE_ACCESSES],
        .num_accesses = num_accesses,
        .codelet = codelet_name(record_to, task),
        .name = name_index(record_to, starpu_task_get_name(task)),
        .flags = flags,
        .arguments = hash_arguments(task),
        .stack = settings.stacks && is_own(flags) ? stack_number(record_to) : 0,
        .submitter = submitter,
        .thread = (uint32_t)syscall(SYS_gettid),
    };
    for (int i = 0; task->cl && i < STARPU_MAXIMPLEMENTATIONS; i++)
        record.implementations |= (uint32_t)(task->cl->cpu_funcs[i] != NULL) << i |
                                  (uint32_t)(task->cl->opencl_funcs[i] != NULL && starpu_opencl_worker_get_count() > 0)
                                      << (PROBE_ON_DEVICE + i);
    for (unsigned i = 0; i < num_accesses; i++) {
        const bool is_ordered = has_mark(task, MARK_ORDERED) && is_sum(task, i);
        struct probe_access access = {
            .handle = numbered(STARPU_TASK_GET_HANDLE(task, i)),
            .mode = STARPU_TASK_GET_MODE(task, i) & ~(is_ordered ? STARPU_COMMUTE : 0u),
            .flags = (has_no_order(task, i) ? PROBE_NO_ORDER : 0) | (is_ordered ? PROBE_ORDERED : 0),
        };
        log_append(record_to, PROBE_ACCESSES, &access);
    }
    log_append(record_to, PROBE_TASKS, &record);
    last_submitted = record.submit_ns;
}

void recorder_submitted(struct starpu_task *task)
{
    /* It goes on after a wait, or is StarPU's copy of a task that has failed, with the task's number. */
    if (has_mark(task, MARK_STARTED) || (task->no_submitorder && task->sched_data))
        return;
    const uint32_t flags = flags_of(task);
    pthread_mutex_lock(&lock);
    /* In a task's function and its callbacks, StarPU knows the task. One that comes again submits itself. */
    const bool comes_again = task->regenerate && task->sched_data;
    const struct starpu_task *submitter = comes_again ? task : starpu_task_get_current();
    const uint32_t submitter_number = submitter ? (uint32_t)(task_number(submitter) + 1) : 0;
    uintptr_t number = ++num_tasks;
    if (is_own(flags))
        number |= marks_of_own(&settings, task);
    task->sched_data = (void *)number;
    if (settings.watch && runs(task) && (flags & PROBE_INTERNAL) == 0)
        undeclared_submitted();
    if (record_to)
        append_task(task, flags, submitter_number);
    pthread_mutex_unlock(&lock);
    if (has_mark(task, MARK_ORDERED) && record_to)
        order_sums(task);
}

/* Only memory of CPUs can be read from here. */
static bool is_in_memory(unsigned node)
{
    return starpu_node_get_kind(node) == STARPU_CPU_RAM;
}

static void append_event(struct starpu_task *task, uint32_t kind)
{
    const int worker = starpu_worker_get_id();
    struct probe_event event = {
        .task = task_number(task),
        .kind = kind,
        .worker = kind == PROBE_READY ? -1 : worker,
        .implementation = kind == PROBE_START ? starpu_task_get_implementation(task) : 0,
    };
    if (kind == PROBE_START && worker >= 0 && !is_in_memory(starpu_worker_get_memory_node((unsigned)worker)))
        event.implementation += PROBE_ON_DEVICE;
    pthread_mutex_lock(&lock);
    event.time_ns = now_ns();
    if (record_to)
        log_append(record_to, PROBE_EVENTS, &event);
    pthread_mutex_unlock(&lock);
}

void recorder_ready(struct starpu_task *task)
{
    append_event(task, PROBE_READY);
}

/* Contributions to a reduction and scratch memory are a worker's own. */
static bool can_read(enum starpu_data_access_mode mode)
{
    return (mode & (STARPU_SCRATCH | STARPU_REDUX)) == 0;
}

static bool only_writes(enum starpu_data_access_mode mode)
{
    return (mode & STARPU_RW) == STARPU_W;
}

/* The variants of poison that a task's other accesses have got: what of it is in this one was copied. */
static unsigned other_variants(struct starpu_task *task, unsigned access)
{
    const unsigned num_accesses = STARPU_TASK_GET_NBUFFERS(task);
    unsigned variants = 0;
    for (unsigned i = 0; i < num_accesses; i++)
        if (i != access && only_writes(STARPU_TASK_GET_MODE(task, i)))
            variants |= known_of(STARPU_TASK_GET_HANDLE(task, i))->poison;
    return variants;
}

static void hash_interface(struct starpu_task *task, unsigned access, enum probe_hash_time when, unsigned node,
                           void *interface)
{
    const starpu_data_handle_t handle = STARPU_TASK_GET_HANDLE(task, access);
    const struct known *known = known_of(handle);
    struct probe_hash record = {.task = task_number(task), .access = access, .time = when};
    const bool has_poison = settings.poison != POISON_NONE && record_to && is_in_memory(node);
    const unsigned others = has_poison && when == PROBE_AFTER ? other_variants(task, access) : 0;
    if (!content_hash(handle, interface, node, poison_translation(others), &record.hash))
        return;
    if (has_poison && when == PROBE_BEFORE)
        variants_before |= poison_find(handle, interface, ALL_VARIANTS, &record.poison_left);
    /* Of tasks that commute, each may write a part. */
    else if (has_poison && only_writes(STARPU_TASK_GET_MODE(task, access)) && !known->commutes)
        poison_find(handle, interface, known->poison, &record.poison_left);
    if (when == PROBE_AFTER && record.poison_left > 0 && known->was_filled)
        record.poison_left |= PROBE_WAS_FILLED;
    pthread_mutex_lock(&lock);
    if (record_to)
        log_append(record_to, PROBE_HASHES, &record);
    pthread_mutex_unlock(&lock);
    if (has_mark(task, MARK_KEPT))
        keep_contents(handle, interface, record.hash);
}

static void hash_access(struct starpu_task *task, unsigned access, enum probe_hash_time when, unsigned node)
{
    const starpu_data_handle_t handle = STARPU_TASK_GET_HANDLE(task, access);
    void *there = interface_of(task, access);
    void *interface = !there || is_in_memory(node) ? there : content_fetch(handle, there, node);
    if (interface)
        hash_interface(task, access, when, node, interface);
    if (interface != there)
        content_release(handle, interface);
}

/* Whether another entry of the task has the same memory: the same handle, or one that a program has registered for the
 * same bytes and switches to by hand. Such memory may have to keep its contents. */
static bool is_alone(struct starpu_task *task, unsigned access)
{
    const unsigned num_accesses = STARPU_TASK_GET_NBUFFERS(task);
    for (unsigned i = 0; i < num_accesses; i++) {
        if (i != access && (STARPU_TASK_GET_MODE(task, i) & STARPU_SCRATCH) == 0 &&
            content_overlaps(STARPU_TASK_GET_HANDLE(task, i), interface_of(task, i),
                             STARPU_TASK_GET_HANDLE(task, access), interface_of(task, access)))
            return false;
    }
    return true;
}

/* Memory that StarPU has allocated for a handle contains what other handles left there, until a task writes it. */
static void clear_new(starpu_data_handle_t handle, void *interface, enum starpu_data_access_mode mode)
{
    struct known *known = known_of(handle);
    if (!known || known->has_started)
        return;
    known->has_started = true;
    if (only_writes(mode) && starpu_data_get_home_node(handle) < 0 && interface)
        poison_clear(handle, interface);
}

/* Of tasks that commute, only the first gets poison: the others would find it where that has written its part. */
static void poison_access(struct starpu_task *task, unsigned access)
{
    const starpu_data_handle_t handle = STARPU_TASK_GET_HANDLE(task, access);
    const enum starpu_data_access_mode mode = STARPU_TASK_GET_MODE(task, access);
    const bool is_other = has_mark(task, MARK_KEPT) && settings.other_poison == access + 1;
    struct known *known = known_of(handle);
    void *interface = interface_of(task, access);
    const bool goes_on = known->commutes && (mode & STARPU_COMMUTE) != 0;
    unsigned variant = POISON_OF_SCRATCH;
    if (!interface)
        return;
    known->commutes = (mode & STARPU_COMMUTE) != 0;
    if ((mode & STARPU_SCRATCH) == 0) {
        if (!only_writes(mode) || goes_on)
            return;
        known->poison = 0;
        if (!is_alone(task, access))
            return;
        for (variant = 0; variant < POISON_VARIANTS - 1 && (variants_before >> variant & 1) != 0;)
            variant++;
        known->poison = 1u << variant;
        variants_before |= known->poison;
    }
    known->was_filled = poison_put(handle, interface, task_number(task), variant, is_other);
}

static void look_before(struct starpu_task *task, unsigned node)
{
    const unsigned num_accesses = STARPU_TASK_GET_NBUFFERS(task);
    const bool is_copy = (flags_of(task) & PROBE_INTERNAL) != 0 && num_accesses == 2 && is_in_memory(node) &&
                         only_writes(STARPU_TASK_GET_MODE(task, 0));
    if (settings.hash && is_copy && starpu_data_get_home_node(STARPU_TASK_GET_HANDLE(task, 0)) < 0)
        look_at_the_last(STARPU_TASK_GET_HANDLE(task, 0), STARPU_TASK_GET_HANDLE(task, 1));
    variants_before = 0;
    for (unsigned i = 0; i < num_accesses; i++) {
        const enum starpu_data_access_mode mode = STARPU_TASK_GET_MODE(task, i);
        if (!can_read(mode))
            continue;
        clear_new(STARPU_TASK_GET_HANDLE(task, i), interface_of(task, i), mode);
        if (settings.hash && (mode & STARPU_R) != 0)
            hash_access(task, i, PROBE_BEFORE, node);
    }
    for (unsigned i = 0; i < num_accesses && settings.poison != POISON_NONE && record_to; i++)
        if ((STARPU_TASK_GET_MODE(task, i) & STARPU_REDUX) == 0 && is_in_memory(node))
            poison_access(task, i);
}

static void watch(struct starpu_task *task)
{
    const bool is_near = is_in_memory(starpu_worker_get_memory_node((unsigned)starpu_worker_get_id_check()));
    unsigned num_accesses = STARPU_TASK_GET_NBUFFERS(task), count = 0;
    struct declared *list = calloc(num_accesses + 1, sizeof *list);
    STARPU_ASSERT_MSG(list, "starpullm's probe: no memory");
    for (unsigned i = 0; i < num_accesses; i++) {
        const starpu_data_handle_t handle = STARPU_TASK_GET_HANDLE(task, i);
        const int id = starpu_data_get_interface_id(handle);
        void *interface = interface_of(task, i);
        const enum starpu_data_access_mode mode = STARPU_TASK_GET_MODE(task, i);
        if (id == STARPU_VOID_INTERFACE_ID)
            continue;
        list[count].handle = number_of(handle);
        list[count].is_plain = interface && is_near && content_layout(id, interface, &list[count].layout);
        list[count].is_shared = (mode & (STARPU_SCRATCH | STARPU_REDUX)) == 0;
        list[count++].writes = (mode & STARPU_W) != 0;
    }
    undeclared_begin(task, task_number(task), list, count);
}

void recorder_started(struct starpu_task *task)
{
    const int worker = starpu_worker_get_id();
    num_unseen--;
    if (has_mark(task, MARK_AWAITED))
        release_held_tasks();
    const bool goes_on = has_mark(task, MARK_STARTED);
    if (worker >= 0 && (settings.hash || settings.poison) && !goes_on)
        look_before(task, starpu_worker_get_memory_node((unsigned)worker));
    crash_task(task_number(task));
    if (!goes_on)
        append_event(task, PROBE_START);
    set_started(task, true);
    /* StarPU's own may end without a word to the policy. */
    if (settings.watch && (flags_of(task) & PROBE_INTERNAL) == 0)
        watch(task);
}

/* An access whose order is free has been released before this hook, so another task may be changing its data. Where
 * sequential consistency is off, the program may have ordered its tasks otherwise. Both are looked at when one task
 * runs at a time. */
static void look_after(struct starpu_task *task, enum probe_hash_time when, unsigned node)
{
    const unsigned num_accesses = STARPU_TASK_GET_NBUFFERS(task);
    for (unsigned i = 0; i < num_accesses; i++) {
        const enum starpu_data_access_mode mode = STARPU_TASK_GET_MODE(task, i);
        const bool may_commute = (mode & STARPU_COMMUTE) != 0 && !has_mark(task, MARK_ORDERED);
        const bool is_its_own = settings.max_workers == 1 || (!may_commute && !has_no_order(task, i));
        if (can_read(mode) && is_its_own)
            hash_access(task, i, when, node);
    }
}

/* Waits for what is in the queue that StarPU gives to tasks. OpenCL is there where StarPU uses it. */
static void wait_for_device(int device)
{
    void *queue, (*get_queue)(int, void **);
    int (*finish)(void *);
    *(void **)&get_queue = dlsym(RTLD_DEFAULT, "starpu_opencl_get_queue");
    *(void **)&finish = dlsym(RTLD_DEFAULT, "clFinish");
    if (!get_queue || !finish)
        return;
    get_queue(device, &queue);
    finish(queue);
}

void recorder_ended(struct starpu_task *task)
{
    const int worker = starpu_worker_get_id();
    const unsigned node = worker >= 0 ? starpu_worker_get_memory_node((unsigned)worker) : STARPU_MAIN_RAM;
    if (settings.watch)
        undeclared_end();
    if (settings.hash && !is_in_memory(node)) {
        look_after(task, PROBE_RETURNED, node);
        wait_for_device(starpu_worker_get_devid(worker));
    }
    if (worker >= 0 && settings.hash)
        look_after(task, PROBE_AFTER, node);
    append_event(task, PROBE_END);
    set_started(task, false);
    crash_task(UINT64_MAX);
}
