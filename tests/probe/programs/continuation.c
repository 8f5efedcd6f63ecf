// Threads of StarPU's OpenMP runtime, which are tasks, wait for each other: each goes on as the same task. With an
// argument, a task also waits for one that it has submitted, between its writing and its updating of data.
#include <starpu.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { HANDLES = 4, ALL = 6, ROUNDS = 16 };

static int values[ALL];
static starpu_data_handle_t handles[ALL];

static void step(void *buffers[], void *argument)
{
    (void)argument;
    int *value = (int *)STARPU_VARIABLE_GET_PTR(buffers[0]);
    *value = 3 * *value + 1;
}

static void submit(starpu_cpu_func_t function, enum starpu_data_access_mode mode, unsigned long long handle)
{
    struct starpu_omp_task_region_attr task;
    memset(&task, 0, sizeof task);
    task.cl.cpu_funcs[0] = function;
    task.cl.where = STARPU_CPU;
    task.cl.nbuffers = 1;
    task.cl.modes[0] = mode;
    task.handles = &handles[handle];
    task.if_clause = task.untied_clause = 1;
    starpu_omp_task_region(&task);
}

static void in_turn(void *argument)
{
    submit(step, STARPU_RW, *(unsigned long long *)argument % HANDLES);
}

static void write_and_wait(void *buffers[], void *argument)
{
    int *value = (int *)STARPU_VARIABLE_GET_PTR(buffers[0]);
    *value = 5;
    submit(step, STARPU_RW, HANDLES + 1);
    starpu_omp_taskwait();
    step(buffers, argument);
}

static void rounds(unsigned long long first, unsigned long long count, void *argument)
{
    (void)argument;
    for (unsigned long long i = first; i < first + count; i++)
        starpu_omp_ordered(in_turn, &i);
}

static bool waits;

static void threads(void *buffers[], void *argument)
{
    (void)buffers;
    (void)argument;
    if (waits && starpu_omp_get_thread_num() == 0)
        submit(write_and_wait, STARPU_W, HANDLES);
    starpu_omp_for(rounds, NULL, ROUNDS, 2, starpu_omp_sched_static, 1, 0);
}

int main(int argc, char **argv)
{
    (void)argv;
    waits = argc > 1;
    struct starpu_omp_parallel_region_attr region;
    STARPU_CHECK_RETURN_VALUE(starpu_omp_init(), "starpu_omp_init");
    for (int i = 0; i < ALL; i++) {
        starpu_variable_data_register(&handles[i], STARPU_MAIN_RAM, (uintptr_t)&values[i], sizeof values[i]);
        starpu_omp_handle_register(handles[i]);
    }
    memset(&region, 0, sizeof region);
    region.cl.cpu_funcs[0] = threads;
    region.cl.where = STARPU_CPU;
    region.if_clause = 1;
    starpu_omp_parallel_region(&region);
    starpu_omp_shutdown();
    return 0;
}
