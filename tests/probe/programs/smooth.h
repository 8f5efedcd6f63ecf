// What the programs with tasks over blocks share: the sizes, and a task that smooths a block.
#include <starpu.h>

enum { BLOCKS = 6, N = 64 };

static double *elements(void *buffers[], int i)
{
    return (double *)STARPU_VECTOR_GET_PTR(buffers[i]);
}

static void work(void)
{
    volatile double sum = 0;
    for (int i = 0; i < 20000; i++)
        sum = sum + i;
}

static void smooth(void *buffers[], void *argument)
{
    (void)argument;
    double *out = elements(buffers, 0), *left = elements(buffers, 1);
    work();
    for (int i = 0; i < N; i++)
        out[i] = 0.5 * out[i] + 0.25 * left[i] + 1;
}
