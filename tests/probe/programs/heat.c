// Heat in a rod, in blocks: each step, a task computes a block from itself and its two neighbours. As it stands, the
// tasks don't declare the neighbours; compiled with -DDECLARED they do. docs/probe.md probes it.
#include <starpu.h>
#include <stdio.h>

enum { BLOCKS = 8, N = 1024, STEPS = 10 };

static double rod[2][BLOCKS][N]; // of this step and of the next one
static starpu_data_handle_t handles[2][BLOCKS];

struct place {
    int step, block;
};

static void update(void *buffers[], void *argument)
{
    struct place place;
    starpu_codelet_unpack_args(argument, &place);
    double *next = (double *)STARPU_VECTOR_GET_PTR(buffers[0]);
    const double *now = (double *)STARPU_VECTOR_GET_PTR(buffers[1]);
    const double *left = rod[place.step % 2][(place.block + BLOCKS - 1) % BLOCKS];
    const double *right = rod[place.step % 2][(place.block + 1) % BLOCKS];
    for (int i = 0; i < N; i++) {
        double before = i > 0 ? now[i - 1] : left[N - 1];
        double after = i < N - 1 ? now[i + 1] : right[0];
        next[i] = now[i] + 0.25 * (before - 2 * now[i] + after);
    }
}

static struct starpu_codelet update_codelet = {
    .cpu_funcs = {update}, .nbuffers = STARPU_VARIABLE_NBUFFERS, .name = "update"};

static void submit(int step, int block)
{
    starpu_data_handle_t *now = handles[step % 2], *next = handles[(step + 1) % 2];
    struct place place = {step, block};
    int status = starpu_task_insert(&update_codelet, STARPU_W, next[block], STARPU_R, now[block],
#ifdef DECLARED
                                    STARPU_R, now[(block + BLOCKS - 1) % BLOCKS], STARPU_R, now[(block + 1) % BLOCKS],
#endif
                                    STARPU_VALUE, &place, sizeof place, 0);
    STARPU_CHECK_RETURN_VALUE(status, "starpu_task_insert");
}

int main(void)
{
    STARPU_CHECK_RETURN_VALUE(starpu_init(NULL), "starpu_init");
    for (int b = 0; b < BLOCKS; b++) {
        for (int i = 0; i < N; i++)
            rod[0][b][i] = (b * N + i) % 100;
        for (int s = 0; s < 2; s++)
            starpu_vector_data_register(&handles[s][b], STARPU_MAIN_RAM, (uintptr_t)rod[s][b], N, sizeof(double));
    }
    for (int step = 0; step < STEPS; step++) {
        for (int block = 0; block < BLOCKS; block++)
            submit(step, block);
    }
    for (int s = 0; s < 2; s++) {
        for (int b = 0; b < BLOCKS; b++)
            starpu_data_unregister(handles[s][b]);
    }
    starpu_shutdown();
    printf("%.17g\n", rod[STEPS % 2][0][0]);
    return 0;
}
