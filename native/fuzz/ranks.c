/* A part of interpreter.c for several ranks, each of which interprets the program: their operations by StarPU-MPI. */
#include <fcntl.h>
#include <starpu_mpi.h>
#include <sys/file.h>

static int rank; /* of this process */

static int start(void)
{
    const int directory = open(".", O_RDONLY);
    flock(directory, LOCK_EX); /* StarPU aborts if it reads what another rank is writing about the machine */
    const int error = starpu_init(NULL);
    close(directory);
    if (error != 0 || starpu_mpi_init_comm(NULL, NULL, 1, MPI_COMM_WORLD) != 0)
        return -1;
    rank = starpu_mpi_world_rank();
    return 0;
}

#define stop() (starpu_mpi_shutdown(), starpu_shutdown())

/* how the rank is selected that executes it, that rank; a task */
void op_mpi_task(const uint64_t *a)
{
    enum { BY_OWNERS, ON_NODE, ON_DATA };
    const uint64_t *task = a + 2;
    struct starpu_codelet *used = codelet_of(task);
    const int rank_if_given = a[0] == ON_NODE ? (int)a[1] : -1;
    const int data_if_given = a[0] == ON_DATA ? STARPU_EXECUTE_ON_DATA : STARPU_CALLBACK_ARG_NFREE;
    starpu_data_handle_t data[4] = {NULL};
    int modes[4] = {0}; /* the first 0 ends the arguments */
    for (int i = 0; i < (int)task[COUNT]; i++) {
        data[i] = handles[task[ACCESSES + 3 * i]];
        modes[i] = (int)task[ACCESSES + 3 * i + 1] | (task[FLAGS] & SYNCHRONOUS_SENDS ? STARPU_SSEND : 0);
    }
#define ARGUMENTS                                                                                                      \
    MPI_COMM_WORLD, used, STARPU_PRIORITY, (int)task[PRIORITY], STARPU_CL_ARGS_NFREE, (void *)task, sizeof *task,      \
        STARPU_EXECUTE_ON_NODE, rank_if_given, data_if_given, data[0], modes[0], data[0], modes[1], data[1], modes[2], \
        data[2], modes[3], data[3], 0
    struct starpu_task *created = starpu_mpi_task_build(ARGUMENTS);
    tasks[task[NUMBER]].expected_runs = rank == (int)a[1];
    if (created) {
        created->callback_arg_free = 0;
        submit_created(created, task);
    }
    starpu_mpi_task_post_build(ARGUMENTS);
}

/* Messages have tags of their own, also if a rank is in the next program already. */
#define TAG(number, is_task) ((starpu_mpi_tag_t)(2 * (first_tag + (number)) + (is_task)))

static void received(void *arguments)
{
    atomic_fetch_add(&tasks[*(const uint64_t *)arguments].runs, 1);
}

/* number, to, its owner, from, its owner, whether synchronous */
void op_send(const uint64_t *a)
{
    tasks[a[0]].expected_runs = rank == (int)a[2];
    if (rank == (int)a[2])
        starpu_mpi_irecv_detached(handles[a[1]], (int)a[4], TAG(a[0], 1), MPI_COMM_WORLD, received, (void *)a);
    if (rank == (int)a[4])
        (a[5] ? starpu_mpi_issend_detached : starpu_mpi_isend_detached)(handles[a[3]], (int)a[2], TAG(a[0], 1),
                                                                        MPI_COMM_WORLD, NULL, NULL);
}

OPERATION(op_mpi_wait_for_all, starpu_mpi_wait_for_all(MPI_COMM_WORLD))
/* handle */
OPERATION(op_flush, starpu_mpi_cache_flush(MPI_COMM_WORLD, handles[a[0]]))
/* handle, rank */
OPERATION(op_owner, starpu_mpi_data_register(handles[a[0]], TAG(a[0], 0), (int)a[1]))
OPERATION(op_migrate, starpu_mpi_data_migrate(MPI_COMM_WORLD, handles[a[0]], (int)a[1]))
OPERATION(op_get, starpu_mpi_get_data_on_node(MPI_COMM_WORLD, handles[a[0]], (int)a[1]))
OPERATION(op_get_detached, starpu_mpi_get_data_on_node_detached(MPI_COMM_WORLD, handles[a[0]], (int)a[1], NULL, NULL))
/* handle, priority, arity of the tree */
OPERATION(op_reduce, starpu_mpi_redux_data_prio_tree(MPI_COMM_WORLD, handles[a[0]], (int)a[1], (int)a[2]))
/* to, from, whether asynchronous */
OPERATION(op_mpi_copy, starpu_mpi_data_cpy(handles[a[0]], handles[a[1]], MPI_COMM_WORLD, (int)a[2], NULL, NULL))
