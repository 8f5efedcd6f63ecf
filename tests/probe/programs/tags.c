// Tasks that tags order, on a handle without sequential consistency: ./tags right, or ./tags lies, where one task
// declares to read what it writes.
#include <starpu.h>
#include <string.h>

enum { TASKS = 12, LIAR = 7 };

static void count(void *buffers[], void *argument)
{
    int *value = (int *)STARPU_VARIABLE_GET_PTR(buffers[0]);
    *value = 3 * *value + 1;
}

static struct starpu_codelet counting = {.cpu_funcs = {count}, .nbuffers = 1, .modes = {STARPU_RW}, .name = "count"};
static struct starpu_codelet lying = {.cpu_funcs = {count}, .nbuffers = 1, .modes = {STARPU_R}, .name = "lie"};

int main(int argc, char **argv)
{
    starpu_data_handle_t handle;
    int value = 1;
    STARPU_CHECK_RETURN_VALUE(starpu_init(NULL), "starpu_init");
    starpu_variable_data_register(&handle, STARPU_MAIN_RAM, (uintptr_t)&value, sizeof value);
    starpu_data_set_sequential_consistency_flag(handle, 0);
    for (int t = 0; t < TASKS; t++) {
        struct starpu_task *task = starpu_task_create();
        task->cl = argc > 1 && strcmp(argv[1], "lies") == 0 && t == LIAR ? &lying : &counting;
        task->handles[0] = handle;
        task->use_tag = 1;
        task->tag_id = (starpu_tag_t)t;
        if (t > 0)
            starpu_tag_declare_deps(task->tag_id, 1, (starpu_tag_t)(t - 1));
        STARPU_CHECK_RETURN_VALUE(starpu_task_submit(task), "starpu_task_submit");
    }
    starpu_task_wait_for_all();
    starpu_data_unregister(handle);
    starpu_shutdown();
    return 0;
}
