// How tasks come to StarPU, and what they bring: ./submissions NAME. Each is right, but for those that lie.
#include <starpu.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { HANDLES = 4 };

static int values[HANDLES];
static starpu_data_handle_t handles[HANDLES];

static void add(void *buffers[], void *argument)
{
    *(int *)STARPU_VARIABLE_GET_PTR(buffers[0]) += (int)(intptr_t)argument;
}

static struct starpu_codelet adding = {.cpu_funcs = {add}, .nbuffers = 1, .modes = {STARPU_RW}, .name = "add"};

static struct starpu_task *new_task(struct starpu_codelet *codelet, int handle)
{
    struct starpu_task *task = starpu_task_create();
    task->cl = codelet;
    task->handles[0] = handles[handle];
    return task;
}

static void submit(struct starpu_task *task)
{
    STARPU_CHECK_RETURN_VALUE(starpu_task_submit(task), "starpu_task_submit");
}

// StarPU's own tests of OpenMP pass integers in this way.
static void integers(void)
{
    for (int i = 0; i < 2 * HANDLES; i++) {
        struct starpu_task *task = new_task(&adding, i % HANDLES);
        task->cl_arg = (void *)(intptr_t)(i + 1);
        task->cl_arg_size = sizeof task->cl_arg;
        submit(task);
    }
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*submit)(void);
    } all[] = {{"integers", integers}};
    size_t chosen = 0;
    while (chosen < sizeof all / sizeof *all && (argc < 2 || strcmp(argv[1], all[chosen].name) != 0))
        chosen++;
    if (chosen == sizeof all / sizeof *all)
        return 2;
    STARPU_CHECK_RETURN_VALUE(starpu_init(NULL), "starpu_init");
    for (int i = 0; i < HANDLES; i++)
        starpu_variable_data_register(&handles[i], STARPU_MAIN_RAM, (uintptr_t)&values[i], sizeof values[i]);
    all[chosen].submit();
    for (int i = 0; i < HANDLES; i++)
        starpu_data_unregister(handles[i]);
    starpu_shutdown();
    return 0;
}
