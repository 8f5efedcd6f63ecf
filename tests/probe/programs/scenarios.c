// Programs as users write them, right and wrong, for the tests of the probe: ./scenarios NAME runs one of them. The
// wrong ones have one mistake each, which their name says.
#include <starpu_scheduler.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "blocks.h"

enum { STEPS = 4 };
static const double sleep_seconds = 0.1;

static double undeclared;
static int num_tasks[STARPU_NMAXWORKERS];

// ---- The functions of tasks ----

static void copy(void *buffers[], void *argument)
{
    memcpy(elements(buffers, 0), elements(buffers, 1), N * sizeof(double));
}

static void copy_half(void *buffers[], void *argument)
{
    memcpy(elements(buffers, 0), elements(buffers, 1), N / 2 * sizeof(double));
}

static void write_second(void *buffers[], void *argument)
{
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
    double value = undeclared + 1;
    work();
    undeclared = value;
    elements(buffers, 0)[0] += value;
}

static void touch(void *buffers[], void *argument)
{
    work();
}

static void noise(void *buffers[], void *argument)
{
    elements(buffers, 0)[5] += (double)(starpu_timing_now() * 1000) + getpid();
}

static void stamp(void *buffers[], void *argument)
{
    *(double *)STARPU_VARIABLE_GET_PTR(buffers[0]) = starpu_timing_now();
}

static void add(void *buffers[], void *argument)
{
    *(double *)STARPU_VARIABLE_GET_PTR(buffers[0]) += elements(buffers, 1)[2] / 3;
}

static void add_undeclared(void *buffers[], void *argument)
{
    add(buffers, argument);
    work();
    *(double *)STARPU_VARIABLE_GET_PTR(buffers[0]) += blocks[1][2];
}

static void add_number(void *buffers[], void *argument)
{
    double number;
    starpu_codelet_unpack_args(argument, &number);
    *(double *)STARPU_VARIABLE_GET_PTR(buffers[0]) += number;
}

static void zero(void *buffers[], void *argument)
{
    *(double *)STARPU_VARIABLE_GET_PTR(buffers[0]) = 0;
}

static void combine(void *buffers[], void *argument)
{
    *(double *)STARPU_VARIABLE_GET_PTR(buffers[0]) += *(double *)STARPU_VARIABLE_GET_PTR(buffers[1]);
}

static void sleep_a_while(void *buffers[], void *argument)
{
    usleep(1000000 * sleep_seconds);
    elements(buffers, 0)[0] += 1;
}

static void crash(void *buffers[], void *argument)
{
    *(volatile int *)8 = 1;
}

static void never_end(void *buffers[], void *argument)
{
    for (;;)
        pause();
}

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
CODELET(stamp);
CODELET(add);
CODELET(add_undeclared);
CODELET(add_number);
CODELET(sleep_a_while);
CODELET(crash);
CODELET(never_end);
static struct starpu_codelet zero_codelet = {.cpu_funcs = {zero}, .nbuffers = 1, .modes = {STARPU_W}, .name = "zero"};
static struct starpu_codelet combine_codelet = {
    .cpu_funcs = {combine}, .nbuffers = 2, .modes = {STARPU_RW | STARPU_COMMUTE, STARPU_R}, .name = "combine"};

// ---- Programs ----

static void start(void)
{
    for (int b = 0; b < BLOCKS; b++)
        SUBMIT(&fill_codelet, STARPU_W, handles[b]);
}

static void steps(void)
{
    for (int step = 0; step < STEPS; step++) {
        for (int b = 0; b < BLOCKS; b++)
            SUBMIT(&smooth_codelet, STARPU_RW, handles[b], STARPU_R, handles[(b + 1) % BLOCKS]);
    }
}

static void right(void)
{
    start();
    steps();
    SUBMIT(&copy_codelet, STARPU_W, handles[0], STARPU_R, handles[1]);
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
        SUBMIT(&share_codelet, STARPU_RW, child);
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
        SUBMIT(&smooth_codelet, STARPU_RW, handles[1], STARPU_R, handles[3]);
        SUBMIT(&read_neighbour_codelet, STARPU_RW, handles[2], VALUE(neighbour));
    }
}

static void writes_undeclared(void)
{
    int neighbour = 1;
    start();
    for (int b = 0; b < STEPS; b++) {
        SUBMIT(&write_neighbour_codelet, STARPU_RW, handles[2], VALUE(neighbour));
        SUBMIT(&smooth_codelet, STARPU_RW, handles[1], STARPU_R, handles[3]);
    }
}

// What it writes is overwritten by a task that was submitted later.
static void overwritten_undeclared(void)
{
    int neighbour = 1;
    start();
    SUBMIT(&write_neighbour_codelet, STARPU_RW, handles[2], VALUE(neighbour));
    SUBMIT(&fill_codelet, STARPU_W, handles[1]);
    SUBMIT(&smooth_codelet, STARPU_RW, handles[4], STARPU_R, handles[1]);
    steps();
}

static void writes_what_it_reads(void)
{
    start();
    steps();
    SUBMIT(&write_second_codelet, STARPU_RW, handles[0], STARPU_R, handles[4]);
    steps();
}

static void reads_what_it_writes(void)
{
    start();
    SUBMIT(&smooth_codelet, STARPU_W, handles[0], STARPU_R, handles[1]);
    steps();
}

static void declares_its_input_as_written(void)
{
    start();
    SUBMIT(&copy_codelet, STARPU_W, handles[0], STARPU_W, handles[1]);
}

static void writes_nothing(void)
{
    start();
    SUBMIT(&touch_codelet, STARPU_W, handles[0]);
    steps();
}

// Two handles for the same bytes, between which the program switches by a task that writes nothing.
static void aliases(void)
{
    starpu_data_handle_t half;
    starpu_vector_data_register(&half, STARPU_MAIN_RAM, (uintptr_t)blocks[5], N / 2, sizeof(double));
    start();
    SUBMIT(&touch_codelet, STARPU_RW, handles[5], STARPU_W, half);
    SUBMIT(&share_codelet, STARPU_RW, half);
    SUBMIT(&touch_codelet, STARPU_RW, half, STARPU_W, handles[5]);
    steps();
    starpu_data_unregister(half);
}

static void leaves_what_it_writes(void)
{
    start();
    SUBMIT(&copy_half_codelet, STARPU_W, handles[0], STARPU_R, handles[1]);
}

static void needless_update(void)
{
    start();
    for (int step = 0; step < STEPS; step++) {
        for (int b = 0; b < BLOCKS; b++)
            SUBMIT(&touch_codelet, STARPU_RW, handles[b], STARPU_RW, handles[0]);
    }
}

static void shares_undeclared(void)
{
    start();
    for (int step = 0; step < STEPS; step++) {
        for (int b = 0; b < BLOCKS; b++)
            SUBMIT(&share_codelet, STARPU_RW, handles[b]);
    }
}

static void not_deterministic(void)
{
    start();
    SUBMIT(&noise_codelet, STARPU_RW, handles[3]);
    steps();
}

// Nobody but one task uses the time.
static void stamps(void)
{
    SUBMIT(&stamp_codelet, STARPU_W, total_handle);
    right();
    SUBMIT(&stamp_codelet, STARPU_W, total_handle);
    SUBMIT(&add_codelet, STARPU_RW, total_handle, STARPU_R, handles[0]);
}

static void stamps_and_shares(void)
{
    SUBMIT(&stamp_codelet, STARPU_W, total_handle);
    shares_undeclared();
}

static void redux(void)
{
    starpu_data_set_reduction_methods(total_handle, &combine_codelet, &zero_codelet);
    start();
    steps();
    for (int step = 0; step < STEPS; step++) {
        for (int b = 0; b < BLOCKS; b++)
            SUBMIT(&add_codelet, STARPU_REDUX, total_handle, STARPU_R, handles[b]);
    }
    SUBMIT(&add_codelet, STARPU_RW, total_handle, STARPU_R, handles[0]);
}

static void reduces_undeclared(void)
{
    starpu_data_set_reduction_methods(total_handle, &combine_codelet, &zero_codelet);
    start();
    for (int step = 0; step < STEPS; step++) {
        SUBMIT(&smooth_codelet, STARPU_RW, handles[1], STARPU_R, handles[3]);
        SUBMIT(&add_undeclared_codelet, STARPU_REDUX, total_handle, STARPU_R, handles[2]);
    }
    SUBMIT(&add_codelet, STARPU_RW, total_handle, STARPU_R, handles[0]);
}

static void commute(void)
{
    start();
    for (int b = 0; b < BLOCKS; b++)
        SUBMIT(&add_codelet, STARPU_RW | STARPU_COMMUTE, total_handle, STARPU_R, handles[b]);
    SUBMIT(&add_codelet, STARPU_RW, total_handle, STARPU_R, handles[0]);
}

// A sum in the order in which the blocks are filled.
static void sum_of(const double numbers[BLOCKS])
{
    start();
    for (int b = 0; b < BLOCKS; b++)
        SUBMIT(&add_number_codelet, STARPU_RW | STARPU_COMMUTE, total_handle, STARPU_R, handles[b], VALUE(numbers[b]));
}

static void rounds(void)
{
    sum_of((double[]){0.1, 0.7, 1.3, 2.9, 5.3, 11.7});
    SUBMIT(&add_codelet, STARPU_RW, total_handle, STARPU_R, handles[0]);
}

static void cancels(void)
{
    sum_of((double[]){1e16, 1, 1, -1e16, 1, 1});
    SUBMIT(&add_codelet, STARPU_RW, total_handle, STARPU_R, handles[0]);
}

static void crashes(void)
{
    right();
    SUBMIT(&crash_codelet, STARPU_RW, handles[2]);
    steps();
}

static void hangs(void)
{
    right();
    SUBMIT(&never_end_codelet, STARPU_RW, handles[2]);
    steps();
}

static void asserts(void)
{
    right();
    starpu_task_wait_for_all();
    starpu_data_handle_t unknown;
    starpu_vector_data_register(&unknown, -1, 0, N, sizeof(double));
    SUBMIT(&copy_codelet, STARPU_W, handles[1], STARPU_R, unknown);
}

// StarPU refuses the first task already.
static void asserts_at_once(void)
{
    starpu_data_handle_t unknown;
    starpu_vector_data_register(&unknown, -1, 0, N, sizeof(double));
    SUBMIT(&copy_codelet, STARPU_W, handles[1], STARPU_R, unknown);
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

// The application reads what it has not waited for, and no task does.
static void prints_without_waiting(void)
{
    right();
    starpu_task_wait_for_all();
    SUBMIT(&smooth_codelet, STARPU_RW, handles[0], STARPU_R, handles[1]);
    printf("result %g\n", *(volatile double *)&blocks[0][0]);
}

// The application has declared that it doesn't need the other half any more.
static void prints_what_is_left(void)
{
    right();
    SUBMIT(&copy_half_codelet, STARPU_W, handles[0], STARPU_R, handles[1]);
    starpu_data_acquire(handles[0], STARPU_R);
    printf("result %g\n", blocks[0][N - 1]);
    starpu_data_release(handles[0]);
}

static void print_number(void *buffers[], void *argument)
{
    printf("block %g\n", elements(buffers, 0)[0]);
}
CODELET(print_number);

// In the order in which the tasks run.
static void prints_in_any_order(void)
{
    for (int b = 0; b < BLOCKS; b++) {
        double number = b;
        SUBMIT(&fill_codelet, STARPU_W, handles[b]);
        SUBMIT(&add_number_codelet, STARPU_RW, handles[b], VALUE(number));
        SUBMIT(&print_number_codelet, STARPU_R, handles[b]);
    }
}

static void print_worker(void *buffers[], void *argument)
{
    printf("worker %d\n", starpu_worker_get_id());
}
CODELET(print_worker);

static void prints_workers(void)
{
    for (int b = 0; b < BLOCKS; b++)
        SUBMIT(&print_worker_codelet, STARPU_R, handles[b]);
    right();
}

static void prints_workers_and_without_waiting(void)
{
    prints_workers();
    prints_without_waiting();
}

static void count_for_worker(void *buffers[], void *argument)
{
    num_tasks[starpu_worker_get_id()]++;
}
CODELET(count_for_worker);

static void prints_numbers_of_tasks(void)
{
    for (int i = 0; i < STEPS * BLOCKS; i++)
        SUBMIT(&count_for_worker_codelet, STARPU_RW, handles[i % BLOCKS]);
    starpu_task_wait_for_all();
    for (unsigned worker = 0; worker < starpu_worker_get_count(); worker++)
        printf("worker %u: %d\n", worker, num_tasks[worker]);
}

// No task reads the sum, and the handle stays registered.
static void prints_a_free_sum(void)
{
    sum_of((double[]){1e16, 1, 1, -1e16, 1, 1});
    starpu_data_acquire(total_handle, STARPU_R);
    printf("%.17g\n", total);
    starpu_data_release(total_handle);
    starpu_task_wait_for_all();
    exit(0);
}

// In steps so large that runs of one schedule print the same.
static void prints_whether_it_took_long(void)
{
    const double start = starpu_timing_now();
    right();
    starpu_task_wait_for_all();
    printf("%s\n", starpu_timing_now() - start > 10000 ? "slow" : "fast");
}

static void prints_the_time(void)
{
    right();
    printf("%.9f s\n", starpu_timing_now());
}

// As a test of a speed-up would, on the one worker of the reference schedule.
static void fails_on_one_worker(void)
{
    double start = starpu_timing_now();
    for (int b = 0; b < BLOCKS; b++)
        SUBMIT(&sleep_a_while_codelet, STARPU_RW, handles[b]);
    starpu_task_wait_for_all();
    if (starpu_timing_now() - start > 0.8 * BLOCKS * 1e6 * sleep_seconds)
        exit(1);
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

static const struct program programs[] = {
    PROGRAM(right),
    PROGRAM(acquires),
    PROGRAM(partitions),
    PROGRAM(reads_undeclared),
    PROGRAM(writes_undeclared),
    PROGRAM(overwritten_undeclared),
    PROGRAM(writes_what_it_reads),
    PROGRAM(reads_what_it_writes),
    PROGRAM(declares_its_input_as_written),
    PROGRAM(writes_nothing),
    PROGRAM(aliases),
    PROGRAM(leaves_what_it_writes),
    PROGRAM(needless_update),
    PROGRAM(shares_undeclared),
    PROGRAM(not_deterministic),
    PROGRAM(stamps),
    PROGRAM(stamps_and_shares),
    PROGRAM(redux),
    PROGRAM(reduces_undeclared),
    PROGRAM(commute),
    PROGRAM(rounds),
    PROGRAM(cancels),
    PROGRAM(crashes),
    PROGRAM(hangs),
    PROGRAM(asserts),
    PROGRAM(asserts_at_once),
    PROGRAM(forks),
    PROGRAM(leaves_child),
    PROGRAM(noisy),
    PROGRAM(prints_without_waiting),
    PROGRAM(prints_what_is_left),
    PROGRAM(prints_in_any_order),
    PROGRAM(prints_workers),
    PROGRAM(prints_workers_and_without_waiting),
    PROGRAM(prints_numbers_of_tasks),
    PROGRAM(prints_a_free_sum),
    PROGRAM(prints_whether_it_took_long),
    PROGRAM(prints_the_time),
    PROGRAM(fails_on_one_worker),
    PROGRAM(no_tasks),
    {"own_policy", right},
    PROGRAM(fails),
};

int main(int argc, char **argv)
{
    struct starpu_conf conf;
    starpu_conf_init(&conf);
    const struct program *program = find_program(argc, argv, programs, sizeof programs / sizeof *programs);
    if (program != NULL && strcmp(program->name, "own_policy") == 0) {
        conf.precedence_over_environment_variables = 1;
        conf.sched_policy = starpu_sched_get_predefined_policies()[0];
    }
    return run_program(program, &conf);
}
