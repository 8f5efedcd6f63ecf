/* Runs programs of `starpullm fuzz` with StarPU. A program is a text: a line for each operation, in the order of
 * submission, with the digests that tasks must see when they run. docs/fuzz.md describes the operations.
 * Programs come one after another on standard input; the reply to each is a line, "ok" or what was wrong first.
 * A failure that is found is printed as a program of its own: the functions from here that it needs, and a main() that
 * calls them. */
#include <starpu.h>

#include <inttypes.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VERSION = 1, MAX_HANDLES = 256, MAX_TASKS = 1024, MAX_ACCESSES = 5, MAX_CHILDREN = 16, MAX_PLANS = 64 };
enum { VARIABLE, VECTOR, MATRIX };
enum { WAITABLE = 1, SYNCHRONOUS = 2, TAGGED = 4, WITHOUT_SEQUENTIAL_CONSISTENCY = 8 };
enum { ANY_WORKER, EXECUTE_ON_WORKER, CAN_EXECUTE };
enum { AT_ONCE, IN_CALLBACK, HELD };

static struct {
    starpu_data_handle_t handle;
    uint64_t *home; /* NULL: without one */
    size_t bytes;
} data[MAX_HANDLES];

static struct {
    struct starpu_task *task; /* one that is waited for, or that ends by itself */
    atomic_int runs;
    int expected_runs, num_children;
    const uint64_t *children[MAX_CHILDREN]; /* submitted by its callback */
} tasks[MAX_TASKS];

static struct {
    starpu_data_handle_t parent, children[MAX_CHILDREN];
    int num_children;
} plans[MAX_PLANS];

static uint64_t unit;          /* each element of a program is so many numbers, all the same */
static starpu_tag_t first_tag; /* of this program */
static char failure[500];      /* the first one; empty: none */
static atomic_flag has_failed = ATOMIC_FLAG_INIT;

static void fail(const char *format, ...)
{
    if (atomic_flag_test_and_set(&has_failed))
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(failure, sizeof failure, format, arguments);
    va_end(arguments);
}

/* ---- What tasks do with data ---- */

/* ny rows of nx numbers; a row begins ld numbers after the one before it. */
struct view {
    uint64_t *first;
    size_t nx, ny, ld;
};

static struct view view_of(void *interface)
{
    switch (*(enum starpu_data_interface_id *)interface) {
    case STARPU_VARIABLE_INTERFACE_ID:
        return (struct view){(uint64_t *)STARPU_VARIABLE_GET_PTR(interface),
                             STARPU_VARIABLE_GET_ELEMSIZE(interface) / sizeof(uint64_t), 1, 0};
    case STARPU_VECTOR_INTERFACE_ID:
        return (struct view){(uint64_t *)STARPU_VECTOR_GET_PTR(interface), STARPU_VECTOR_GET_NX(interface), 1, 0};
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

/* The sum of the elements with odd weights; all numbers of an element have to be the same. */
static uint64_t digest(struct view view)
{
    uint64_t sum = 0, weight = 1;
    for (size_t y = 0; y < view.ny; y++)
        for (size_t x = 0; x < view.nx; x += unit, weight += 2) {
            const uint64_t *element = view.first + y * view.ld + x;
            for (size_t i = 1; i < unit; i++)
                if (element[i] != element[0])
                    return ~element[i]; /* no digest that anyone expects */
            sum += weight * element[0];
        }
    return sum;
}

enum change { SET, MIX, ADD };

/* Sets each element to a mix of the value and the element's place, or mixes it in, or adds the value to it. */
static void change(struct view view, enum change how, uint64_t value)
{
    uint64_t place = 0;
    for (size_t y = 0; y < view.ny; y++)
        for (size_t x = 0; x < view.nx; x += unit, place++) {
            uint64_t *element = view.first + y * view.ld + x;
            const uint64_t new = how == ADD ? element[0] + value : mix(how == MIX ? element[0] : 0, value + place);
            for (size_t i = 0; i < unit; i++)
                element[i] = new;
        }
}

static bool is_added_to(enum starpu_data_access_mode mode)
{
    return mode == STARPU_REDUX || mode & STARPU_COMMUTE;
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
    const bool first_run = atomic_fetch_add(&tasks[number].runs, 1) == 0;
    uint64_t seen[MAX_ACCESSES], read = number;
    for (int i = 0; i < count; i++) {
        const uint64_t *access = accesses + 3 * i, mode = access[1];
        seen[i] = digest(views[i]);
        if (mode & STARPU_R && !(mode & STARPU_COMMUTE)) {
            read = mix(read, seen[i]);
            if (first_run && seen[i] != access[2])
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
            const enum starpu_data_access_mode mode = (enum starpu_data_access_mode)accesses[3 * i + 1];
            if (is_added_to(mode))
                change(views[i], ADD, read);
            else if (mode != STARPU_R)
                change(views[i], mode == STARPU_RW ? MIX : SET, read);
            seen[i] = digest(views[i]);
        }
        delay(turn == 0 ? pause : 0);
    }
}

/* ---- Tasks ----
 * number, runs, flags, priority, workers, worker, implementation (-1: any), task that submits it (-1: the program),
 * pause in microseconds, count and accesses, count and tasks that it depends on by tags */
enum { NUMBER, RUNS, FLAGS, PRIORITY, WORKERS, WORKER, IMPLEMENTATION, PARENT, PAUSE, COUNT, ACCESSES };

static bool is_on(const uint64_t *task, unsigned worker)
{
    return task[WORKERS] == ANY_WORKER || worker == task[WORKER] % starpu_worker_get_count();
}

static void kernel(void **buffers, const uint64_t *task, int implementation)
{
    struct view views[MAX_ACCESSES];
    for (int i = 0; i < (int)task[COUNT]; i++)
        views[i] = view_of(buffers[i]);
    if (!is_on(task, (unsigned)starpu_worker_get_id()))
        fail("task %" PRIu64 " runs on worker %d, which it excludes", task[NUMBER], starpu_worker_get_id());
    if ((int)task[IMPLEMENTATION] >= 0 && (int)task[IMPLEMENTATION] != implementation)
        fail("task %" PRIu64 " runs in implementation %d, which it excludes", task[NUMBER], implementation);
    run_accesses(task[NUMBER], task[PAUSE], (int)task[COUNT], task + ACCESSES, views);
}

static void kernel_0(void **buffers, void *task)
{
    kernel(buffers, task, 0);
}

static void kernel_1(void **buffers, void *task)
{
    kernel(buffers, task, 1);
}

static int can_execute(unsigned worker, struct starpu_task *task, unsigned implementation)
{
    const uint64_t *arguments = task->cl_arg;
    return is_on(arguments, worker) &&
           ((int)arguments[IMPLEMENTATION] < 0 || arguments[IMPLEMENTATION] == implementation);
}

static struct starpu_codelet codelet = {.cpu_funcs = {kernel_0, kernel_1},
                                        .can_execute = can_execute,
                                        .nbuffers = STARPU_VARIABLE_NBUFFERS,
                                        .name = "fuzz"};

static void submit(const uint64_t *a);

static void callback(void *arguments)
{
    const uint64_t *a = arguments;
    const uint64_t number = a[NUMBER];
    for (int i = 0; i < tasks[number].num_children; i++)
        submit(tasks[number].children[i]);
    if (a[RUNS] > 1 && atomic_load(&tasks[number].runs) == (int)a[RUNS])
        tasks[number].task->regenerate = 0;
}

static void submit(const uint64_t *a)
{
    struct starpu_task *task = starpu_task_create();
    const uint64_t *access = a + ACCESSES, *dependencies = access + 3 * a[COUNT];
    task->cl = &codelet;
    task->cl_arg = (void *)a;
    task->nbuffers = (int)a[COUNT];
    for (int i = 0; i < (int)a[COUNT]; i++, access += 3) {
        STARPU_TASK_SET_HANDLE(task, data[access[0]].handle, i);
        STARPU_TASK_SET_MODE(task, (enum starpu_data_access_mode)access[1], i);
    }
    task->priority = (int)a[PRIORITY];
    task->execute_on_a_specific_worker = a[WORKERS] == EXECUTE_ON_WORKER;
    task->workerid = (unsigned)a[WORKER] % starpu_worker_get_count();
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
    if (a[RUNS] > 1) {
        task->regenerate = 1;
        task->destroy = 0;
    }
    tasks[a[NUMBER]].task = task;
    if (starpu_task_submit(task) != 0)
        fail("task %" PRIu64 " can't be submitted", a[NUMBER]);
    while (a[RUNS] > 1 && atomic_load(&tasks[a[NUMBER]].runs) < (int)a[RUNS])
        usleep(10);
}

static void op_task(const uint64_t *a)
{
    tasks[a[NUMBER]].expected_runs = (int)a[RUNS];
    if ((int)a[PARENT] < 0)
        submit(a);
    else
        tasks[a[PARENT]].children[tasks[a[PARENT]].num_children++] = a;
}

/* task */
static void op_wait(const uint64_t *a)
{
    if (starpu_task_wait(tasks[a[0]].task) != 0)
        fail("task %" PRIu64 " can't be waited for", a[0]);
    if (atomic_load(&tasks[a[0]].runs) != 1)
        fail("task %" PRIu64 " was waited for, and has run %d times", a[0], atomic_load(&tasks[a[0]].runs));
}

static void op_wait_for_all(const uint64_t *a)
{
    (void)a;
    starpu_task_wait_for_all();
}

static void op_pause(const uint64_t *a)
{
    (void)a;
    starpu_pause();
}

static void op_resume(const uint64_t *a)
{
    (void)a;
    starpu_resume();
}

/* ---- Handles ---- */

static void init_function(void **buffers, void *arguments)
{
    (void)arguments;
    const struct view view = view_of(buffers[0]);
    for (size_t y = 0; y < view.ny; y++)
        memset(view.first + y * view.ld, 0, view.nx * sizeof(uint64_t));
}

static void redux_function(void **buffers, void *arguments)
{
    (void)arguments;
    const struct view sum = view_of(buffers[0]), part = view_of(buffers[1]);
    for (size_t y = 0; y < sum.ny; y++)
        for (size_t x = 0; x < sum.nx; x++)
            sum.first[y * sum.ld + x] += part.first[y * part.ld + x];
}

static struct starpu_codelet init_codelet = {
    .cpu_funcs = {init_function}, .nbuffers = 1, .modes = {STARPU_W}, .name = "init"};
static struct starpu_codelet redux_codelet = {
    .cpu_funcs = {redux_function}, .nbuffers = 2, .modes = {STARPU_RW | STARPU_COMMUTE, STARPU_R}, .name = "redux"};

/* handle, kind, columns, rows, whether it has a home (whose elements are set by the handle's number),
 * whether it has sequential consistency */
static void op_handle(const uint64_t *a)
{
    const size_t nx = a[2] * unit, ny = a[3], ld = a[4] ? nx + (a[1] == MATRIX ? 3 : 0) : nx;
    const int node = a[4] ? STARPU_MAIN_RAM : -1;
    starpu_data_handle_t *handle = &data[a[0]].handle;
    data[a[0]].bytes = ld * ny * sizeof(uint64_t);
    data[a[0]].home = a[4] ? calloc(ld * ny, sizeof(uint64_t)) : NULL;
    if (a[4])
        change((struct view){data[a[0]].home, nx, ny, ld}, SET, a[0]);
    const uintptr_t home = (uintptr_t)data[a[0]].home;
    if (a[1] == VARIABLE)
        starpu_variable_data_register(handle, node, home, nx * sizeof(uint64_t));
    else if (a[1] == VECTOR)
        starpu_vector_data_register(handle, node, home, (uint32_t)nx, sizeof(uint64_t));
    else
        starpu_matrix_data_register(handle, node, home, (uint32_t)ld, (uint32_t)nx, (uint32_t)ny, sizeof(uint64_t));
    starpu_data_set_reduction_methods(*handle, &redux_codelet, &init_codelet);
    starpu_data_set_sequential_consistency_flag(*handle, (unsigned)a[5]);
}

/* handle, columns, rows, whether its content at home is known, digest of that content */
static void op_unregister(const uint64_t *a)
{
    starpu_data_unregister(data[a[0]].handle);
    const size_t nx = a[1] * unit, ld = data[a[0]].bytes / sizeof(uint64_t) / a[2];
    if (a[3] && digest((struct view){data[a[0]].home, nx, a[2], ld}) != a[4])
        fail("handle %" PRIu64 ": at home is something else than was written last", a[0]);
    free(data[a[0]].home);
    data[a[0]].home = NULL;
}

/* handle */
static void op_unregister_submit(const uint64_t *a)
{
    starpu_data_unregister_submit(data[a[0]].handle);
}

static void op_invalidate(const uint64_t *a)
{
    starpu_data_invalidate(data[a[0]].handle);
}

static void op_invalidate_submit(const uint64_t *a)
{
    starpu_data_invalidate_submit(data[a[0]].handle);
}

/* The memory nodes of CPUs are numbered from 0 on. */
static unsigned node_of(uint64_t number)
{
    return (unsigned)number % (unsigned)starpu_memory_nodes_get_count_by_kind(STARPU_CPU_RAM);
}

/* handle, node, whether asynchronous */
static void op_prefetch(const uint64_t *a)
{
    starpu_data_prefetch_on_node(data[a[0]].handle, node_of(a[1]), (unsigned)a[2]);
}

static void op_idle_prefetch(const uint64_t *a)
{
    starpu_data_idle_prefetch_on_node(data[a[0]].handle, node_of(a[1]), (unsigned)a[2]);
}

static void op_fetch(const uint64_t *a)
{
    starpu_data_fetch_on_node(data[a[0]].handle, node_of(a[1]), (unsigned)a[2]);
}

/* handle, node */
static void op_evict(const uint64_t *a)
{
    starpu_data_evict_from_node(data[a[0]].handle, node_of(a[1]));
}

/* to, from, whether asynchronous */
static void op_copy(const uint64_t *a)
{
    starpu_data_cpy(data[a[0]].handle, data[a[1]].handle, (int)a[2], NULL, NULL);
}

/* number, how, pause in microseconds, one access */
static void use_acquired(void *arguments)
{
    const uint64_t *a = arguments;
    const starpu_data_handle_t handle = data[a[3]].handle;
    struct view view = view_of(starpu_data_get_interface_on_node(handle, STARPU_MAIN_RAM));
    run_accesses(a[0], a[2], 1, a + 3, &view);
    if (a[1] != HELD)
        starpu_data_release(handle);
}

static void op_acquire(const uint64_t *a)
{
    const starpu_data_handle_t handle = data[a[3]].handle;
    tasks[a[0]].expected_runs = 1;
    if (a[1] == IN_CALLBACK) {
        starpu_data_acquire_cb(handle, (enum starpu_data_access_mode)a[4], use_acquired, (void *)a);
    } else {
        starpu_data_acquire(handle, (enum starpu_data_access_mode)a[4]);
        use_acquired((void *)a);
    }
}

/* handle */
static void op_release(const uint64_t *a)
{
    starpu_data_release(data[a[0]].handle);
}

/* ---- Partitions ---- */

/* handle, whether by rows, number of parts, handle of the first part, plan (-1: none, parts are there at once) */
static void op_partition(const uint64_t *a)
{
    const starpu_data_handle_t parent = data[a[0]].handle;
    const bool is_matrix = starpu_data_get_interface_id(parent) == STARPU_MATRIX_INTERFACE_ID;
    struct starpu_data_filter filter = {
        .filter_func = !is_matrix ? starpu_vector_filter_block
                       : a[1]     ? starpu_matrix_filter_vertical_block
                                  : starpu_matrix_filter_block,
        .nchildren = (unsigned)a[2],
    };
    starpu_data_handle_t children[MAX_CHILDREN];
    if ((int)a[4] < 0) {
        starpu_data_partition(parent, &filter);
        for (int i = 0; i < (int)a[2]; i++)
            children[i] = starpu_data_get_sub_data(parent, 1, i);
    } else {
        starpu_data_partition_plan(parent, &filter, children);
        plans[a[4]].parent = parent;
        plans[a[4]].num_children = (int)a[2];
        memcpy(plans[a[4]].children, children, sizeof children);
    }
    for (int i = 0; i < (int)a[2]; i++) {
        data[a[3] + (uint64_t)i].handle = children[i];
        starpu_data_set_reduction_methods(children[i], &redux_codelet, &init_codelet);
    }
}

/* handle, node */
static void op_unpartition(const uint64_t *a)
{
    starpu_data_unpartition(data[a[0]].handle, node_of(a[1]));
}

/* plan */
static void op_clean(const uint64_t *a)
{
    starpu_data_partition_clean(plans[a[0]].parent, (unsigned)plans[a[0]].num_children, plans[a[0]].children);
}

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
        if (expected > 1)
            starpu_task_destroy(tasks[i].task);
        if (expected)
            starpu_tag_remove(first_tag + (starpu_tag_t)i);
    }
    first_tag += MAX_TASKS;
}

/* INTERPRETER: what is below reads programs */

static const struct {
    const char *name;
    void (*run)(const uint64_t *);
} operations[] = {
#define OPERATION(name) {#name, op_##name}
    OPERATION(acquire),       OPERATION(clean),
    OPERATION(copy),          OPERATION(evict),
    OPERATION(fetch),         OPERATION(handle),
    OPERATION(invalidate),    OPERATION(invalidate_submit),
    OPERATION(idle_prefetch), OPERATION(partition),
    OPERATION(pause),         OPERATION(prefetch),
    OPERATION(release),       OPERATION(resume),
    OPERATION(task),          OPERATION(unpartition),
    OPERATION(unregister),    OPERATION(unregister_submit),
    OPERATION(wait),          OPERATION(wait_for_all),
};

static uint64_t numbers[1 << 16]; /* of the operations of a program, which tasks keep until they end */
static size_t num_numbers;

/* Returns false for an operation that there isn't. */
static bool run_line(char *line)
{
    char *rest = line;
    const char *name = strtok_r(line, " \n", &rest);
    const uint64_t *arguments = numbers + num_numbers;
    for (char *word; (word = strtok_r(NULL, " \n", &rest)); num_numbers++) {
        if (num_numbers == sizeof numbers / sizeof *numbers)
            return false;
        numbers[num_numbers] = strtoull(word, NULL, 0);
    }
    for (size_t i = 0; name && i < sizeof operations / sizeof *operations; i++)
        if (strcmp(operations[i].name, name) == 0) {
            operations[i].run(arguments);
            return true;
        }
    return false;
}

int main(void)
{
    if (starpu_init(NULL) != 0) {
        printf("StarPU can't be started\n");
        return 2;
    }
    printf("ready %d %u %u %s\n", VERSION, starpu_worker_get_count(), starpu_memory_nodes_get_count(),
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
    starpu_shutdown();
    return 0;
}
