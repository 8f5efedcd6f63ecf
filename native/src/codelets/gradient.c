/* StarPU's own reduction of a parameter's gradient. StarPU calls its two codelets without an argument, and they aren't
 * in the trace. */
#include <starpu.h>

#include "codelets/operation.h"
#include "runtime/runtime.h"

struct addition {
    float *sum;
    const float *term;
    size_t count;
};

static void start_thread(void *argument, struct team team)
{
    const struct addition *a = argument;
    const struct share share = team_share(team, a->count, FLOATS_PER_LINE);
    for (size_t i = share.begin; i < share.end; i++)
        a->sum[i] = 0.0f;
}

static void start_cpu(void *interfaces[], void *argument)
{
    (void)argument;
    struct addition a = {(float *)STARPU_VECTOR_GET_PTR(interfaces[0]), NULL, STARPU_VECTOR_GET_NX(interfaces[0])};
    team_run(runtime_layout()->threads_per_worker, start_thread, &a);
}

static struct starpu_codelet start_codelet = {
    .where = STARPU_CPU, .cpu_funcs = {start_cpu}, .nbuffers = 1, .modes = {STARPU_W}, .name = "gradient_redux_start"};

static void add_thread(void *argument, struct team team)
{
    const struct addition *a = argument;
    kernels()->gradient_add(a->sum, a->term, a->count, team);
}

static void add_cpu(void *interfaces[], void *argument)
{
    (void)argument;
    struct addition a = {(float *)STARPU_VECTOR_GET_PTR(interfaces[0]),
                         (const float *)STARPU_VECTOR_GET_PTR(interfaces[1]), STARPU_VECTOR_GET_NX(interfaces[0])};
    team_run(runtime_layout()->threads_per_worker, add_thread, &a);
}

static struct starpu_codelet add_codelet = {.where = STARPU_CPU,
                                            .cpu_funcs = {add_cpu},
                                            .nbuffers = 2,
                                            .modes = {STARPU_RW | STARPU_COMMUTE, STARPU_R},
                                            .name = "gradient_redux_add"};

void gradient_make_reducible(struct data *gradient)
{
    starpu_data_set_reduction_methods(gradient->handle, &add_codelet, &start_codelet);
}
