// Programs of a few tasks on which a verdict is easily wrong: ./verdicts NAME runs one of them.
#include <stdlib.h>
#include <unistd.h>

#include "blocks.h"

static void add(void *buffers[], void *argument)
{
    double number;
    starpu_codelet_unpack_args(argument, &number);
    *(double *)STARPU_VARIABLE_GET_PTR(buffers[0]) += number + elements(buffers, 1)[2];
}

static void set(void *buffers[], void *argument)
{
    *(double *)STARPU_VARIABLE_GET_PTR(buffers[0]) = 1;
}

static void update_half(void *buffers[], void *argument)
{
    for (int i = 0; i < N / 2; i++)
        elements(buffers, 0)[i] += 2;
}

static void fill_half(void *buffers[], void *argument)
{
    double number;
    starpu_codelet_unpack_args(argument, &number);
    work();
    for (int i = 0; i < N / 2; i++)
        elements(buffers, 0)[i] = number;
}

static void double_half(void *buffers[], void *argument)
{
    for (int i = 0; i < N / 2; i++)
        elements(buffers, 0)[i] *= 2;
}

static void copy(void *buffers[], void *argument)
{
    memcpy(elements(buffers, 0), elements(buffers, 1), N * sizeof(double));
}

static void sum(void *buffers[], void *argument)
{
    for (int i = 0; i < N; i++)
        elements(buffers, 0)[0] += elements(buffers, 1)[i];
}

static void sleep_and_update(void *buffers[], void *argument)
{
    usleep(200000);
    elements(buffers, 0)[1] += 1;
}

// The first task leaves something in scratch memory, the others add it.
static void share_scratch(void *buffers[], void *argument)
{
    double number;
    starpu_codelet_unpack_args(argument, &number);
    if (number == 0)
        memcpy(elements(buffers, 1), elements(buffers, 0), N * sizeof(double));
    else
        elements(buffers, 0)[0] += elements(buffers, 1)[1];
}

static void add_first(void *buffers[], void *argument)
{
    elements(buffers, 1)[0] += elements(buffers, 0)[0];
}

static void add_sum(void *buffers[], void *argument)
{
    for (int i = 0; i < N; i++)
        *(double *)STARPU_VARIABLE_GET_PTR(buffers[1]) += elements(buffers, 0)[i];
}

static void redux(void *buffers[], void *argument)
{
    *(double *)STARPU_VARIABLE_GET_PTR(buffers[0]) += *(double *)STARPU_VARIABLE_GET_PTR(buffers[1]);
}

static void set_zero(void *buffers[], void *argument)
{
    *(double *)STARPU_VARIABLE_GET_PTR(buffers[0]) = 0;
}

static void read_total(void *buffers[], void *argument)
{
    elements(buffers, 1)[0] = *(double *)STARPU_VARIABLE_GET_PTR(buffers[0]);
}

static void touch(void *buffers[], void *argument)
{
}

static void read_neighbour(void *buffers[], void *argument)
{
    const double *neighbour;
    starpu_codelet_unpack_args(argument, &neighbour);
    work();
    elements(buffers, 0)[0] += neighbour[0];
}

struct record {
    double value;
    char kind; // and seven bytes that nobody writes
};

static void set_records(void *buffers[], void *argument)
{
    struct record *records = (struct record *)STARPU_VECTOR_GET_PTR(buffers[0]);
    for (int i = 0; i < N; i++) {
        records[i].value = i;
        records[i].kind = 'a';
    }
}

CODELET(fill);
CODELET(add);
CODELET(set);
CODELET(smooth);
CODELET(update_half);
CODELET(fill_half);
CODELET(double_half);
CODELET(copy);
CODELET(sum);
CODELET(touch);
CODELET(sleep_and_update);
CODELET(share_scratch);
CODELET(add_first);
CODELET(add_sum);
CODELET(read_total);
static struct starpu_codelet redux_codelet = {
    .cpu_funcs = {redux}, .nbuffers = 2, .modes = {STARPU_RW | STARPU_COMMUTE, STARPU_R}, .name = "redux"};
static struct starpu_codelet set_zero_codelet = {
    .cpu_funcs = {set_zero}, .nbuffers = 1, .modes = {STARPU_W}, .name = "set_zero"};
CODELET(read_neighbour);
CODELET(set_records);
static struct starpu_codelet named_function = {
    .cpu_funcs = {double_half}, .cpu_funcs_name = {"double_half"}, .nbuffers = STARPU_VARIABLE_NBUFFERS};
static struct starpu_codelet unnamed = {.cpu_funcs = {update_half}, .nbuffers = STARPU_VARIABLE_NBUFFERS};

static void start(void)
{
    for (int b = 0; b < BLOCKS; b++)
        SUBMIT(&fill_codelet, STARPU_W, handles[b]);
}

static void add_all(const double numbers[BLOCKS])
{
    for (int b = 0; b < BLOCKS; b++)
        SUBMIT(&add_codelet, STARPU_RW | STARPU_COMMUTE, total_handle, STARPU_R, handles[b], VALUE(numbers[b]));
}

static void written_then_commutes(void)
{
    SUBMIT(&set_codelet, STARPU_W, total_handle);
    start();
    add_all((double[]){1, 2, 3, 4, 5, 6});
}

static void every_write_commutes(void)
{
    add_all((double[]){1, 2, 3, 4, 5, 6});
}

static void sum_that_the_application_reads(void)
{
    start();
    add_all((double[]){1e16, 0.1, 0.2, -1e16, 0.3, 0.4});
}

static void updates_what_it_writes(void)
{
    start();
    SUBMIT(&update_half_codelet, STARPU_W, handles[0]);
}

static void leavings_are_used(void)
{
    double number = 3;
    start();
    SUBMIT(&fill_half_codelet, STARPU_W, handles[0], VALUE(number));
    SUBMIT(&double_half_codelet, STARPU_RW, handles[0]);
    SUBMIT(&sum_codelet, STARPU_RW, handles[1], STARPU_R, handles[0]);
}

// The task in between reads another handle with leavings, and hands on those of the one that it updates.
static void leavings_are_handed_on(void)
{
    double number = 3;
    start();
    SUBMIT(&fill_half_codelet, STARPU_W, handles[0], VALUE(number));
    SUBMIT(&fill_half_codelet, STARPU_W, handles[1], VALUE(number));
    SUBMIT(&add_first_codelet, STARPU_R, handles[0], STARPU_RW, handles[1]);
    SUBMIT(&sum_codelet, STARPU_RW, handles[2], STARPU_R, handles[1]);
}

// What one declares to write only is added to a sum whose order is free.
static void reduces_what_it_writes(void)
{
    starpu_data_set_reduction_methods(total_handle, &redux_codelet, &set_zero_codelet);
    start();
    for (int b = 0; b < BLOCKS; b++)
        SUBMIT(&add_sum_codelet, b == 2 ? STARPU_W : STARPU_R, handles[b], STARPU_REDUX, total_handle);
    SUBMIT(&read_total_codelet, STARPU_R, total_handle, STARPU_RW, handles[0]);
}

// A copy of all, of which nobody uses the half that nobody wrote.
static void leavings_are_copied(void)
{
    double number = 3;
    start();
    SUBMIT(&fill_half_codelet, STARPU_W, handles[0], VALUE(number));
    SUBMIT(&double_half_codelet, STARPU_RW, handles[0]);
    SUBMIT(&copy_codelet, STARPU_W, handles[1], STARPU_R, handles[0]);
    SUBMIT(&double_half_codelet, STARPU_RW, handles[1]);
}

static void nothing_written_nobody_reads(void)
{
    start();
    SUBMIT(&touch_codelet, STARPU_W, total_handle);
}

// The application had put numbers there, and finds them again only because there is one memory.
static void what_the_application_wrote_is_left(void)
{
    blocks[0][3] = 1;
    SUBMIT(&touch_codelet, STARPU_W, handles[0]);
}

static void pads(void)
{
    static struct record records[N];
    starpu_data_handle_t handle;
    starpu_vector_data_register(&handle, STARPU_MAIN_RAM, (uintptr_t)records, N, sizeof records[0]);
    SUBMIT(&set_records_codelet, STARPU_W, handle);
    starpu_data_unregister(handle);
}

static void undeclared_beside_a_sum(void)
{
    const double *neighbour = blocks[1];
    start();
    add_all((double[]){1, 2, 3, 4, 5, 6});
    for (int step = 0; step < 4; step++) {
        SUBMIT(&smooth_codelet, STARPU_RW, handles[1], STARPU_R, handles[3]);
        SUBMIT(&read_neighbour_codelet, STARPU_RW, handles[2], VALUE(neighbour));
    }
}

static void without_names(void)
{
    start();
    SUBMIT(&named_function, STARPU_R, handles[0]);
    SUBMIT(&unnamed, STARPU_R, handles[1]);
}

// It notices a wrong result by itself, and fails.
static void fails_with_poison(void)
{
    const double *neighbour = blocks[1];
    start();
    SUBMIT(&update_half_codelet, STARPU_W, handles[0]);
    for (int step = 0; step < 4; step++) {
        SUBMIT(&smooth_codelet, STARPU_RW, handles[1], STARPU_R, handles[3]);
        SUBMIT(&read_neighbour_codelet, STARPU_RW, handles[2], VALUE(neighbour));
    }
    starpu_task_wait_for_all();
    if (!(blocks[0][0] == 3))
        exit(1);
}

// Which temporary gets whose memory depends on the schedule; what is in its other half too.
static void temporaries(void)
{
    start();
    for (int step = 0; step < 4; step++) {
        for (int b = 0; b < BLOCKS; b++) {
            starpu_data_handle_t temporary;
            double number = step + b;
            starpu_vector_data_register(&temporary, -1, 0, N, sizeof(double));
            SUBMIT(&fill_half_codelet, STARPU_W, temporary, VALUE(number));
            SUBMIT(&smooth_codelet, STARPU_RW, temporary, STARPU_R, handles[b]);
            SUBMIT(&update_half_codelet, STARPU_RW, handles[b]);
            starpu_data_unregister_submit(temporary);
        }
    }
}

// The application's memory has been used before, and contained a number of this process.
static void used_memory(void)
{
    starpu_data_handle_t handle;
    double number = 3, *before = malloc(N * sizeof *before);
    for (int i = 0; i < N; i++)
        before[i] = getpid();
    free(before);
    double *memory = malloc(N * sizeof *memory);
    starpu_vector_data_register(&handle, STARPU_MAIN_RAM, (uintptr_t)memory, N, sizeof *memory);
    SUBMIT(&fill_half_codelet, STARPU_W, handle, VALUE(number));
    starpu_data_unregister(handle);
    free(memory);
}

static void scratch_that_lasts(void)
{
    starpu_data_handle_t scratch;
    starpu_vector_data_register(&scratch, -1, 0, N, sizeof(double));
    for (int b = 0; b < 2; b++) {
        double number = b;
        SUBMIT(&share_scratch_codelet, STARPU_RW, handles[b], STARPU_SCRATCH, scratch, VALUE(number));
    }
    starpu_data_unregister(scratch);
}

// The application changes a number that tasks update, without waiting for them.
static void written_without_waiting(void)
{
    SUBMIT(&sleep_and_update_codelet, STARPU_RW, handles[1]);
    SUBMIT(&smooth_codelet, STARPU_RW, handles[0], STARPU_R, handles[1]);
    blocks[0][0] = 77;
}

// The application chooses by a number that a task updates, without waiting for the task.
static void read_without_waiting(void)
{
    SUBMIT(&sleep_and_update_codelet, STARPU_RW, handles[1]);
    SUBMIT(&smooth_codelet, STARPU_RW, handles[0], STARPU_R, handles[1]);
    if (*(volatile double *)&blocks[0][0] == 0)
        SUBMIT(&update_half_codelet, STARPU_RW, handles[0]);
}

static const struct program programs[] = {
    PROGRAM(written_then_commutes),
    PROGRAM(every_write_commutes),
    PROGRAM(sum_that_the_application_reads),
    PROGRAM(updates_what_it_writes),
    PROGRAM(leavings_are_used),
    PROGRAM(leavings_are_handed_on),
    PROGRAM(reduces_what_it_writes),
    PROGRAM(leavings_are_copied),
    PROGRAM(nothing_written_nobody_reads),
    PROGRAM(what_the_application_wrote_is_left),
    PROGRAM(pads),
    PROGRAM(undeclared_beside_a_sum),
    PROGRAM(without_names),
    PROGRAM(fails_with_poison),
    PROGRAM(temporaries),
    PROGRAM(used_memory),
    PROGRAM(scratch_that_lasts),
    PROGRAM(written_without_waiting),
    PROGRAM(read_without_waiting),
};

int main(int argc, char **argv)
{
    return run_program(find_program(argc, argv, programs, sizeof programs / sizeof *programs), NULL);
}
