/* Runs programs of `starpullm fuzz` with StarPU. A program is a text: a line for each operation, in the order of
 * submission, with the digests that tasks must see when they run. docs/fuzz.md describes the operations.
 * Programs come one after another on standard input; the reply to each is a line, "ok" or what was wrong first.
 * A failure that is found is printed as a program of its own: the functions from here, and a main() that calls them. */
#include <starpu.h>

#include <ctype.h>
#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VERSION = 1, MAX_HANDLES = 256, MAX_TASKS = 1024, MAX_ACCESSES = 5, MAX_CHILDREN = 16, MAX_CONTEXTS = 4 };
enum { VARIABLE, VECTOR, MATRIX, SPARSE };
enum {
    R = STARPU_R,
    W = STARPU_W,
    RW = STARPU_RW,
    SCRATCH = STARPU_SCRATCH,
    REDUX = STARPU_REDUX,
    MPI_REDUX = STARPU_MPI_REDUX,
    COMMUTE = RW | STARPU_COMMUTE
};
enum { WAITABLE = 1, SYNCHRONOUS = 2, TAGGED = 4, WITHOUT_SEQUENTIAL_CONSISTENCY = 8 };
enum { WAITED_BEFORE = 16, PARALLEL = 32, SYNCHRONOUS_SENDS = 64 }; /* further flags of a task */
enum { SEQUENTIALLY_CONSISTENT = 1, WITHOUT_REDUCTION = 2 };
enum { ANY_WORKER, EXECUTE_ON_WORKER, CAN_EXECUTE, WORKER_IDS };
enum { AT_ONCE, IN_CALLBACK, HELD };

/* ny rows of nx numbers; a row begins ld numbers after the one before it. */
struct view {
    uint64_t *first;
    size_t nx, ny, ld;
};

static starpu_data_handle_t handles[MAX_HANDLES]; /* parts of one partition are neighbours */
static struct view homes[MAX_HANDLES];            /* first is NULL without one */
static unsigned contexts[MAX_CONTEXTS];           /* StarPU's numbers; the first is 0, or of parallel workers */

static struct {
    struct starpu_task *task; /* while it is to be waited for */
    uint32_t workers;         /* set of those that may run it */
    uint64_t context;         /* 0: that of all workers */
    pthread_t waiter;         /* waits for it, from before it is submitted */
    atomic_int runs, helpers;
    int expected_runs, expected_helpers, num_children;
    const uint64_t *children[MAX_CHILDREN]; /* submitted by its callback */
} tasks[MAX_TASKS];

static atomic_int running[STARPU_NMAX_SCHED_CTXS]; /* tasks in each context of one parallel worker */

static uint64_t unit;          /* each element of a program is so many numbers, all the same */
static starpu_tag_t first_tag; /* of this program */
static char failure[500];      /* the first one; empty: none */
static atomic_flag has_failed = ATOMIC_FLAG_INIT;

/* Keeps the first sentence. */
#define fail(...)                                           \
    do {                                                    \
        if (!atomic_flag_test_and_set(&has_failed))         \
            snprintf(failure, sizeof failure, __VA_ARGS__); \
    } while (0)

/* ---- What tasks do with data ---- */

static struct view view_of(void *interface)
{
    switch (*(enum starpu_data_interface_id *)interface) {
    case STARPU_VARIABLE_INTERFACE_ID:
        return (struct view){(uint64_t *)STARPU_VARIABLE_GET_PTR(interface),
                             STARPU_VARIABLE_GET_ELEMSIZE(interface) / sizeof(uint64_t), 1, 0};
    case STARPU_VECTOR_INTERFACE_ID:
        return (struct view){(uint64_t *)STARPU_VECTOR_GET_PTR(interface), STARPU_VECTOR_GET_NX(interface), 1, 0};
    case STARPU_CSR_INTERFACE_ID:
        return (struct view){(uint64_t *)STARPU_CSR_GET_NZVAL(interface), STARPU_CSR_GET_NNZ(interface), 1, 0};
    default:
        return (struct view){(uint64_t *)STARPU_MATRIX_GET_PTR(interface), STARPU_MATRIX_GET_NX(interface),
                             STARPU_MATRIX_GET_NY(interface), STARPU_MATRIX_GET_LD(interface)};
    }
}

static uint64_t mix(uint64_t x, uint64_t y)
{
    x = (x ^ y) * 0x9e3779b97f4a7c15U;
    return x ^ x >> 29;
}

static uint64_t *number_at(struct view view, size_t i)
{
    return view.first + i / view.nx * view.ld + i % view.nx;
}

/* The sum of the elements with odd weights; all numbers of an element have to be the same. */
static uint64_t digest(struct view view)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < view.nx * view.ny; i++) {
        const uint64_t number = *number_at(view, i);
        if (number != *number_at(view, i / unit * unit))
            return ~number; /* no digest that anyone expects */
        sum += i % unit ? 0 : (2 * (i / unit) + 1) * number;
    }
    return sum;
}

enum change { SET, MIX, ADD };

/* Sets each element to a mix of the value and the element's place, or mixes it in, or adds the value to it. */
static void change(struct view view, enum change how, uint64_t value)
{
    for (size_t i = 0; i < view.nx * view.ny; i++) {
        uint64_t *number = number_at(view, i);
        *number = how == ADD ? *number + value : mix(how == MIX ? *number : 0, value + i / unit);
    }
}

static void delay(uint64_t microseconds)
{
    if (microseconds % 4 == 1)
        sched_yield();
    else if (microseconds)
        usleep((useconds_t)microseconds);
}

/* The accesses are handle, mode and expected digest each. What a task reads must be as expected and stay so, and what
 * it has written must stay too, until the task ends. */
static void run_accesses(uint64_t number, uint64_t pause, int count, const uint64_t *accesses, struct view *views)
{
    atomic_fetch_add(&tasks[number].runs, 1);
    uint64_t seen[MAX_ACCESSES], read = number;
    for (int i = 0; i < count; i++) {
        const uint64_t *access = accesses + 3 * i;
        seen[i] = digest(views[i]);
        if (access[1] == R || access[1] == RW) {
            read = mix(read, seen[i]);
            if (seen[i] != access[2])
                fail("task %" PRIu64 " sees %016" PRIx64 " in handle %" PRIu64 ", expected %016" PRIx64, number,
                     seen[i], access[0], access[2]);
        }
    }
    delay(pause);
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < count; i++)
            if (digest(views[i]) != seen[i])
                fail("task %" PRIu64 ": handle %" PRIu64 " changes while the task runs", number, accesses[3 * i]);
        for (int i = 0; i < count && turn == 0; i++) {
            const uint64_t mode = accesses[3 * i + 1];
            if (mode != R)
                change(views[i], mode == RW ? MIX : mode == W || mode == SCRATCH ? SET : ADD, read);
            seen[i] = digest(views[i]);
        }
        delay(turn == 0 ? pause : 0);
    }
}

/* ---- Tasks ----
 * number, flags, priority, workers, worker, implementation (-1: any), task that submits it (-1: the program),
 * pause in microseconds, count and accesses, count and tasks that it depends on by tags */
enum { NUMBER, FLAGS, PRIORITY, WORKERS, WORKER, IMPLEMENTATION, PARENT, PAUSE, COUNT, ACCESSES };

static bool is_on(const uint64_t *task, unsigned worker)
{
    const unsigned chosen = (unsigned)task[WORKER] % starpu_worker_get_count();
    return task[WORKERS] == ANY_WORKER || (task[WORKERS] == WORKER_IDS ? worker <= chosen : worker == chosen);
}

static bool is_in(const uint64_t *task, unsigned implementation)
{
    return (int)task[IMPLEMENTATION] < 0 || task[IMPLEMENTATION] == implementation;
}

static void kernel(void **buffers, void *arguments)
{
    const uint64_t *a = arguments, number = a[NUMBER], implementation = a[IMPLEMENTATION];
    struct starpu_task *task = starpu_task_get_current();
    if (task->cl->type == STARPU_SPMD) {
        if (starpu_combined_worker_get_rank() > 0) {
            atomic_fetch_add(&tasks[number].helpers, 1);
            return;
        }
        tasks[number].expected_helpers = starpu_combined_worker_get_size() - 1;
    }
    struct view views[MAX_ACCESSES];
    for (int i = 0; i < (int)a[COUNT]; i++)
        views[i] = view_of(buffers[i]);
    if (!is_on(a, (unsigned)starpu_worker_get_id()) || (a[WORKERS] && starpu_combined_worker_get_size() > 1))
        fail("task %" PRIu64 " runs on worker %d, which it excludes", number, starpu_worker_get_id());
    if (!starpu_sched_ctx_contains_worker(starpu_worker_get_id(), contexts[tasks[number].context]))
        fail("task %" PRIu64 " runs on worker %d, which isn't in its context", number, starpu_worker_get_id());
    if (!is_in(a, starpu_task_get_implementation(task)))
        fail("task %" PRIu64 " runs in another implementation than %" PRIu64, number, implementation);
    const unsigned context = task->sched_ctx;
    const bool in_team = contexts[0] && context != contexts[0]; /* schedulers of components leave it in that of all */
    if (in_team && atomic_fetch_add(&running[context], 1) > 0)
        fail("task %" PRIu64 " begins while another one runs in its parallel worker", number);
    run_accesses(number, a[PAUSE], (int)a[COUNT], a + ACCESSES, views);
    atomic_fetch_sub(&running[context], in_team);
}

static int can_execute(unsigned worker, struct starpu_task *task, unsigned implementation)
{
    const uint64_t *a = task->cl_arg;
    return (a[WORKERS] != CAN_EXECUTE || is_on(a, worker)) && is_in(a, implementation);
}

static struct starpu_codelet codelet = {
    .cpu_funcs = {kernel, kernel}, .can_execute = can_execute, .nbuffers = STARPU_VARIABLE_NBUFFERS, .name = "fuzz"};

/* On a combined worker the first of the workers runs it, or all of them, of which the first one has the accesses. */
static struct starpu_codelet parallel_codelets[] = {{.type = STARPU_FORKJOIN,
                                                     .max_parallelism = 8,
                                                     .cpu_funcs = {kernel, kernel},
                                                     .can_execute = can_execute,
                                                     .nbuffers = STARPU_VARIABLE_NBUFFERS,
                                                     .name = "fork-join"},
                                                    {.type = STARPU_SPMD,
                                                     .max_parallelism = 8,
                                                     .cpu_funcs = {kernel, kernel},
                                                     .can_execute = can_execute,
                                                     .nbuffers = STARPU_VARIABLE_NBUFFERS,
                                                     .name = "spmd"}};

static struct starpu_codelet *codelet_of(const uint64_t *task)
{
    return task[FLAGS] & PARALLEL ? &parallel_codelets[task[NUMBER] % 2] : &codelet;
}

static void submit(const uint64_t *a);

static void callback(void *arguments)
{
    const uint64_t number = ((const uint64_t *)arguments)[NUMBER];
    for (int i = 0; i < tasks[number].num_children; i++)
        submit(tasks[number].children[i]);
}

static void *waiter(void *task)
{
    if (starpu_task_wait(task) != 0)
        fail("a task can't be waited for before it is submitted");
    return NULL;
}

/* The task has its accesses. */
static void submit_created(struct starpu_task *task, const uint64_t *a)
{
    const uint64_t *dependencies = a + ACCESSES + 3 * a[COUNT];
    task->cl_arg = (void *)a;
    task->priority = (int)a[PRIORITY];
    task->execute_on_a_specific_worker = a[WORKERS] == EXECUTE_ON_WORKER;
    task->workerid = (unsigned)a[WORKER] % starpu_worker_get_count();
    if (a[WORKERS] == WORKER_IDS) {
        tasks[a[NUMBER]].workers = (2U << task->workerid) - 1;
        task->workerids = &tasks[a[NUMBER]].workers;
        task->workerids_len = 1;
    }
    if (contexts[tasks[a[NUMBER]].context])
        task->sched_ctx = contexts[tasks[a[NUMBER]].context];
    task->callback_func = callback;
    task->callback_arg = (void *)a;
    task->detach = !(a[FLAGS] & WAITABLE);
    task->synchronous = (a[FLAGS] & SYNCHRONOUS) != 0;
    task->sequential_consistency = !(a[FLAGS] & WITHOUT_SEQUENTIAL_CONSISTENCY);
    if (a[FLAGS] & TAGGED) {
        starpu_tag_t tags[MAX_TASKS];
        for (int i = 0; i < (int)dependencies[0]; i++)
            tags[i] = first_tag + dependencies[1 + i];
        task->use_tag = 1;
        task->tag_id = first_tag + a[NUMBER];
        starpu_tag_declare_deps_array(task->tag_id, (unsigned)dependencies[0], tags);
    }
    tasks[a[NUMBER]].task = task;
    if (a[FLAGS] & WAITED_BEFORE) {
        pthread_create(&tasks[a[NUMBER]].waiter, NULL, waiter, task);
        delay(200);
    }
    if (starpu_task_submit(task) != 0)
        fail("task %" PRIu64 " can't be submitted", a[NUMBER]);
}

static void submit(const uint64_t *a)
{
    struct starpu_task *task = starpu_task_create();
    task->cl = codelet_of(a);
    task->nbuffers = (int)a[COUNT];
    for (int i = 0; i < task->nbuffers; i++) {
        STARPU_TASK_SET_HANDLE(task, handles[a[ACCESSES + 3 * i]], i);
        STARPU_TASK_SET_MODE(task, (enum starpu_data_access_mode)a[ACCESSES + 3 * i + 1], i);
    }
    submit_created(task, a);
}

void op_task(const uint64_t *a)
{
    tasks[a[NUMBER]].expected_runs = 1;
    if ((int)a[PARENT] < 0)
        submit(a);
    else
        tasks[a[PARENT]].children[tasks[a[PARENT]].num_children++] = a;
}

/* context, a task */
void op_context_task(const uint64_t *a)
{
    tasks[a[1 + NUMBER]].context = a[0];
    op_task(a + 1);
}

/* task */
void op_wait(const uint64_t *a)
{
    if (!tasks[a[0]].task)
        return; /* another rank has it */
    if (tasks[a[0]].waiter)
        pthread_join(tasks[a[0]].waiter, NULL);
    else if (starpu_task_wait(tasks[a[0]].task) != 0)
        fail("task %" PRIu64 " can't be waited for", a[0]);
    if (atomic_load(&tasks[a[0]].runs) != 1)
        fail("task %" PRIu64 " was waited for, and has run %d times", a[0], atomic_load(&tasks[a[0]].runs));
}

/* ---- Handles ---- */

static void init_function(void **buffers, void *arguments)
{
    (void)arguments;
    const struct view view = view_of(buffers[0]);
    for (size_t i = 0; i < view.nx * view.ny; i++)
        *number_at(view, i) = 0;
}

static void redux_function(void **buffers, void *arguments)
{
    (void)arguments;
    const struct view sum = view_of(buffers[0]), part = view_of(buffers[1]);
    for (size_t i = 0; i < sum.nx * sum.ny; i++)
        *number_at(sum, i) += *number_at(part, i);
}

static struct starpu_codelet init_codelet = {
    .cpu_funcs = {init_function}, .nbuffers = 1, .modes = {STARPU_W}, .name = "init"};
static struct starpu_codelet redux_codelet = {
    .cpu_funcs = {redux_function}, .nbuffers = 2, .modes = {STARPU_RW | STARPU_COMMUTE, STARPU_R}, .name = "redux"};

/* handle, kind, columns, rows, whether it has a home (whose elements are set by the handle's number),
 * flags */
void op_handle(const uint64_t *a)
{
    struct view view = {NULL, a[2] * unit, a[3], a[2] * unit + (a[4] && a[1] == MATRIX ? 3 : 0)};
    if (a[4] && view.nx * view.ny > 0) {
        view.first = calloc(view.ld * view.ny, sizeof(uint64_t));
        change(view, SET, a[0]);
    }
    const int node = a[4] ? STARPU_MAIN_RAM : -1;
    const uintptr_t home = (uintptr_t)view.first;
    const uint32_t nx = (uint32_t)view.nx;
    starpu_data_handle_t *handle = &handles[a[0]];
    if (a[1] == VARIABLE)
        starpu_variable_data_register(handle, node, home, nx * sizeof(uint64_t));
    else if (a[1] == VECTOR)
        starpu_vector_data_register(handle, node, home, nx, sizeof(uint64_t));
    else if (a[1] == SPARSE) {
        static uint32_t columns[1 << 17], row_starts[MAX_HANDLES][5]; /* all elements are in the first column */
        const uint32_t ny = (uint32_t)view.ny;
        for (uint32_t row = 0; row <= ny; row++)
            row_starts[a[0]][row] = row * nx;
        starpu_csr_data_register(handle, node, nx * ny, ny, home, columns, row_starts[a[0]], 0, sizeof(uint64_t));
    } else
        starpu_matrix_data_register(handle, node, home, (uint32_t)view.ld, nx, (uint32_t)view.ny, sizeof(uint64_t));
    if (!(a[5] & WITHOUT_REDUCTION))
        starpu_data_set_reduction_methods(*handle, &redux_codelet, &init_codelet);
    starpu_data_set_sequential_consistency_flag(*handle, (a[5] & SEQUENTIALLY_CONSISTENT) != 0);
    homes[a[0]] = view;
}

/* handle, whether its content at home is known, digest of that content */
void op_unregister(const uint64_t *a)
{
    starpu_data_unregister(handles[a[0]]);
    if (a[1] && homes[a[0]].first && digest(homes[a[0]]) != a[2])
        fail("handle %" PRIu64 ": at home is something else than was written last", a[0]);
    free(homes[a[0]].first);
}

static struct view in_main_memory(uint64_t handle)
{
    return view_of(starpu_data_get_interface_on_node(handles[handle], STARPU_MAIN_RAM));
}

/* number, how, pause in microseconds, one access */
static void use_acquired(void *arguments)
{
    const uint64_t *a = arguments;
    const starpu_data_handle_t handle = handles[a[3]];
    struct view view = in_main_memory(a[3]);
    run_accesses(a[0], a[2], 1, a + 3, &view);
    if (a[1] != HELD)
        starpu_data_release(handle);
}

void op_acquire(const uint64_t *a)
{
    const starpu_data_handle_t handle = handles[a[3]];
    tasks[a[0]].expected_runs = 1;
    if (a[1] == IN_CALLBACK) {
        starpu_data_acquire_cb(handle, (enum starpu_data_access_mode)a[4], use_acquired, (void *)a);
    } else {
        starpu_data_acquire(handle, (enum starpu_data_access_mode)a[4]);
        use_acquired((void *)a);
    }
}

/* ---- Partitions ---- */

/* handle, whether by rows, number of parts, handle of the first part, whether it is a plan */
void op_partition(const uint64_t *a)
{
    const starpu_data_handle_t parent = handles[a[0]];
    const enum starpu_data_interface_id kind = starpu_data_get_interface_id(parent);
    struct starpu_data_filter filter = {
        .filter_func = kind == STARPU_VECTOR_INTERFACE_ID ? starpu_vector_filter_block
                       : kind == STARPU_CSR_INTERFACE_ID  ? starpu_csr_filter_vertical_block
                       : a[1]                             ? starpu_matrix_filter_vertical_block
                                                          : starpu_matrix_filter_block,
        .nchildren = (unsigned)a[2],
    };
    starpu_data_handle_t *parts = handles + a[3];
    if (a[4])
        starpu_data_partition_plan(parent, &filter, parts);
    else
        starpu_data_partition(parent, &filter);
    for (int i = 0; i < (int)a[2] && !a[4]; i++)
        parts[i] = starpu_data_get_sub_data(parent, 1, i);
}

/* context, scheduler, first worker, number of workers */
void op_context(const uint64_t *a)
{
    static const char *const schedulers[] = {"lws", "eager", "prio", "ws", "dmda"};
    const unsigned available = starpu_worker_get_count();
    const int count = 1 + (int)(a[3] % available);
    int workers[STARPU_NMAXWORKERS];
    for (int i = 0; i < count; i++)
        workers[i] = (int)((a[2] + (unsigned)i) % available);
    contexts[a[0]] = starpu_sched_ctx_create(workers, count, "fuzz", STARPU_SCHED_CTX_POLICY_NAME,
                                             schedulers[a[1] % (sizeof schedulers / sizeof *schedulers)], 0);
}

/* 0 to end the parallel workers; else their number is drawn from it, from 1 to that of the workers */
void op_parallel_workers(const uint64_t *a)
{
#ifdef STARPU_PARALLEL_WORKER
    static struct starpu_parallel_worker_config *made;
    if (a[0])
        made = starpu_parallel_worker_init(HWLOC_OBJ_MACHINE, STARPU_PARALLEL_WORKER_NB,
                                           1 + (int)(a[0] % starpu_worker_get_count()), STARPU_PARALLEL_WORKER_TYPE,
                                           STARPU_PARALLEL_WORKER_OPENMP, 0);
    else
        starpu_parallel_worker_shutdown(made);
    contexts[0] = a[0] ? starpu_sched_ctx_get_context() : 0;
#else
    (void)a;
#endif
}

/* ---- Operations that look at main memory without an access, if there is no other ---- */

static bool has_one_node(void)
{
    return starpu_memory_nodes_get_count() == 1;
}

/* handle, mode, expected digest when the synchronising task has ended */
void op_synchronise(const uint64_t *a)
{
    struct starpu_task *task = starpu_task_create_sync(handles[a[0]], (enum starpu_data_access_mode)a[1]);
    task->synchronous = 1;
    if (starpu_task_submit(task) != 0 || (has_one_node() && digest(in_main_memory(a[0])) != a[2]))
        fail("handle %" PRIu64 " isn't as expected after a synchronising task", a[0]);
}

/* handle, whether StarPU must free its memory then */
void op_invalidate(const uint64_t *a)
{
    starpu_data_invalidate(handles[a[0]]);
    if (a[1] && has_one_node() && in_main_memory(a[0]).first)
        fail("handle %" PRIu64 ": its memory is kept after it was invalidated", a[0]);
}

/* ---- Operations that are one call of StarPU ---- */

/* The memory nodes of CPUs are numbered from 0 on. */
static unsigned node(uint64_t number)
{
    return (unsigned)number % (unsigned)starpu_memory_nodes_get_count_by_kind(STARPU_CPU_RAM);
}

#define OPERATION(name, call)    \
    void name(const uint64_t *a) \
    {                            \
        (void)a;                 \
        call;                    \
    }

OPERATION(op_wait_for_all, starpu_task_wait_for_all())
OPERATION(op_pause, starpu_pause())
OPERATION(op_resume, starpu_resume())
/* context */
OPERATION(op_delete_context, starpu_sched_ctx_delete(contexts[a[0]]))
/* handle */
OPERATION(op_release, starpu_data_release(handles[a[0]]))
OPERATION(op_unregister_submit, starpu_data_unregister_submit(handles[a[0]]))
OPERATION(op_invalidate_submit, starpu_data_invalidate_submit(handles[a[0]]))
/* handle, node */
OPERATION(op_evict, starpu_data_evict_from_node(handles[a[0]], node(a[1])))
OPERATION(op_unpartition, starpu_data_unpartition(handles[a[0]], node(a[1])))
/* handle, node, whether asynchronous */
OPERATION(op_prefetch, starpu_data_prefetch_on_node(handles[a[0]], node(a[1]), (unsigned)a[2]))
OPERATION(op_idle_prefetch, starpu_data_idle_prefetch_on_node(handles[a[0]], node(a[1]), (unsigned)a[2]))
OPERATION(op_fetch, starpu_data_fetch_on_node(handles[a[0]], node(a[1]), (unsigned)a[2]))
/* to, from, whether asynchronous */
OPERATION(op_copy, starpu_data_cpy(handles[a[0]], handles[a[1]], (int)a[2], NULL, NULL))
/* handle, first part, number of parts */
OPERATION(op_clean, starpu_data_partition_clean(handles[a[0]], (unsigned)a[2], handles + a[1]))

/* ---- Programs ---- */

static void begin(uint64_t numbers_per_element)
{
    unit = numbers_per_element;
    failure[0] = '\0';
    atomic_flag_clear(&has_failed);
    memset(tasks, 0, sizeof tasks);
}

/* All operations have been waited for. */
static void end(void)
{
    for (int i = 0; i < MAX_TASKS; i++) {
        const int runs = atomic_load(&tasks[i].runs), expected = tasks[i].expected_runs;
        if (runs != expected)
            fail("task %d has run %d times, expected %d", i, runs, expected);
        if (atomic_load(&tasks[i].helpers) != tasks[i].expected_helpers)
            fail("task %d has run on %d more workers, expected %d", i, atomic_load(&tasks[i].helpers),
                 tasks[i].expected_helpers);
        if (expected)
            starpu_tag_remove(first_tag + (starpu_tag_t)i);
    }
    first_tag += MAX_TASKS;
    const size_t used = starpu_memory_get_used(STARPU_MAIN_RAM);
    if (used && starpu_memory_nodes_get_count_by_kind(STARPU_CPU_RAM) == 1) /* else StarPU may keep some for later */
        fail("StarPU still uses %zu bytes, expected none without data", used);
}

/* ALONE: for several ranks, ranks.c is here */

enum { rank };
#define start() starpu_init(NULL)
#define stop() starpu_shutdown()

/* INTERPRETER: what is below reads programs */

static uint64_t numbers[1 << 16]; /* of the operations of a program, which tasks keep until they end */
static size_t num_numbers;

static uint64_t number_of(const char *word)
{
    static const char *const names[] = {"R", "W", "RW", "SCRATCH", "REDUX", "MPI_REDUX", "COMMUTE"};
    static const uint64_t modes[] = {R, W, RW, SCRATCH, REDUX, MPI_REDUX, COMMUTE};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (strcmp(word, names[i]) == 0)
            return modes[i];
    return strtoull(word, NULL, 0);
}

/* Runs an operation, if no other rank is named before it. Returns false for an operation that there isn't. */
static bool run_line(char *line)
{
    char *rest = line, name[64], *first = strtok_r(line, " \n", &rest);
    if (isdigit((unsigned char)*first)) {
        if (atoi(first) != rank)
            return true;
        first = strtok_r(NULL, " \n", &rest);
    }
    snprintf(name, sizeof name, "op_%s", first);
    const uint64_t *arguments = numbers + num_numbers;
    for (char *word; (word = strtok_r(NULL, " \n", &rest)); num_numbers++) {
        if (num_numbers == sizeof numbers / sizeof *numbers)
            return false;
        numbers[num_numbers] = number_of(word);
    }
    void (*run)(const uint64_t *);
    *(void **)&run = dlsym(RTLD_DEFAULT, name);
    if (run)
        run(arguments);
    return run != NULL;
}

int main(void)
{
    char programs[32], replies[32];
    if (start() != 0)
        return 2;
    snprintf(programs, sizeof programs, "programs-%d", rank);
    snprintf(replies, sizeof replies, "replies-%d", rank);
    if (!freopen(programs, "r", stdin) || !freopen(replies, "w", stdout))
        return 2;
    printf("%u workers, %u memory nodes, scheduler %s\n", starpu_worker_get_count(), starpu_memory_nodes_get_count(),
           starpu_sched_ctx_get_sched_policy(0)->policy_name);
    fflush(stdout);
    char *line = NULL;
    size_t capacity = 0;
    while (getline(&line, &capacity, stdin) > 0) {
        int version = 0;
        uint64_t numbers_per_element;
        if (sscanf(line, "starpullm-fuzz %d %" SCNu64, &version, &numbers_per_element) != 2 || version != VERSION) {
            printf("a program of version %d, expected %d\n", version, VERSION);
            return 2;
        }
        begin(numbers_per_element);
        num_numbers = 0;
        while (getline(&line, &capacity, stdin) > 0 && strcmp(line, "end\n") != 0)
            if (!run_line(line)) {
                printf("not an operation: %s\n", line);
                return 2;
            }
        end();
        printf("%s\n", failure[0] ? failure : "ok");
        fflush(stdout);
    }
    free(line);
    stop();
    return 0;
}
