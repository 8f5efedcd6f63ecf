// A task declares to write a sparse matrix, and reads its values. The program submits other tasks if their sum isn't
// right, and fails.
#include <starpu.h>
#include <stdbool.h>

enum { ROWS = 4 };

static void add_values(void *buffers[], void *argument)
{
    const double *values = (const double *)STARPU_CSR_GET_NZVAL(buffers[0]);
    double *sum = (double *)STARPU_VARIABLE_GET_PTR(buffers[1]);
    for (int i = 0; i < ROWS; i++)
        *sum += values[i];
}

static void count(void *buffers[], void *argument)
{
    *(double *)STARPU_VARIABLE_GET_PTR(buffers[0]) += 1;
}

static struct starpu_codelet counting = {.cpu_funcs = {count}, .nbuffers = 1, .modes = {STARPU_RW}, .name = "count"};
static struct starpu_codelet adding = {
    .cpu_funcs = {add_values}, .nbuffers = 2, .modes = {STARPU_W, STARPU_RW}, .name = "add_values"};

int main(void)
{
    double values[ROWS] = {1, 2, 3, 4}, sum = 0;
    uint32_t columns[ROWS] = {0, 1, 2, 3}, rows[ROWS + 1] = {0, 1, 2, 3, 4};
    starpu_data_handle_t matrix, result;
    STARPU_CHECK_RETURN_VALUE(starpu_init(NULL), "starpu_init");
    starpu_csr_data_register(&matrix, STARPU_MAIN_RAM, ROWS, ROWS, (uintptr_t)values, columns, rows, 0, sizeof *values);
    starpu_variable_data_register(&result, STARPU_MAIN_RAM, (uintptr_t)&sum, sizeof sum);
    STARPU_CHECK_RETURN_VALUE(starpu_task_insert(&adding, STARPU_W, matrix, STARPU_RW, result, 0),
                              "starpu_task_insert");
    starpu_data_acquire(result, STARPU_R);
    bool is_right = sum == 10;
    starpu_data_release(result);
    for (int t = 0; is_right && t < 3; t++)
        STARPU_CHECK_RETURN_VALUE(starpu_task_insert(&counting, STARPU_RW, result, 0), "starpu_task_insert");
    starpu_task_wait_for_all();
    starpu_data_unregister(matrix);
    starpu_data_unregister(result);
    starpu_shutdown();
    return is_right ? 0 : 1;
}
