// Programs over MPI ranks, right and wrong, for the tests of the probe: mpirun -n 2 ./ranks NAME runs one of them. Each
// rank smooths its own blocks; the first neighbour is the other rank's, and is received in each step. What is wrong is
// so on rank 1 only.
#include <signal.h>
#include <starpu_mpi.h>
#include <stdlib.h>
#include <unistd.h>

#include "blocks.h"

enum { STEPS = 2 };

static double halo[N], total_of_other;
static starpu_data_handle_t halo_handle, other_handle;
static double undeclared;
static int rank, size;

// ---- The functions of tasks ----

static void share(void *buffers[], void *argument)
{
    double value = undeclared + 1;
    work();
    undeclared = value;
    elements(buffers, 0)[5] += value;
}

static void add(void *buffers[], void *argument)
{
    *(double *)STARPU_VARIABLE_GET_PTR(buffers[0]) += elements(buffers, 1)[2] / 3;
}

static void crash(void *buffers[], void *argument)
{
    *(volatile int *)8 = 1;
}

static void kill_rank(void *buffers[], void *argument)
{
    raise(SIGKILL);
}

static void never_end(void *buffers[], void *argument)
{
    for (;;)
        pause();
}

CODELET(smooth);
CODELET(share);
CODELET(add);
CODELET(crash);
CODELET(kill_rank);
CODELET(never_end);

// ---- Programs ----

static void steps(void)
{
    int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    for (int step = 0; step < STEPS; step++) {
        starpu_mpi_isend_detached(handles[BLOCKS - 1], next, step, MPI_COMM_WORLD, NULL, NULL);
        starpu_mpi_irecv_detached(halo_handle, previous, step, MPI_COMM_WORLD, NULL, NULL);
        for (int b = 0; b < BLOCKS; b++)
            SUBMIT(&smooth_codelet, STARPU_RW, handles[b], STARPU_R, b > 0 ? handles[b - 1] : halo_handle);
    }
}

static void on_rank_1(struct starpu_codelet *codelet)
{
    for (int b = 0; b < BLOCKS && rank == 1; b++)
        SUBMIT(codelet, STARPU_RW, handles[b]);
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
        SUBMIT(&add_codelet, STARPU_RW | STARPU_COMMUTE, total_handle, STARPU_R, handles[b]);
    starpu_mpi_isend_detached(total_handle, other, STEPS, MPI_COMM_WORLD, NULL, NULL);
    starpu_mpi_irecv_detached(other_handle, other, STEPS, MPI_COMM_WORLD, NULL, NULL);
    SUBMIT(&add_codelet, STARPU_RW, other_handle, STARPU_R, handles[0]);
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

static const struct program programs[] = {{"right", steps}, PROGRAM(shares_undeclared),
                                          PROGRAM(commute), PROGRAM(crashes),
                                          PROGRAM(hangs),   PROGRAM(is_killed)};

static void run(void (*program)(void))
{
    for (int b = 0; b < BLOCKS; b++) {
        for (int i = 0; i < N; i++)
            blocks[b][i] = (rank * BLOCKS + b) * 1.7 + i;
    }
    register_data();
    starpu_vector_data_register(&halo_handle, STARPU_MAIN_RAM, (uintptr_t)halo, N, sizeof(double));
    starpu_variable_data_register(&other_handle, STARPU_MAIN_RAM, (uintptr_t)&total_of_other, sizeof total_of_other);
    program();
    starpu_task_wait_for_all();
    starpu_mpi_wait_for_all(MPI_COMM_WORLD);
    unregister_data();
    starpu_data_unregister(halo_handle);
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
    const struct program *program = find_program(argc, argv, programs, sizeof programs / sizeof *programs);
    if (program == NULL)
        return 2;
    STARPU_CHECK_RETURN_VALUE(starpu_mpi_init_conf(NULL, NULL, 0, MPI_COMM_WORLD, NULL), "starpu_mpi_init_conf");
    run(program->run);
    starpu_mpi_shutdown();
    MPI_Finalize();
    return 0;
}
