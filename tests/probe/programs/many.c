// Many tasks of a chosen length, for what the probe costs: ./many TASKS MICROSECONDS BYTES prints the seconds that the
// tasks took together. Each task updates one of 64 handles of so many bytes.
#include <starpu.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HANDLES = 64 };

static double length;

static void wait_for(void *buffers[], void *argument)
{
    double end = starpu_timing_now() + length;
    *(volatile char *)STARPU_VECTOR_GET_PTR(buffers[0]) += 1;
    while (starpu_timing_now() < end)
        ;
}

static struct starpu_codelet codelet = {.cpu_funcs = {wait_for}, .nbuffers = 1, .modes = {STARPU_RW}, .name = "wait"};

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "many: found %d arguments, expected TASKS MICROSECONDS BYTES\n", argc - 1);
        return 2;
    }
    long num_tasks = atol(argv[1]), bytes = atol(argv[3]);
    starpu_data_handle_t handles[HANDLES];
    length = atof(argv[2]);
    STARPU_CHECK_RETURN_VALUE(starpu_init(NULL), "starpu_init");
    for (int h = 0; h < HANDLES; h++) {
        char *memory = malloc(bytes);
        STARPU_ASSERT(memory != NULL);
        memset(memory, h + 1, bytes); // memory that was never written would all be one page
        starpu_vector_data_register(&handles[h], STARPU_MAIN_RAM, (uintptr_t)memory, bytes, 1);
    }
    double start = starpu_timing_now();
    for (long t = 0; t < num_tasks; t++)
        STARPU_CHECK_RETURN_VALUE(starpu_task_insert(&codelet, STARPU_RW, handles[t % HANDLES], 0),
                                  "starpu_task_insert");
    starpu_task_wait_for_all();
    printf("%.6f\n", (starpu_timing_now() - start) / 1e6);
    for (int h = 0; h < HANDLES; h++)
        starpu_data_unregister(handles[h]);
    starpu_shutdown();
    return 0;
}
