// How tasks come to StarPU, and what they bring: ./submissions NAME. Each is right, but for those that lie.
#include <pthread.h>
#include <starpu.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { HANDLES = 4 };

static int values[HANDLES] = {1, 2, 3, 4};
static starpu_data_handle_t handles[HANDLES];

static void add(void *buffers[], void *argument)
{
    *(int *)STARPU_VARIABLE_GET_PTR(buffers[0]) += (int)(intptr_t)argument;
}

static struct starpu_codelet adding = {.cpu_funcs = {add}, .nbuffers = 1, .modes = {STARPU_RW}, .name = "add"};

static void twice(void *buffers[], void *argument)
{
    (void)argument;
    *(int *)STARPU_VARIABLE_GET_PTR(buffers[1]) = 2 * *(int *)STARPU_VARIABLE_GET_PTR(buffers[0]);
}

static void twice_in_place(void *buffers[], void *argument)
{
    (void)argument;
    int *from = (int *)STARPU_VARIABLE_GET_PTR(buffers[0]);
    *(int *)STARPU_VARIABLE_GET_PTR(buffers[1]) = *from *= 2;
}

static void twice_and_one(void *buffers[], void *argument)
{
    twice(buffers, argument);
    ++*(int *)STARPU_VARIABLE_GET_PTR(buffers[1]);
}

static struct starpu_codelet doubling = {
    .cpu_funcs = {twice, twice}, .nbuffers = 2, .modes = {STARPU_R, STARPU_W}, .name = "double"};

static struct starpu_task *new_task(struct starpu_codelet *codelet, int handle)
{
    struct starpu_task *task = starpu_task_create();
    task->cl = codelet;
    task->handles[0] = handles[handle];
    return task;
}

static void submit(struct starpu_task *task)
{
    STARPU_CHECK_RETURN_VALUE(starpu_task_submit(task), "starpu_task_submit");
}

// StarPU's own tests of OpenMP pass integers in this way.
static void integers(void)
{
    for (int i = 0; i < 2 * HANDLES; i++) {
        struct starpu_task *task = new_task(&adding, i % HANDLES);
        task->cl_arg = (void *)(intptr_t)(i + 1);
        task->cl_arg_size = sizeof task->cl_arg;
        submit(task);
    }
}

static void double_each(int count, starpu_cpu_func_t second)
{
    doubling.cpu_funcs[1] = second;
    for (int i = 0; i < count; i++) {
        struct starpu_task *task = new_task(&doubling, 0);
        task->handles[1] = handles[1 + i % (HANDLES - 1)];
        submit(task);
    }
}

static void implementations(void)
{
    double_each(20, twice);
}

static void lies_in_second_implementation(void)
{
    double_each(20, twice_in_place);
}

static void second_implementation_differs(void)
{
    double_each(20, twice_and_one);
}

static int first_only(unsigned worker, struct starpu_task *task, unsigned implementation)
{
    (void)worker;
    (void)task;
    return implementation == 0;
}

static void second_implementation_never_runs(void)
{
    doubling.can_execute = first_only;
    double_each(20, twice);
}

// Each callback submits the next task of its handle, so that tasks of several handles have no order.
enum { LENGTH = 10 };
static int lengths[HANDLES];
static bool touches_another;

static void step(void *buffers[], void *argument)
{
    int *value = (int *)STARPU_VARIABLE_GET_PTR(buffers[0]);
    *value = 3 * *value + 1;
    if (touches_another && (intptr_t)argument == 1)
        values[0]++;
}

static struct starpu_codelet stepping = {.cpu_funcs = {step}, .nbuffers = 1, .modes = {STARPU_RW}, .name = "step"};

static void next(void *argument)
{
    const int chain = (int)(intptr_t)argument;
    if (lengths[chain]++ == LENGTH)
        return;
    struct starpu_task *task = new_task(&stepping, chain);
    task->cl_arg = task->callback_arg = argument;
    task->callback_func = next;
    submit(task);
}

static void chains(void)
{
    for (int i = 0; i < HANDLES; i++)
        next((void *)(intptr_t)i);
    starpu_task_wait_for_all();
}

static void chains_lie(void)
{
    touches_another = true;
    chains();
}

static void divide(void *buffers[], void *argument)
{
    (void)buffers;
    for (int i = 0; i < 3; i++)
        submit(new_task(&stepping, (int)(intptr_t)argument));
}

static struct starpu_codelet dividing = {.cpu_funcs = {divide}, .name = "divide"};

static void divide_among(int count)
{
    for (int i = 0; i < count; i++) {
        struct starpu_task *task = starpu_task_create();
        task->cl = &dividing;
        task->cl_arg = (void *)(intptr_t)(i % HANDLES);
        submit(task);
    }
    starpu_task_wait_for_all();
}

static void tasks_submit(void)
{
    divide_among(HANDLES);
}

static void submitters_share(void)
{
    divide_among(2 * HANDLES);
}

static void *adds_40(void *unused)
{
    (void)unused;
    for (int i = 0; i < 40; i++) {
        struct starpu_task *task = new_task(&adding, 0);
        task->cl_arg = (void *)1;
        submit(task);
    }
    return NULL;
}

static void threads_share(void)
{
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, adds_40, NULL);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
}

static void count_down(void *argument)
{
    struct starpu_task *task = starpu_task_get_current();
    if (++*(int *)argument == LENGTH)
        task->regenerate = 0;
}

static void regenerates(void)
{
    struct starpu_task *tasks[HANDLES];
    for (int i = 0; i < HANDLES; i++) {
        tasks[i] = new_task(&stepping, i);
        tasks[i]->regenerate = 1;
        tasks[i]->destroy = 0;
        tasks[i]->callback_func = count_down;
        tasks[i]->callback_arg = &lengths[i];
        submit(tasks[i]);
    }
    starpu_task_wait_for_all();
    for (int i = 0; i < HANDLES; i++)
        starpu_task_destroy(tasks[i]);
}

static void in_another_context(void)
{
    int workers[] = {0, 1};
    const unsigned context = starpu_sched_ctx_create(workers, 2, "another", STARPU_SCHED_CTX_POLICY_NAME, "lws", 0);
    for (int i = 0; i < HANDLES; i++) {
        submit(new_task(&adding, 0));
        struct starpu_task *task = new_task(&adding, 1 + i % (HANDLES - 1));
        task->sched_ctx = context;
        submit(task);
    }
    starpu_task_wait_for_all();
    starpu_sched_ctx_delete(context);
}

static void print_worker(void *buffers[], void *argument)
{
    add(buffers, argument);
    printf("worker %d\n", starpu_worker_get_id());
}

static void prints_in_another_context(void)
{
    adding.cpu_funcs[0] = print_worker;
    in_another_context();
}

// The handle has tasks of both contexts, one after the other.
static void shared_with_another_context(void)
{
    int workers[] = {0, 1};
    const unsigned context = starpu_sched_ctx_create(workers, 2, "another", STARPU_SCHED_CTX_POLICY_NAME, "lws", 0);
    for (int i = 0; i < 8 * HANDLES; i++) {
        struct starpu_task *task = new_task(&stepping, 0);
        if (i % 2 == 1)
            task->sched_ctx = context;
        submit(task);
    }
    starpu_task_wait_for_all();
    starpu_sched_ctx_delete(context);
}

static void parallel_workers(void)
{
#ifdef STARPU_PARALLEL_WORKER
    struct starpu_parallel_worker_config *workers = starpu_parallel_worker_init(
        HWLOC_OBJ_MACHINE, STARPU_PARALLEL_WORKER_POLICY_NAME, "lws", STARPU_PARALLEL_WORKER_PARTITION_ONE,
        STARPU_PARALLEL_WORKER_NEW, STARPU_PARALLEL_WORKER_TYPE, STARPU_PARALLEL_WORKER_OPENMP,
        STARPU_PARALLEL_WORKER_NB, 2, STARPU_PARALLEL_WORKER_NCORES, 1, 0);
    for (int i = 0; i < HANDLES; i++)
        submit(new_task(&stepping, i));
    starpu_task_wait_for_all();
    starpu_parallel_worker_shutdown(workers);
#endif
}

static void nothing(void *buffers[], void *argument)
{
    (void)buffers;
    (void)argument;
}

static struct starpu_codelet reading = {.cpu_funcs = {nothing}, .nbuffers = 1, .modes = {STARPU_R}, .name = "read"};
static struct starpu_codelet without_data = {.cpu_funcs = {nothing}, .name = "without data"};

static void no_data(void)
{
    for (int i = 0; i < HANDLES; i++) {
        struct starpu_task *task = starpu_task_create();
        task->cl = &without_data;
        submit(task);
    }
    starpu_task_wait_for_all();
}

static void only_reads(void)
{
    submit(new_task(&reading, 0));
}

static void count(void *buffers[], void *argument)
{
    static int sum;
    sum = 3 * sum + *(int *)STARPU_VARIABLE_GET_PTR(buffers[0]);
    if (argument)
        printf("%d\n", sum);
}

static void only_reads_and_counts(void)
{
    static struct starpu_codelet counting = {.cpu_funcs = {count}, .nbuffers = 1, .modes = {STARPU_R}};
    for (int i = 0; i < 2 * HANDLES; i++)
        submit(new_task(&counting, i % HANDLES));
    starpu_task_wait_for_all();
    struct starpu_task *last = new_task(&counting, 0);
    last->cl_arg = &counting;
    submit(last);
}

// A part of an array is read, for which StarPU has tasks of its own that write; and a handle without bytes is written.
static void void_and_parts(void)
{
    static struct starpu_codelet codelet = {
        .cpu_funcs = {nothing}, .nbuffers = 2, .modes = {STARPU_R, STARPU_W}, .name = "nothing"};
    static int array[2];
    struct starpu_data_filter halves = {.filter_func = starpu_vector_filter_block, .nchildren = 2};
    starpu_data_handle_t whole, parts[2], empty;
    starpu_vector_data_register(&whole, STARPU_MAIN_RAM, (uintptr_t)array, 2, sizeof array[0]);
    starpu_void_data_register(&empty);
    starpu_data_partition_plan(whole, &halves, parts);
    STARPU_CHECK_RETURN_VALUE(starpu_task_insert(&codelet, STARPU_R, parts[0], STARPU_W, empty, 0), "insert");
    starpu_data_partition_clean(whole, 2, parts);
    starpu_data_unregister(empty);
    starpu_data_unregister(whole);
}

static void clear(void *buffers[], void *argument)
{
    (void)argument;
    *(int *)STARPU_VARIABLE_GET_PTR(buffers[0]) = 0;
}

static void join(void *buffers[], void *argument)
{
    (void)argument;
    *(int *)STARPU_VARIABLE_GET_PTR(buffers[0]) += *(int *)STARPU_VARIABLE_GET_PTR(buffers[1]);
}

static struct starpu_codelet clearing = {.cpu_funcs = {clear}, .nbuffers = 1, .modes = {STARPU_W}};
static struct starpu_codelet joining = {
    .cpu_funcs = {join}, .nbuffers = 2, .modes = {STARPU_RW | STARPU_COMMUTE, STARPU_R}};
static struct starpu_codelet contributing = {.cpu_funcs = {add}, .nbuffers = 1, .modes = {STARPU_REDUX}, .name = "add"};

static void add_all(struct starpu_codelet *codelet, int rounds)
{
    starpu_data_handle_t sum;
    starpu_variable_data_register(&sum, -1, 0, sizeof(int));
    starpu_data_set_reduction_methods(sum, &joining, &clearing);
    for (int i = 0; i < HANDLES; i++) {
        struct starpu_task *task = starpu_task_create();
        task->cl = codelet;
        task->handles[0] = sum;
        task->cl_arg = (void *)(intptr_t)(i + 1);
        submit(task);
    }
    for (int i = 0; i < rounds; i++) {
        starpu_data_acquire(sum, STARPU_R);
        starpu_data_release(sum);
    }
    starpu_data_unregister(sum);
}

static void only_adds(void)
{
    add_all(&contributing, 0);
}

static void sum_is_acquired(void)
{
    add_all(&contributing, 1);
}

static void add_in_turn(void *buffers[], void *argument)
{
    static int turn;
    *(int *)STARPU_VARIABLE_GET_PTR(buffers[0]) += (int)(intptr_t)argument * turn++;
}

static void sum_of_turns_is_acquired(void)
{
    static struct starpu_codelet codelet = {
        .cpu_funcs = {add_in_turn}, .nbuffers = 1, .modes = {STARPU_REDUX}, .name = "add_in_turn"};
    add_all(&codelet, 1);
}

static void fail_twice(void *buffers[], void *argument)
{
    static int failures;
    *(int *)STARPU_VARIABLE_GET_PTR(buffers[1]) = *(int *)STARPU_VARIABLE_GET_PTR(buffers[0]) + 1;
    if (argument && failures++ < 2)
        starpu_task_ft_failed(starpu_task_get_current());
}

static void try_again(void *argument)
{
    struct starpu_task *current = starpu_task_get_current();
    if (!current->failed) {
        starpu_task_ft_success(argument);
        return;
    }
    struct starpu_task *copy = starpu_task_ft_create_retry(argument, current, try_again);
    STARPU_CHECK_RETURN_VALUE(starpu_task_submit_nodeps(copy), "submit");
}

// As starpu_task_ft_prologue, which lets the task wait for the copy when that may have ended.
static void run_a_copy(void *unused)
{
    struct starpu_task *task = starpu_task_get_current();
    struct starpu_task *copy = starpu_task_ft_create_retry(task, task, try_again);
    (void)unused;
    starpu_task_end_dep_add(task, 1);
    task->where = STARPU_NOWHERE;
    STARPU_CHECK_RETURN_VALUE(starpu_task_submit_nodeps(copy), "submit");
}

static void retries(void)
{
    static struct starpu_codelet codelet = {
        .cpu_funcs = {fail_twice}, .nbuffers = 2, .modes = {STARPU_R, STARPU_W}, .name = "fail_twice"};
    for (int i = 1; i < HANDLES; i++)
        STARPU_CHECK_RETURN_VALUE(starpu_task_insert(&codelet, STARPU_CL_ARGS_NFREE, i == 2 ? &codelet : NULL,
                                                     sizeof codelet, STARPU_PROLOGUE_CALLBACK, run_a_copy,
                                                     STARPU_PROLOGUE_CALLBACK_ARG_NFREE, NULL, STARPU_R, handles[i - 1],
                                                     STARPU_W, handles[i], 0),
                                  "starpu_task_insert");
    starpu_task_wait_for_all();
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*submit)(void);
    } all[] = {{"integers", integers},
               {"implementations", implementations},
               {"lies_in_second_implementation", lies_in_second_implementation},
               {"second_implementation_differs", second_implementation_differs},
               {"second_implementation_never_runs", second_implementation_never_runs},
               {"chains", chains},
               {"chains_lie", chains_lie},
               {"tasks_submit", tasks_submit},
               {"submitters_share", submitters_share},
               {"threads_share", threads_share},
               {"regenerates", regenerates},
               {"in_another_context", in_another_context},
               {"prints_in_another_context", prints_in_another_context},
               {"shared_with_another_context", shared_with_another_context},
               {"parallel_workers", parallel_workers},
               {"no_data", no_data},
               {"only_reads", only_reads},
               {"only_reads_and_counts", only_reads_and_counts},
               {"only_adds", only_adds},
               {"void_and_parts", void_and_parts},
               {"sum_is_acquired", sum_is_acquired},
               {"sum_of_turns_is_acquired", sum_of_turns_is_acquired},
               {"retries", retries}};
    size_t chosen = 0;
    while (chosen < sizeof all / sizeof *all && (argc < 2 || strcmp(argv[1], all[chosen].name) != 0))
        chosen++;
    if (chosen == sizeof all / sizeof *all)
        return 2;
    STARPU_CHECK_RETURN_VALUE(starpu_init(NULL), "starpu_init");
    for (int i = 0; i < HANDLES; i++)
        starpu_variable_data_register(&handles[i], STARPU_MAIN_RAM, (uintptr_t)&values[i], sizeof values[i]);
    all[chosen].submit();
    for (int i = 0; i < HANDLES; i++)
        starpu_data_unregister(handles[i]);
    starpu_shutdown();
    return 0;
}
