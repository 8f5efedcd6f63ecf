// Tasks that use what they declare to overwrite in ways that one kind of poison doesn't show, and tasks that don't use
// it although something of it is in what they leave: ./poison NAME runs one of them.
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#define SIZES BLOCKS = 3, N = 66
#include "blocks.h"

struct sample {
    float weight;
    char kind; // and three bytes that nobody writes
    short count;
};

static float floats[N];
static uint8_t bytes[N];
static struct sample samples[N];
static starpu_data_handle_t floats_handle, bytes_handle, samples_handle, scratch;

static void scale_floats(void *buffers[], void *argument)
{
    float *v = (float *)STARPU_VECTOR_GET_PTR(buffers[0]);
    for (int i = 0; i < N; i++)
        v[i] *= 0.25f;
}

static void keep_larger(void *buffers[], void *argument)
{
    float *v = (float *)STARPU_VECTOR_GET_PTR(buffers[0]);
    for (int i = 0; i < N; i++)
        v[i] = fmaxf(v[i], (float)i);
}

static void choose_positive(void *buffers[], void *argument)
{
    for (int i = 0; i < N; i++)
        elements(buffers, 0)[i] = elements(buffers, 0)[i] > 0 ? 1 : 2;
}

static void choose_set(void *buffers[], void *argument)
{
    uint8_t *v = (uint8_t *)STARPU_VECTOR_GET_PTR(buffers[0]);
    for (int i = 0; i < N; i++)
        v[i] = v[i] ? 1 : 2;
}

static void count_down(void *buffers[], void *argument)
{
    float *v = (float *)STARPU_VECTOR_GET_PTR(buffers[0]);
    int32_t number;
    for (int i = 0; i < N; i++) {
        memcpy(&number, &v[i], sizeof number);
        number--;
        memcpy(&v[i], &number, sizeof number);
    }
}

// The second access is the one that is read.
static void add_second(void *buffers[], void *argument)
{
    for (int i = 0; i < N; i++)
        elements(buffers, 0)[i] = elements(buffers, 1)[i] + i;
}

static void add_and_fill_second(void *buffers[], void *argument)
{
    add_second(buffers, argument);
    fill(&buffers[1], NULL);
}

static void copy_second(void *buffers[], void *argument)
{
    memcpy(elements(buffers, 0), elements(buffers, 1), N * sizeof(double));
}

// It marks the elements, and counts those that had another mark.
static void mark(void *buffers[], void *argument)
{
    int num_marks;
    uint8_t *marks = (uint8_t *)STARPU_VECTOR_GET_PTR(buffers[0]);
    double *num_changed = (double *)STARPU_VARIABLE_GET_PTR(buffers[1]);
    starpu_codelet_unpack_args(argument, &num_marks);
    *num_changed = 0;
    for (int i = 0; i < N; i++) {
        *num_changed += marks[i] != (i + 1) % num_marks;
        marks[i] = (uint8_t)((i + 1) % num_marks);
    }
}

static void set_first_byte(void *buffers[], void *argument)
{
    *(uint8_t *)STARPU_VECTOR_GET_PTR(buffers[0]) = 7;
}

static void set_samples(void *buffers[], void *argument)
{
    struct sample *v = (struct sample *)STARPU_VECTOR_GET_PTR(buffers[0]);
    for (int i = 0; i < N; i++) {
        v[i].weight = 0.1f * i;
        v[i].kind = (char)i;
        v[i].count = (short)(i * i);
    }
}

static void sum_samples(void *buffers[], void *argument)
{
    struct sample *v = (struct sample *)STARPU_VECTOR_GET_PTR(buffers[1]);
    for (int i = 0; i < N; i++)
        elements(buffers, 0)[0] += v[i].weight * v[i].count + v[i].kind;
}

static void fill_half(void *buffers[], void *argument)
{
    for (int i = 0; i < N / 2; i++)
        elements(buffers, 0)[i] = i;
}

// It copies also what nobody has written, and uses nothing of it.
static void copy_and_fill(void *buffers[], void *argument)
{
    memcpy(elements(buffers, 0), elements(buffers, 2), N * sizeof(double));
    fill(&buffers[1], NULL);
}

CODELET(scale_floats);
CODELET(keep_larger);
CODELET(choose_positive);
CODELET(choose_set);
CODELET(count_down);
CODELET(add_second);
CODELET(add_and_fill_second);
CODELET(copy_second);
CODELET(mark);
CODELET(set_first_byte);
CODELET(set_samples);
CODELET(sum_samples);
CODELET(fill_half);
CODELET(copy_and_fill);

static void scales_zeros(void)
{
    SUBMIT(&scale_floats_codelet, STARPU_W, floats_handle);
}

static void keeps_the_larger(void)
{
    SUBMIT(&keep_larger_codelet, STARPU_W, floats_handle);
}

static void chooses_by_the_sign(void)
{
    SUBMIT(&choose_positive_codelet, STARPU_W, handles[0]);
}

static void chooses_by_bytes(void)
{
    SUBMIT(&choose_set_codelet, STARPU_W, bytes_handle);
}

static void counts_down(void)
{
    SUBMIT(&count_down_codelet, STARPU_W, floats_handle);
}

static void reads_scratch_beside_a_write(void)
{
    SUBMIT(&add_second_codelet, STARPU_W, handles[0], STARPU_SCRATCH, scratch);
}

static void reads_the_second_of_two(void)
{
    SUBMIT(&add_and_fill_second_codelet, STARPU_W, handles[0], STARPU_W, handles[1]);
}

static void copies_scratch(void)
{
    SUBMIT(&copy_second_codelet, STARPU_W, handles[0], STARPU_SCRATCH, scratch);
}

// Tasks are submitted until nothing changes, with poison more of them.
static void marks_until_nothing_changes(void)
{
    int num_marks = 2;
    double num_changed = N;
    for (int i = 0; i < 4 && num_changed > 0; i++) {
        SUBMIT(&mark_codelet, STARPU_W, bytes_handle, STARPU_W, total_handle, VALUE(num_marks));
        starpu_data_acquire(total_handle, STARPU_R);
        num_changed = total;
        starpu_data_release(total_handle);
    }
}

// No mark is zero.
static void prints_how_many_changed(void)
{
    int num_marks = 100;
    for (int i = 0; i < 2; i++)
        SUBMIT(&mark_codelet, STARPU_W, bytes_handle, STARPU_W, total_handle, VALUE(num_marks));
    starpu_data_acquire(total_handle, STARPU_R);
    printf("%g\n", total);
    starpu_data_release(total_handle);
}

static void writes_a_byte(void)
{
    SUBMIT(&set_first_byte_codelet, STARPU_W, bytes_handle);
}

static void sums_samples(void)
{
    SUBMIT(&set_samples_codelet, STARPU_W, samples_handle);
    SUBMIT(&sum_samples_codelet, STARPU_RW, handles[0], STARPU_R, samples_handle);
}

static void copies_what_is_left(void)
{
    SUBMIT(&fill_half_codelet, STARPU_W, handles[2]);
    SUBMIT(&copy_and_fill_codelet, STARPU_W, handles[0], STARPU_W, handles[1], STARPU_R, handles[2]);
}

static const struct program programs[] = {
    PROGRAM(scales_zeros),
    PROGRAM(keeps_the_larger),
    PROGRAM(chooses_by_the_sign),
    PROGRAM(chooses_by_bytes),
    PROGRAM(counts_down),
    PROGRAM(reads_scratch_beside_a_write),
    PROGRAM(reads_the_second_of_two),
    PROGRAM(copies_scratch),
    PROGRAM(marks_until_nothing_changes),
    PROGRAM(prints_how_many_changed),
    PROGRAM(writes_a_byte),
    PROGRAM(sums_samples),
    PROGRAM(copies_what_is_left),
};

static const struct program *chosen;

static void run_with_data(void)
{
    starpu_vector_data_register(&floats_handle, STARPU_MAIN_RAM, (uintptr_t)floats, N, sizeof *floats);
    starpu_vector_data_register(&bytes_handle, STARPU_MAIN_RAM, (uintptr_t)bytes, N, sizeof *bytes);
    starpu_vector_data_register(&samples_handle, STARPU_MAIN_RAM, (uintptr_t)samples, N, sizeof *samples);
    starpu_vector_data_register(&scratch, -1, 0, N, sizeof(double));
    chosen->run();
    starpu_data_unregister(floats_handle);
    starpu_data_unregister(bytes_handle);
    starpu_data_unregister(samples_handle);
    starpu_data_unregister(scratch);
}

int main(int argc, char **argv)
{
    chosen = find_program(argc, argv, programs, sizeof programs / sizeof *programs);
    return run_program(chosen ? &(struct program){chosen->name, run_with_data} : NULL, NULL);
}
