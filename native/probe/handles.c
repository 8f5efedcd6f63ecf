// The field has the number plus one in its lower half, then the stack, and in the highest bit whether it was fresh.
#include "handles.h"

static const uint64_t was_fresh = UINT64_C(1) << 63;

// Of watched interfaces: the methods, and what they did before.
static struct starpu_data_interface_ops *watched[STARPU_MAX_INTERFACE_ID];
static void (*register_data[STARPU_MAX_INTERFACE_ID])(starpu_data_handle_t handle, int home_node, void *interface);
static handle_hook *unregister_data[STARPU_MAX_INTERFACE_ID];
static handle_hook *on_registration, *on_unregistration;

static uint64_t field(starpu_data_handle_t handle)
{
    return (uintptr_t)starpu_data_get_sched_data(handle);
}

static void add_to_field(starpu_data_handle_t handle, uint64_t bits)
{
    starpu_data_set_sched_data(handle, (void *)(uintptr_t)(field(handle) | bits));
}

bool handle_has_number(starpu_data_handle_t handle)
{
    return (uint32_t)field(handle) != 0;
}

uint32_t handle_number(starpu_data_handle_t handle)
{
    return (uint32_t)field(handle) - 1;
}

void handle_set_number(starpu_data_handle_t handle, uint32_t number)
{
    add_to_field(handle, number + 1);
}

uint32_t handle_stack(starpu_data_handle_t handle)
{
    return (uint32_t)((field(handle) & ~was_fresh) >> 32);
}

void handle_set_stack(starpu_data_handle_t handle, uint32_t stack)
{
    add_to_field(handle, (uint64_t)stack << 32);
}

bool handle_is_fresh(starpu_data_handle_t handle)
{
    if (!handle_has_number(handle) || (field(handle) & was_fresh) != 0)
        return false;
    add_to_field(handle, was_fresh);
    return true;
}

static void registered(starpu_data_handle_t handle, int home_node, void *interface)
{
    register_data[starpu_data_get_interface_id(handle)](handle, home_node, interface);
    on_registration(handle);
}

static void unregistered(starpu_data_handle_t handle)
{
    const int id = starpu_data_get_interface_id(handle);
    on_unregistration(handle);
    if (unregister_data[id] != NULL)
        unregister_data[id](handle);
}

void handles_watch(struct starpu_data_interface_ops *interface)
{
    const int id = (int)interface->interfaceid;
    if (id < 0 || id >= STARPU_MAX_INTERFACE_ID || watched[id] != NULL)
        return;
    watched[id] = interface;
    register_data[id] = interface->register_data_handle;
    unregister_data[id] = interface->unregister_data_handle;
    interface->register_data_handle = registered;
    interface->unregister_data_handle = unregistered;
}

void handles_start(handle_hook *registration, handle_hook *unregistration)
{
    static struct starpu_data_interface_ops *const own[] = {
        &starpu_interface_matrix_ops, &starpu_interface_block_ops,  &starpu_interface_tensor_ops,
        &starpu_interface_ndim_ops,   &starpu_interface_vector_ops, &starpu_interface_variable_ops,
        &starpu_interface_void_ops,   &starpu_interface_csr_ops,    &starpu_interface_bcsr_ops,
        &starpu_interface_coo_ops};
    on_registration = registration;
    on_unregistration = unregistration;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        handles_watch(own[i]);
}
