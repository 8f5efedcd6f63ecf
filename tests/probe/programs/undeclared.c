// Programs whose tasks access handles that they don't declare, or seem to: ./undeclared NAME runs one of them.
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define SIZES BLOCKS = 4, N = 2000, STEPS = 3 // no multiple of a page
#include "blocks.h"

static double all[512][512];
static double rows[1024][1024] __attribute__((aligned(4096))); // each of two pages
static double numbers[BLOCKS];
static double *first; // of a handle with memory of StarPU's
static char *own_page;
static volatile sig_atomic_t own_faults;

static void scale(void *buffers[], void *argument)
{
    for (int i = 0; i < N; i++)
        elements(buffers, 0)[i] = 0.5 * elements(buffers, 0)[i] + elements(buffers, 1)[i];
}

static void read_other(void *buffers[], void *argument)
{
    elements(buffers, 0)[0] += blocks[2][1000]; // line of the read
}

static void write_other(void *buffers[], void *argument)
{
    ((volatile double *)blocks[2])[1001] = 1002; // line of the write
}

static void copy_other(void *buffers[], void *argument)
{
    memcpy(elements(buffers, 0), blocks[2], sizeof blocks[2]); // line of the copy
}

static void write_back(void *buffers[], void *argument)
{
    volatile double *element = elements(buffers, 1) + 999;
    *element = 1000; // line of the update
}

static void update_corner(void *buffers[], void *argument)
{
    *(double *)STARPU_MATRIX_GET_PTR(buffers[0]) += *(double *)STARPU_MATRIX_GET_PTR(buffers[1]) + 1;
}

static void read_tile(void *buffers[], void *argument)
{
    *(double *)STARPU_MATRIX_GET_PTR(buffers[0]) += all[300][0]; // line of the tile
}

static void keep_address(void *buffers[], void *argument)
{
    first = (double *)STARPU_VARIABLE_GET_PTR(buffers[0]);
    *first = 1;
}

static void read_kept(void *buffers[], void *argument)
{
    *(double *)STARPU_VARIABLE_GET_PTR(buffers[0]) = *first; // line of the kept address
}

static void read_small(void *buffers[], void *argument)
{
    *(double *)STARPU_VARIABLE_GET_PTR(buffers[0]) += numbers[2];
}

static void touch_own_page(void *buffers[], void *argument)
{
    mprotect(own_page, 4096, PROT_NONE);
    *own_page = 1;
    elements(buffers, 0)[0] += blocks[2][1000]; // line of the read behind the program's handler
}

static void read_file(void *buffers[], void *argument)
{
    int file = open("/dev/zero", O_RDONLY);
    if (read(file, blocks[2], sizeof blocks[2]) != sizeof blocks[2])
        exit(4);
    close(file);
}

CODELET(fill);
CODELET(scale);
CODELET(read_other);
CODELET(write_other);
CODELET(copy_other);
CODELET(write_back);
CODELET(update_corner);
CODELET(read_tile);
CODELET(keep_address);
CODELET(read_kept);
CODELET(read_small);
CODELET(touch_own_page);
CODELET(read_file);

static void right(void)
{
    for (int b = 0; b < BLOCKS; b++)
        SUBMIT(&fill_codelet, STARPU_W, handles[b]);
    for (int step = 0; step < STEPS; step++) {
        for (int b = 0; b < BLOCKS; b++)
            SUBMIT(&scale_codelet, STARPU_RW, handles[b], STARPU_R, handles[(b + 1) % BLOCKS]);
    }
}

// The application uses its data by a system call, and by hand, while no task may.
static void acquires(void)
{
    right();
    for (int b = 0; b < BLOCKS; b++) {
        starpu_data_acquire(handles[b], STARPU_RW);
        blocks[b][5] += 1;
        starpu_data_release(handles[b]);
    }
    starpu_task_wait_for_all();
    int file = open("/dev/zero", O_RDONLY);
    if (read(file, blocks, sizeof blocks) != sizeof blocks)
        exit(3);
    close(file);
    right();
}

static void update_in_callback(void *handle)
{
    ((volatile double *)blocks[1])[999] += 1;
    starpu_data_release(handle);
}

// The worker calls the application's function, behind a task that only reads.
static void acquires_in_callback(void)
{
    right();
    SUBMIT(&scale_codelet, STARPU_RW, handles[0], STARPU_R, handles[1]);
    starpu_data_acquire_cb(handles[1], STARPU_RW, update_in_callback, handles[1]);
    right();
}

static void partitions(void)
{
    struct starpu_data_filter filter = {.filter_func = starpu_vector_filter_block, .nchildren = 2};
    starpu_data_handle_t children[2];
    right();
    starpu_data_partition_plan(handles[1], &filter, children);
    starpu_data_partition_submit(handles[1], 2, children);
    for (int i = 0; i < 2; i++)
        SUBMIT(&write_back_codelet, STARPU_R, handles[0], STARPU_RW, children[i]);
    starpu_data_unpartition_submit(handles[1], 2, children, -1);
    right();
    starpu_data_partition_clean(handles[1], 2, children);
}

static void use_tiles(bool is_wrong)
{
    starpu_data_handle_t tiles[4];
    for (int i = 0; i < 4; i++)
        starpu_matrix_data_register(&tiles[i], STARPU_MAIN_RAM, (uintptr_t)&all[256 * (i / 2)][256 * (i % 2)], 512, 256,
                                    256, sizeof(double));
    for (int i = 0; i < 4; i++)
        SUBMIT(&update_corner_codelet, STARPU_RW, tiles[i], STARPU_R, tiles[3 - i]);
    if (is_wrong)
        SUBMIT(&read_tile_codelet, STARPU_RW, tiles[0]);
    for (int i = 0; i < 4; i++)
        starpu_data_unregister(tiles[i]);
}

static void tiles(void)
{
    use_tiles(false);
}

// Each page of a tile is protected by itself.
static void tiles_of_pages(void)
{
    starpu_data_handle_t tiles[2];
    for (int i = 0; i < 2; i++)
        starpu_matrix_data_register(&tiles[i], STARPU_MAIN_RAM, (uintptr_t)&rows[0][512 * i], 1024, 512, 1024,
                                    sizeof(double));
    for (int i = 0; i < 200; i++)
        SUBMIT(&update_corner_codelet, STARPU_RW, tiles[i % 2], STARPU_R, tiles[1 - i % 2]);
    for (int i = 0; i < 2; i++)
        starpu_data_unregister(tiles[i]);
}

static void reads_tile(void)
{
    use_tiles(true);
}

static void reads(void)
{
    right();
    SUBMIT(&read_other_codelet, STARPU_RW, handles[0]);
}

static void writes(void)
{
    right();
    SUBMIT(&write_other_codelet, STARPU_RW, handles[0]);
}

static void copies(void)
{
    right();
    SUBMIT(&copy_other_codelet, STARPU_W, handles[0]);
}

// The contents are what they were.
static void writes_back(void)
{
    for (int b = 0; b < BLOCKS; b++)
        SUBMIT(&fill_codelet, STARPU_W, handles[b]);
    SUBMIT(&write_back_codelet, STARPU_RW, handles[0], STARPU_R, handles[1]);
}

static void temporaries(void)
{
    starpu_data_handle_t one, two;
    starpu_variable_data_register(&one, -1, 0, sizeof(double));
    starpu_variable_data_register(&two, -1, 0, sizeof(double));
    SUBMIT(&keep_address_codelet, STARPU_W, one, STARPU_RW, handles[0]); // keeps the order
    SUBMIT(&read_kept_codelet, STARPU_W, two, STARPU_RW, handles[0]);
    starpu_task_wait_for_all(); // `one` has to be there while its address is read
    starpu_data_unregister(one);
    starpu_data_unregister(two);
}

// It isn't the probe's fault, and ends the program.
static void crashes(void)
{
    right();
    SUBMIT(&read_kept_codelet, STARPU_RW, handles[0]);
}

static void small_handles(void)
{
    starpu_data_handle_t small[BLOCKS];
    for (int b = 0; b < BLOCKS; b++)
        starpu_variable_data_register(&small[b], STARPU_MAIN_RAM, (uintptr_t)&numbers[b], sizeof(double));
    for (int b = 0; b < BLOCKS; b++)
        SUBMIT(&read_small_codelet, STARPU_RW, small[b]);
    for (int b = 0; b < BLOCKS; b++)
        starpu_data_unregister(small[b]);
}

static void own_handler(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)context;
    if (info->si_addr != own_page)
        _exit(7);
    own_faults++;
    mprotect(own_page, 4096, PROT_READ | PROT_WRITE);
}

static void has_a_handler(void)
{
    struct sigaction action = {.sa_flags = SA_SIGINFO};
    action.sa_sigaction = own_handler;
    own_page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    sigaction(SIGSEGV, &action, NULL);
    right();
    SUBMIT(&touch_own_page_codelet, STARPU_RW, handles[0]);
    starpu_task_wait_for_all();
    if (own_faults != 1)
        exit(5);
}

static void calls_the_system(void)
{
    right();
    SUBMIT(&read_file_codelet, STARPU_RW, handles[0]);
}

static const struct program programs[] = {
    PROGRAM(right),   PROGRAM(acquires),       PROGRAM(acquires_in_callback), PROGRAM(partitions),
    PROGRAM(tiles),   PROGRAM(tiles_of_pages), PROGRAM(reads_tile),           PROGRAM(reads),
    PROGRAM(writes),  PROGRAM(copies),         PROGRAM(writes_back),          PROGRAM(temporaries),
    PROGRAM(crashes), PROGRAM(small_handles),  PROGRAM(has_a_handler),        PROGRAM(calls_the_system),
};

int main(int argc, char **argv)
{
    return run_program(find_program(argc, argv, programs, sizeof programs / sizeof *programs), NULL);
}
