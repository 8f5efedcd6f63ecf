/* Methods of StarPU's data interfaces, replaced by others that call them. */
#include "handles.h"

#include <stdlib.h>

static struct starpu_data_interface_ops *watched[STARPU_MAX_INTERFACE_ID];
static void (*register_data[STARPU_MAX_INTERFACE_ID])(starpu_data_handle_t handle, int home_node, void *interface);
static handle_hook *unregister_data[STARPU_MAX_INTERFACE_ID];
static handle_hook *on_registration, *on_unregistration;

struct known *known_of(starpu_data_handle_t handle)
{
    return starpu_data_get_sched_data(handle);
}

struct known *make_known(starpu_data_handle_t handle)
{
    if (!known_of(handle))
        starpu_data_set_sched_data(handle, calloc(1, sizeof(struct known)));
    STARPU_ASSERT_MSG(known_of(handle), "starpullm's probe: no memory");
    return known_of(handle);
}

static void registered(starpu_data_handle_t handle, int home_node, void *interface)
{
    register_data[starpu_data_get_interface_id(handle)](handle, home_node, interface);
    on_registration(handle);
}

static void unregistered(starpu_data_handle_t handle)
{
    const int id = starpu_data_get_interface_id(handle);
    if (known_of(handle) && known_of(handle)->number != 0)
        on_unregistration(handle);
    free(known_of(handle));
    starpu_data_set_sched_data(handle, NULL);
    if (unregister_data[id])
        unregister_data[id](handle);
}

void handles_watch(struct starpu_data_interface_ops *interface)
{
    const int id = (int)interface->interfaceid;
    if (id < 0 || id >= STARPU_MAX_INTERFACE_ID || watched[id])
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
