// Contents that mean nothing, in part: ./contents NAME runs a program whose handles hold padding, or addresses.
#include <stdlib.h>
#include <sys/random.h>

#include "blocks.h"

struct item {
    double value;
    char kind; // and seven bytes that nobody writes
};

struct list {
    long count;
    double *numbers;
};

static struct item items[BLOCKS][N];
static struct list lists[BLOCKS];
static starpu_data_handle_t item_handles[BLOCKS], list_handles[BLOCKS];
static double hidden, pools[2][BLOCKS][N];

static void leave_on_the_stack(void *buffers[], void *argument)
{
    volatile double local[400];
    for (int i = 0; i < 400; i++)
        local[i] = elements(buffers, 0)[0] * (i + 1);
    elements(buffers, 0)[0] = local[0] + 1;
}

static void set_items(void *buffers[], void *argument)
{
    struct item local[N + 4]; // the last ones may lie beside saved registers
    for (int i = 0; i < N; i++) {
        local[i].kind = (char)i;
        local[i].value = i;
    }
    memcpy((void *)STARPU_VECTOR_GET_PTR(buffers[0]), local, N * sizeof *local);
    __asm__ volatile("" : : "r"(local) : "memory"); // so that it lies on the stack
}

static void append(void *buffers[], void *argument)
{
    struct list *list = (struct list *)STARPU_VARIABLE_GET_PTR(buffers[0]);
    list->numbers = realloc(list->numbers, (list->count + 32) * sizeof *list->numbers);
    for (int i = 0; i < 32; i++, list->count++)
        list->numbers[list->count] = list->count;
    work();
}

static void set_list(struct list *list, int pool)
{
    list->numbers = pools[pool][list - lists];
    for (list->count = 0; list->count < N; list->count++)
        list->numbers[list->count] = list->count;
    work();
}

static void set_anywhere(void *buffers[], void *argument)
{
    unsigned char chance = 0;
    STARPU_ASSERT(getrandom(&chance, 1, 0) == 1);
    set_list((struct list *)STARPU_VARIABLE_GET_PTR(buffers[0]), chance % 2);
}

// As if by chance: as in the reference schedule when the probe looks again where the difference is.
static void set_elsewhere_once(void *buffers[], void *argument)
{
    const int differs = strcmp(getenv("STARPULLM_PROBE_SEED"), "0") != 0 || *getenv("STARPULLM_PROBE_HELD");
    set_list((struct list *)STARPU_VARIABLE_GET_PTR(buffers[0]), differs && !*getenv("STARPULLM_PROBE_CONTENTS"));
}

static void sum_list(void *buffers[], void *argument)
{
    struct list *list = (struct list *)STARPU_VARIABLE_GET_PTR(buffers[1]);
    for (long i = 0; i < list->count; i++)
        elements(buffers, 0)[0] += list->numbers[i];
}

static void count(void *buffers[], void *argument)
{
    work();
    elements(buffers, 0)[1] += hidden++;
}

CODELET(leave_on_the_stack);
CODELET(set_items);
CODELET(append);
CODELET(set_anywhere);
CODELET(set_elsewhere_once);
CODELET(sum_list);
CODELET(count);

static void padding(void)
{
    for (int step = 0; step < 6; step++) {
        for (int b = 0; b < BLOCKS; b++) {
            SUBMIT(&leave_on_the_stack_codelet, STARPU_RW, handles[b]);
            SUBMIT(&set_items_codelet, STARPU_W, item_handles[b]);
        }
    }
}

static void addresses(void)
{
    for (int step = 0; step < 6; step++) {
        for (int b = 0; b < BLOCKS; b++) {
            SUBMIT(&append_codelet, STARPU_RW, list_handles[b]);
            SUBMIT(&sum_list_codelet, STARPU_RW, handles[b], STARPU_R, list_handles[b]);
        }
    }
}

static void set_and_sum(struct starpu_codelet *set)
{
    for (int b = 0; b < BLOCKS; b++) {
        SUBMIT(set, STARPU_W, list_handles[b]);
        SUBMIT(&sum_list_codelet, STARPU_RW, handles[b], STARPU_R, list_handles[b]);
    }
}

static void addresses_by_chance(void)
{
    set_and_sum(&set_anywhere_codelet);
}

static void addresses_not_again(void)
{
    set_and_sum(&set_elsewhere_once_codelet);
}

static void addresses_beside_a_lie(void)
{
    addresses();
    for (int b = 0; b < BLOCKS; b++)
        SUBMIT(&count_codelet, STARPU_RW, handles[b]);
}

static const struct program programs[] = {PROGRAM(padding), PROGRAM(addresses), PROGRAM(addresses_beside_a_lie),
                                          PROGRAM(addresses_by_chance), PROGRAM(addresses_not_again)};
static const struct program *chosen;

static void run_with_data(void)
{
    for (int b = 0; b < BLOCKS; b++) {
        starpu_vector_data_register(&item_handles[b], STARPU_MAIN_RAM, (uintptr_t)items[b], N, sizeof items[b][0]);
        starpu_variable_data_register(&list_handles[b], STARPU_MAIN_RAM, (uintptr_t)&lists[b], sizeof lists[b]);
    }
    chosen->run();
    for (int b = 0; b < BLOCKS; b++) {
        starpu_data_unregister(item_handles[b]);
        starpu_data_unregister(list_handles[b]);
    }
}

int main(int argc, char **argv)
{
    chosen = find_program(argc, argv, programs, sizeof programs / sizeof *programs);
    return run_program(chosen ? &(struct program){chosen->name, run_with_data} : NULL, NULL);
}
