// Tasks that write what they declare to read, submitted by a function of their own: for handles with coordinates, and
// for a part of one.
#include <starpu.h>

enum { N = 64, STEPS = 200, PARTS = 4 };

static double tiles[2][N], rows[PARTS * N];

static void update(void *buffers[], void *argument)
{
    for (int i = 0; i < N; i++)
        ((double *)STARPU_VECTOR_GET_PTR(buffers[0]))[i] += ((double *)STARPU_VECTOR_GET_PTR(buffers[1]))[i] + 1;
}

static void spoil(void *buffers[], void *argument)
{
    update(buffers, argument);
    ((double *)STARPU_VECTOR_GET_PTR(buffers[1]))[3] += 1;
}

static struct starpu_codelet update_codelet = {
    .cpu_funcs = {update}, .nbuffers = 2, .modes = {STARPU_RW, STARPU_R}, .name = "update"};
static struct starpu_codelet spoil_codelet = {
    .cpu_funcs = {spoil}, .nbuffers = 2, .modes = {STARPU_RW, STARPU_R}, .name = "spoil"};
static struct starpu_codelet spoil_part_codelet = {
    .cpu_funcs = {spoil}, .nbuffers = 2, .modes = {STARPU_RW, STARPU_R}, .name = "spoil_part"};

static __attribute__((noinline)) starpu_data_handle_t tile(int column)
{
    starpu_data_handle_t handle;
    starpu_vector_data_register(&handle, STARPU_MAIN_RAM, (uintptr_t)tiles[column], N, sizeof(double)); // registration
    starpu_data_set_coordinates(handle, 2, 4, column);
    return handle;
}

static __attribute__((noinline)) void insert(struct starpu_codelet *codelet, starpu_data_handle_t handles[2])
{
    int status = starpu_task_insert(codelet, STARPU_RW, handles[0], STARPU_R, handles[1], 0); // submission
    STARPU_CHECK_RETURN_VALUE(status, "starpu_task_insert");
}

static __attribute__((noinline)) void submit_all(starpu_data_handle_t handles[2])
{
    for (int step = 0; step < STEPS; step++)
        insert(&update_codelet, handles);
    insert(&spoil_codelet, handles); // its caller
    insert(&update_codelet, handles);
}

static void submit_parts(void)
{
    struct starpu_data_filter filter = {.filter_func = starpu_vector_filter_block, .nchildren = PARTS};
    starpu_data_handle_t whole;
    starpu_vector_data_register(&whole, STARPU_MAIN_RAM, (uintptr_t)rows, PARTS * N, sizeof(double)); // the whole
    starpu_data_partition(whole, &filter);
    insert(&spoil_part_codelet,
           (starpu_data_handle_t[]){starpu_data_get_child(whole, 3), starpu_data_get_child(whole, 2)});
    starpu_task_wait_for_all();
    starpu_data_unpartition(whole, STARPU_MAIN_RAM);
    starpu_data_unregister(whole);
}

int main(void)
{
    STARPU_CHECK_RETURN_VALUE(starpu_init(NULL), "starpu_init");
    starpu_data_handle_t handles[2] = {tile(0), 0};
    handles[1] = tile(1); // second tile
    submit_all(handles);
    submit_parts();
    starpu_task_wait_for_all();
    starpu_data_unregister(handles[0]);
    starpu_data_unregister(handles[1]);
    starpu_shutdown();
    return 0;
}
