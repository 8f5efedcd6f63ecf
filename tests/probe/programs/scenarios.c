// Programs as users write them, right and wrong, for the tests of the probe: ./scenarios NAME runs one of them. The
// wrong ones have one mistake each, which their name says.
#include <starpu.h>
#include <starpu_scheduler.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "smooth.h"

enum { STEPS = 4 };

static double blocks[BLOCKS][N];
static double total;
static starpu_data_handle_t handles[BLOCKS], total_handle;
static double undeclared;

// ---- The functions of tasks ----

static void fill(void *buffers[], void *argument)
{
    (void)argument;
    double *out = elements(buffers, 0);
    for (int i = 0; i < N; i++)
        out[i] = i + 1;
}

static void copy(void *buffers[], void *argument)
{
    (void)argument;
    memcpy(elements(buffers, 0), elements(buffers, 1), N * sizeof(double));
}

static void copy_half(void *buffers[], void *argument)
{
    (void)argument;
    memcpy(elements(buffers, 0), elements(buffers, 1), N / 2 * sizeof(double));
}

static void write_second(void *buffers[], void *argument)
{
    (void)argument;
    elements(buffers, 1)[3] += elements(buffers, 0)[3] + 1;
    elements(buffers, 0)[0] += 1;
}

static void write_neighbour(void *buffers[], void *argument)
{
    int neighbour;
    starpu_codelet_unpack_args(argument, &neighbour);
    work();
    elements(buffers, 0)[1] += 1;
    blocks[neighbour][2] = 3 * blocks[neighbour][2] + 1;
}

// It is given an address, which is another one in each run.
static void read_neighbour(void *buffers[], void *argument)
{
    const double *neighbour;
    starpu_codelet_unpack_args(argument, &neighbour);
    work();
    for (int i = 0; i < N; i++)
        elements(buffers, 0)[i] = 0.5 * elements(buffers, 0)[i] + neighbour[i];
}

static void share(void *buffers[], void *argument)
{
    (void)argument;
    double value = undeclared + 1;
    work();
    undeclared = value;
    elements(buffers, 0)[0] += value;
}

static void touch(void *buffers[], void *argument)
{
    (void)argument;
    (void)buffers;
    work();
}

static void noise(void *buffers[], void *argument)
{
    (void)argument;
    elements(buffers, 0)[5] += (double)(starpu_timing_now() * 1000) + getpid();
}

static void add(void *buffers[], void *argument)
{
    (void)argument;
    *(double *)STARPU_VARIABLE_GET_PTR(buffers[0]) += elements(buffers, 1)[2] / 3;
}

static void add_number(void *buffers[], void *argument)
{
    double number;
    starpu_codelet_unpack_args(argument, &number);
    *(double *)STARPU_VARIABLE_GET_PTR(buffers[0]) += number;
}

static void zero(void *buffers[], void *argument)
{
    (void)argument;
    *(double *)STARPU_VARIABLE_GET_PTR(buffers[0]) = 0;
}

static void combine(void *buffers[], void *argument)
{
    (void)argument;
    *(double *)STARPU_VARIABLE_GET_PTR(buffers[0]) += *(double *)STARPU_VARIABLE_GET_PTR(buffers[1]);
}

static void crash(void *buffers[], void *argument)
{
    (void)argument;
    (void)buffers;
    *(volatile int *)8 = 1;
}

static void never_end(void *buffers[], void *argument)
{
    (void)argument;
    (void)buffers;
    for (;;)
        pause();
}

#define CODELET(function)                                                                    \
    static struct starpu_codelet function##_codelet = {.cpu_funcs = {function},              \
                                                       .cpu_funcs_name = {#function},        \
                                                       .nbuffers = STARPU_VARIABLE_NBUFFERS, \
                                                       .name = #function}

CODELET(fill);
CODELET(smooth);
CODELET(copy);
CODELET(copy_half);
CODELET(write_second);
CODELET(write_neighbour);
CODELET(read_neighbour);
CODELET(share);
CODELET(touch);
CODELET(noise);
CODELET(add);
CODELET(add_number);
CODELET(crash);
CODELET(never_end);
static struct starpu_codelet zero_codelet = {.cpu_funcs = {zero}, .nbuffers = 1, .modes = {STARPU_W}, .name = "zero"};
static struct starpu_codelet combine_codelet = {
    .cpu_funcs = {combine}, .nbuffers = 2, .modes = {STARPU_RW | STARPU_COMMUTE, STARPU_R}, .name = "combine"};

// ---- Programs ----

static void submit(int status)
{
    STARPU_CHECK_RETURN_VALUE(status, "starpu_task_insert");
}

static void start(void)
{
    for (int b = 0; b < BLOCKS; b++)
        submit(starpu_task_insert(&fill_codelet, STARPU_W, handles[b], 0));
}

static void steps(void)
{
    for (int step = 0; step < STEPS; step++) {
        for (int b = 0; b < BLOCKS; b++)
            submit(starpu_task_insert(&smooth_codelet, STARPU_RW, handles[b], STARPU_R, handles[(b + 1) % BLOCKS], 0));
    }
}

static void right(void)
{
    start();
    steps();
    submit(starpu_task_insert(&copy_codelet, STARPU_W, handles[0], STARPU_R, handles[1], 0));
}

// The application changes data between two tasks, as it may.
static void acquires(void)
{
    right();
    for (int i = 0; i < 3; i++) {
        starpu_data_acquire(handles[i], STARPU_RW);
        blocks[i][7] *= 2;
        starpu_data_release(handles[i]);
        steps();
    }
}

static void partitions(void)
{
    struct starpu_data_filter filter = {.filter_func = starpu_vector_filter_block, .nchildren = 2};
    right();
    starpu_data_partition(handles[2], &filter);
    for (int i = 0; i < 2; i++) {
        starpu_data_handle_t child = starpu_data_get_sub_data(handles[2], 1, i);
        submit(starpu_task_insert(&share_codelet, STARPU_RW, child, 0));
        starpu_task_wait_for_all(); // `share` shares what it doesn't declare
    }
    starpu_data_unpartition(handles[2], STARPU_MAIN_RAM);
    steps();
}

static void reads_undeclared(void)
{
    const double *neighbour = blocks[1];
    start();
    for (int b = 0; b < STEPS; b++) {
        submit(starpu_task_insert(&smooth_codelet, STARPU_RW, handles[1], STARPU_R, handles[3], 0));
        submit(starpu_task_insert(&read_neighbour_codelet, STARPU_RW, handles[2], STARPU_VALUE, &neighbour,
                                  sizeof neighbour, 0));
    }
}

static void writes_undeclared(void)
{
    int neighbour = 1;
    start();
    for (int b = 0; b < STEPS; b++) {
        submit(starpu_task_insert(&write_neighbour_codelet, STARPU_RW, handles[2], STARPU_VALUE, &neighbour,
                                  sizeof neighbour, 0));
        submit(starpu_task_insert(&smooth_codelet, STARPU_RW, handles[1], STARPU_R, handles[3], 0));
    }
}

static void writes_what_it_reads(void)
{
    start();
    steps();
    submit(starpu_task_insert(&write_second_codelet, STARPU_RW, handles[0], STARPU_R, handles[4], 0));
    steps();
}

static void reads_what_it_writes(void)
{
    start();
    submit(starpu_task_insert(&smooth_codelet, STARPU_W, handles[0], STARPU_R, handles[1], 0));
    steps();
}

static void declares_its_input_as_written(void)
{
    start();
    submit(starpu_task_insert(&copy_codelet, STARPU_W, handles[0], STARPU_W, handles[1], 0));
}

static void writes_nothing(void)
{
    start();
    submit(starpu_task_insert(&touch_codelet, STARPU_W, handles[0], 0));
    steps();
}

// Two handles for the same bytes, between which the program switches by a task that writes nothing.
static void aliases(void)
{
    starpu_data_handle_t half;
    starpu_vector_data_register(&half, STARPU_MAIN_RAM, (uintptr_t)blocks[5], N / 2, sizeof(double));
    start();
    submit(starpu_task_insert(&touch_codelet, STARPU_RW, handles[5], STARPU_W, half, 0));
    submit(starpu_task_insert(&share_codelet, STARPU_RW, half, 0));
    submit(starpu_task_insert(&touch_codelet, STARPU_RW, half, STARPU_W, handles[5], 0));
    steps();
    starpu_data_unregister(half);
}

static void leaves_what_it_writes(void)
{
    start();
    submit(starpu_task_insert(&copy_half_codelet, STARPU_W, handles[0], STARPU_R, handles[1], 0));
}

static void needless_update(void)
{
    start();
    for (int step = 0; step < STEPS; step++) {
        for (int b = 0; b < BLOCKS; b++)
            submit(starpu_task_insert(&touch_codelet, STARPU_RW, handles[b], STARPU_RW, handles[0], 0));
    }
}

static void shares_undeclared(void)
{
    start();
    for (int step = 0; step < STEPS; step++) {
        for (int b = 0; b < BLOCKS; b++)
            submit(starpu_task_insert(&share_codelet, STARPU_RW, handles[b], 0));
    }
}

static void not_deterministic(void)
{
    start();
    submit(starpu_task_insert(&noise_codelet, STARPU_RW, handles[3], 0));
    steps();
}

static void redux(void)
{
    starpu_data_set_reduction_methods(total_handle, &combine_codelet, &zero_codelet);
    start();
    steps();
    for (int step = 0; step < STEPS; step++) {
        for (int b = 0; b < BLOCKS; b++)
            submit(starpu_task_insert(&add_codelet, STARPU_REDUX, total_handle, STARPU_R, handles[b], 0));
    }
    submit(starpu_task_insert(&add_codelet, STARPU_RW, total_handle, STARPU_R, handles[0], 0));
}

static void commute(void)
{
    start();
    for (int b = 0; b < BLOCKS; b++)
        submit(starpu_task_insert(&add_codelet, STARPU_RW | STARPU_COMMUTE, total_handle, STARPU_R, handles[b], 0));
    submit(starpu_task_insert(&add_codelet, STARPU_RW, total_handle, STARPU_R, handles[0], 0));
}

// A sum in the order in which the blocks are filled, which the task after it uses.
static void sum_of(const double numbers[BLOCKS])
{
    start();
    for (int b = 0; b < BLOCKS; b++)
        submit(starpu_task_insert(&add_number_codelet, STARPU_RW | STARPU_COMMUTE, total_handle, STARPU_R, handles[b],
                                  STARPU_VALUE, &numbers[b], sizeof numbers[b], 0));
    submit(starpu_task_insert(&add_codelet, STARPU_RW, total_handle, STARPU_R, handles[0], 0));
}

static void rounds(void)
{
    sum_of((double[]){0.1, 0.7, 1.3, 2.9, 5.3, 11.7});
}

static void cancels(void)
{
    sum_of((double[]){1e16, 1, 1, -1e16, 1, 1});
}

static void crashes(void)
{
    right();
    submit(starpu_task_insert(&crash_codelet, STARPU_RW, handles[2], 0));
    steps();
}

static void hangs(void)
{
    right();
    submit(starpu_task_insert(&never_end_codelet, STARPU_RW, handles[2], 0));
    steps();
}

static void asserts(void)
{
    right();
    starpu_task_wait_for_all();
    starpu_data_handle_t unknown;
    starpu_vector_data_register(&unknown, -1, 0, N, sizeof(double));
    submit(starpu_task_insert(&copy_codelet, STARPU_W, handles[1], STARPU_R, unknown, 0));
}

// StarPU refuses the first task already.
static void asserts_at_once(void)
{
    starpu_data_handle_t unknown;
    starpu_vector_data_register(&unknown, -1, 0, N, sizeof(double));
    submit(starpu_task_insert(&copy_codelet, STARPU_W, handles[1], STARPU_R, unknown, 0));
}

static void forks(void)
{
    right();
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    waitpid(child, NULL, 0);
    steps();
}

// The child goes on when the program has ended.
static void leaves_child(void)
{
    right();
    if (fork() == 0) {
        sleep(600);
        _exit(0);
    }
}

static void noisy(void)
{
    static char line[1 << 16];
    memset(line, 'x', sizeof line);
    right();
    for (int i = 0; i < 1 << 11; i++)
        fwrite(line, 1, sizeof line, i % 2 ? stdout : stderr);
}

static void no_tasks(void)
{
}

static void fails(void)
{
    right();
    starpu_task_wait_for_all();
    exit(3);
}

static const struct {
    const char *name;
    void (*run)(void);
} programs[] = {
    {"right", right},
    {"acquires", acquires},
    {"partitions", partitions},
    {"reads_undeclared", reads_undeclared},
    {"writes_undeclared", writes_undeclared},
    {"writes_what_it_reads", writes_what_it_reads},
    {"reads_what_it_writes", reads_what_it_writes},
    {"declares_its_input_as_written", declares_its_input_as_written},
    {"writes_nothing", writes_nothing},
    {"aliases", aliases},
    {"leaves_what_it_writes", leaves_what_it_writes},
    {"needless_update", needless_update},
    {"shares_undeclared", shares_undeclared},
    {"not_deterministic", not_deterministic},
    {"redux", redux},
    {"commute", commute},
    {"rounds", rounds},
    {"cancels", cancels},
    {"crashes", crashes},
    {"hangs", hangs},
    {"asserts", asserts},
    {"asserts_at_once", asserts_at_once},
    {"forks", forks},
    {"leaves_child", leaves_child},
    {"noisy", noisy},
    {"no_tasks", no_tasks},
    {"own_policy", right},
    {"fails", fails},
};

static void run(void (*program)(void), struct starpu_conf *conf)
{
    STARPU_CHECK_RETURN_VALUE(starpu_init(conf), "starpu_init");
    for (int b = 0; b < BLOCKS; b++)
        starpu_vector_data_register(&handles[b], STARPU_MAIN_RAM, (uintptr_t)blocks[b], N, sizeof(double));
    starpu_variable_data_register(&total_handle, STARPU_MAIN_RAM, (uintptr_t)&total, sizeof total);
    program();
    starpu_task_wait_for_all();
    for (int b = 0; b < BLOCKS; b++)
        starpu_data_unregister(handles[b]);
    starpu_data_unregister(total_handle);
    starpu_shutdown();
}

int main(int argc, char **argv)
{
    struct starpu_conf conf;
    starpu_conf_init(&conf);
    for (size_t i = 0; argc == 2 && i < sizeof programs / sizeof *programs; i++) {
        if (strcmp(argv[1], programs[i].name) != 0)
            continue;
        if (strcmp(argv[1], "own_policy") == 0) {
            conf.precedence_over_environment_variables = 1;
            conf.sched_policy = starpu_sched_get_predefined_policies()[0];
        }
        run(programs[i].run, &conf);
        return 0;
    }
    fprintf(stderr, "scenarios: found %s, expected the name of a program\n", argc == 2 ? argv[1] : "no name");
    return 2;
}
