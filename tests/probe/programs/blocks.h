// What the programs over blocks share: their data with handles, codelets, a task that smooths a block, and a start of
// the program that is named. SIZES may be defined before.
#include <starpu.h>
#include <stdio.h>
#include <string.h>

#ifndef SIZES
#define SIZES BLOCKS = 6, N = 64
#endif
enum { SIZES };

static double blocks[BLOCKS][N], total;
static starpu_data_handle_t handles[BLOCKS], total_handle;

struct program {
    const char *name;
    void (*run)(void);
};

#define PROGRAM(function) {#function, function}
#define CODELET(function)                               \
    static struct starpu_codelet function##_codelet = { \
        .cpu_funcs = {function}, .nbuffers = STARPU_VARIABLE_NBUFFERS, .name = #function}
#define SUBMIT(...) STARPU_CHECK_RETURN_VALUE(starpu_task_insert(__VA_ARGS__, 0), "starpu_task_insert")
#define VALUE(name) STARPU_VALUE, &(name), sizeof(name)

static inline double *elements(void *buffers[], int i)
{
    return (double *)STARPU_VECTOR_GET_PTR(buffers[i]);
}

static inline void work(void)
{
    volatile double sum = 0;
    for (int i = 0; i < 20000; i++)
        sum = sum + i;
}

static inline void fill(void *buffers[], void *argument)
{
    (void)argument;
    for (int i = 0; i < N; i++)
        elements(buffers, 0)[i] = i + 1;
}

static inline void smooth(void *buffers[], void *argument)
{
    (void)argument;
    double *out = elements(buffers, 0), *left = elements(buffers, 1);
    work();
    for (int i = 0; i < N; i++)
        out[i] = 0.5 * out[i] + 0.25 * left[i] + 1;
}

static inline void register_data(void)
{
    for (int b = 0; b < BLOCKS; b++)
        starpu_vector_data_register(&handles[b], STARPU_MAIN_RAM, (uintptr_t)blocks[b], N, sizeof(double));
    starpu_variable_data_register(&total_handle, STARPU_MAIN_RAM, (uintptr_t)&total, sizeof total);
}

static inline void unregister_data(void)
{
    for (int b = 0; b < BLOCKS; b++)
        starpu_data_unregister(handles[b]);
    starpu_data_unregister(total_handle);
}

// Returns the program that the command line names, or says that there is none.
static inline const struct program *find_program(int argc, char **argv, const struct program *programs, size_t count)
{
    for (size_t i = 0; argc == 2 && i < count; i++) {
        if (strcmp(argv[1], programs[i].name) == 0)
            return &programs[i];
    }
    fprintf(stderr, "%s: found %s, expected the name of a program\n", argv[0], argc == 2 ? argv[1] : "no name");
    return NULL;
}

// Returns the exit status.
static inline int run_program(const struct program *program, struct starpu_conf *conf)
{
    if (program == NULL)
        return 2;
    STARPU_CHECK_RETURN_VALUE(starpu_init(conf), "starpu_init");
    register_data();
    program->run();
    starpu_task_wait_for_all();
    unregister_data();
    starpu_shutdown();
    return 0;
}
