// Threads of StarPU's OpenMP runtime, which are tasks, wait for each other: each goes on as the same task.
#include <starpu.h>
#include <stdint.h>
#include <string.h>

enum { HANDLES = 4, ROUNDS = 16 };

static int values[HANDLES];
static starpu_data_handle_t handles[HANDLES];

static void step(void *buffers[], void *argument)
{
    (void)argument;
    int *value = (int *)STARPU_VARIABLE_GET_PTR(buffers[0]);
    *value = 3 * *value + 1;
}

static void in_turn(void *argument)
{
    struct starpu_omp_task_region_attr task;
    memset(&task, 0, sizeof task);
    task.cl.cpu_funcs[0] = step;
    task.cl.where = STARPU_CPU;
    task.cl.nbuffers = 1;
    task.cl.modes[0] = STARPU_RW;
    task.handles = &handles[*(unsigned long long *)argument % HANDLES];
    task.if_clause = task.untied_clause = 1;
    starpu_omp_task_region(&task);
}

static void rounds(unsigned long long first, unsigned long long count, void *argument)
{
    (void)argument;
    for (unsigned long long i = first; i < first + count; i++)
        starpu_omp_ordered(in_turn, &i);
}

static void threads(void *buffers[], void *argument)
{
    (void)buffers;
    (void)argument;
    starpu_omp_for(rounds, NULL, ROUNDS, 2, starpu_omp_sched_static, 1, 0);
}

int main(void)
{
    struct starpu_omp_parallel_region_attr region;
    STARPU_CHECK_RETURN_VALUE(starpu_omp_init(), "starpu_omp_init");
    for (int i = 0; i < HANDLES; i++) {
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
