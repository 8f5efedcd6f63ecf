// A handle of an interface of its own, whose pack method aborts because nobody packs it, and one that StarPU knows.
#include <starpu.h>

struct own {
    uintptr_t address;
};

static void set_interfaces(starpu_data_handle_t handle, int home, void *interface)
{
    for (unsigned node = 0; node < STARPU_MAXNODES; node++) {
        struct own *own = starpu_data_get_interface_on_node(handle, node);
        own->address = (int)node == home ? ((struct own *)interface)->address : 0;
    }
}

static starpu_ssize_t allocate(void *interface, unsigned node)
{
    struct own *own = interface;
    own->address = starpu_malloc_on_node(node, sizeof(int));
    return own->address == 0 ? -ENOMEM : (starpu_ssize_t)sizeof(int);
}

static void release(void *interface, unsigned node)
{
    struct own *own = interface;
    starpu_free_on_node(node, own->address, sizeof(int));
    own->address = 0;
}

static size_t size_of(starpu_data_handle_t handle)
{
    (void)handle;
    return sizeof(int);
}

static uint32_t footprint(starpu_data_handle_t handle)
{
    (void)handle;
    return 1;
}

static int pack(starpu_data_handle_t handle, unsigned node, void **packed, starpu_ssize_t *bytes)
{
    (void)handle, (void)node, (void)packed, (void)bytes;
    abort();
}

static const struct starpu_data_copy_methods no_copies;

static struct starpu_data_interface_ops operations = {
    .register_data_handle = set_interfaces,
    .allocate_data_on_node = allocate,
    .free_data_on_node = release,
    .copy_methods = &no_copies,
    .get_size = size_of,
    .footprint = footprint,
    .pack_data = pack,
    .interfaceid = STARPU_UNKNOWN_INTERFACE_ID,
    .interface_size = sizeof(struct own),
};

static void count(void *buffers[], void *argument)
{
    *(int *)((struct own *)buffers[0])->address += 1;
    *(int *)STARPU_VARIABLE_GET_PTR(buffers[1]) += 1;
}

static struct starpu_codelet counting = {
    .cpu_funcs = {count}, .nbuffers = 2, .modes = {STARPU_RW, STARPU_RW}, .name = "count"};

int main(void)
{
    int mine = 0, known = 0;
    struct own own = {(uintptr_t)&mine};
    starpu_data_handle_t unpackable, variable;
    STARPU_CHECK_RETURN_VALUE(starpu_init(NULL), "starpu_init");
    operations.interfaceid = starpu_data_interface_get_next_id();
    starpu_data_register(&unpackable, STARPU_MAIN_RAM, &own, &operations);
    starpu_variable_data_register(&variable, STARPU_MAIN_RAM, (uintptr_t)&known, sizeof known);
    for (int t = 0; t < 5; t++)
        STARPU_CHECK_RETURN_VALUE(starpu_task_insert(&counting, STARPU_RW, unpackable, STARPU_RW, variable, 0),
                                  "starpu_task_insert");
    starpu_task_wait_for_all();
    starpu_data_unregister(unpackable);
    starpu_data_unregister(variable);
    starpu_shutdown();
    return mine == 5 && known == 5 ? 0 : 1;
}
