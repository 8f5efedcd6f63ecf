// Programs over MPI ranks, right and wrong, for the tests of the probe: mpirun -n 2 ./ranks NAME runs one of them. Each
// rank smooths its own blocks; the first neighbour is the other rank's, and is received in each step. What is wrong is
// so on rank 1 only.
#include <signal.h>
#include <starpu_mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "smooth.h"

enum { STEPS = 2 };

static double blocks[BLOCKS][N], halo[N], total, total_of_other;
static starpu_data_handle_t handles[BLOCKS], halo_handle, total_handle, other_handle;
static double undeclared;
static int rank, size;

// ---- The functions of tasks ----

static void share(void *buffers[], void *argument)
{
    (void)argument;
    double value = undeclared + 1;
    work();
    undeclared = value;
    elements(buffers, 0)[5] += value;
}

static void add(void *buffers[], void *argument)
{
    (void)argument;
    *(double *)STARPU_VARIABLE_GET_PTR(buffers[0]) += elements(buffers, 1)[2] / 3;
}

static void crash(void *buffers[], void *argument)
{
    (void)argument;
    (void)buffers;
    *(volatile int *)8 = 1;
}

static void kill_rank(void *buffers[], void *argument)
{
    (void)argument;
    (void)buffers;
    raise(SIGKILL);
}

static void never_end(void *buffers[], void *argument)
{
    (void)argument;
    (void)buffers;
    for (;;)
        pause();
}

#define CODELET(function)                               \
    static struct starpu_codelet function##_codelet = { \
        .cpu_funcs = {function}, .nbuffers = STARPU_VARIABLE_NBUFFERS, .name = #function}

CODELET(smooth);
CODELET(share);
CODELET(add);
CODELET(crash);
CODELET(kill_rank);
CODELET(never_end);

// ---- Programs ----

static void submit(int status)
{
    STARPU_CHECK_RETURN_VALUE(status, "starpu_task_insert");
}

static void steps(void)
{
    int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    for (int step = 0; step < STEPS; step++) {
        starpu_mpi_isend_detached(handles[BLOCKS - 1], next, step, MPI_COMM_WORLD, NULL, NULL);
        starpu_mpi_irecv_detached(halo_handle, previous, step, MPI_COMM_WORLD, NULL, NULL);
        for (int b = 0; b < BLOCKS; b++)
            submit(starpu_task_insert(&smooth_codelet, STARPU_RW, handles[b], STARPU_R,
                                      b > 0 ? handles[b - 1] : halo_handle, 0));
    }
}

static void on_rank_1(struct starpu_codelet *codelet)
{
    for (int b = 0; b < BLOCKS && rank == 1; b++)
        submit(starpu_task_insert(codelet, STARPU_RW, handles[b], 0));
}

static void shares_undeclared(void)
{
    steps();
    starpu_task_wait_for_all();
    on_rank_1(&share_codelet);
    steps();
}

// A sum in any order, which the other rank receives and uses.
static void commute(void)
{
    int other = (rank + 1) % size;
    steps();
    for (int b = 0; b < BLOCKS; b++)
        submit(starpu_task_insert(&add_codelet, STARPU_RW | STARPU_COMMUTE, total_handle, STARPU_R, handles[b], 0));
    starpu_mpi_isend_detached(total_handle, other, STEPS, MPI_COMM_WORLD, NULL, NULL);
    starpu_mpi_irecv_detached(other_handle, other, STEPS, MPI_COMM_WORLD, NULL, NULL);
    submit(starpu_task_insert(&add_codelet, STARPU_RW, other_handle, STARPU_R, handles[0], 0));
}

static void crashes(void)
{
    steps();
    on_rank_1(&crash_codelet);
    steps();
}

static void is_killed(void)
{
    steps();
    on_rank_1(&kill_rank_codelet);
    steps();
}

static void hangs(void)
{
    steps();
    on_rank_1(&never_end_codelet);
    steps();
}

static const struct {
    const char *name;
    void (*run)(void);
} programs[] = {{"right", steps},     {"shares_undeclared", shares_undeclared},
                {"commute", commute}, {"crashes", crashes},
                {"hangs", hangs},     {"is_killed", is_killed}};

static void run(void (*program)(void))
{
    for (int b = 0; b < BLOCKS; b++) {
        for (int i = 0; i < N; i++)
            blocks[b][i] = (rank * BLOCKS + b) * 1.7 + i;
        starpu_vector_data_register(&handles[b], STARPU_MAIN_RAM, (uintptr_t)blocks[b], N, sizeof(double));
    }
    starpu_vector_data_register(&halo_handle, STARPU_MAIN_RAM, (uintptr_t)halo, N, sizeof(double));
    starpu_variable_data_register(&total_handle, STARPU_MAIN_RAM, (uintptr_t)&total, sizeof total);
    starpu_variable_data_register(&other_handle, STARPU_MAIN_RAM, (uintptr_t)&total_of_other, sizeof total_of_other);
    program();
    starpu_task_wait_for_all();
    starpu_mpi_wait_for_all(MPI_COMM_WORLD);
    for (int b = 0; b < BLOCKS; b++)
        starpu_data_unregister(handles[b]);
    starpu_data_unregister(halo_handle);
    starpu_data_unregister(total_handle);
    starpu_data_unregister(other_handle);
}

// Rank 1 ends when rank 0 has started StarPU.
static int leave_early(void)
{
    int ready = 0;
    if (rank == 1) {
        MPI_Recv(&ready, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        return 4;
    }
    STARPU_CHECK_RETURN_VALUE(starpu_init(NULL), "starpu_init");
    MPI_Send(&ready, 1, MPI_INT, 1, 0, MPI_COMM_WORLD);
    return MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc == 2 && strcmp(argv[1], "leaves_early") == 0)
        return leave_early();
    for (size_t i = 0; argc == 2 && i < sizeof programs / sizeof *programs; i++) {
        if (strcmp(argv[1], programs[i].name) != 0)
            continue;
        STARPU_CHECK_RETURN_VALUE(starpu_mpi_init_conf(NULL, NULL, 0, MPI_COMM_WORLD, NULL), "starpu_mpi_init_conf");
        run(programs[i].run);
        starpu_mpi_shutdown();
        MPI_Finalize();
        return 0;
    }
    fprintf(stderr, "ranks: found %s, expected the name of a program\n", argc == 2 ? argv[1] : "no name");
    return 2;
}
