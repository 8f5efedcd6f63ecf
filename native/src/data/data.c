/* Allocating buffers, registering them with StarPU, and access to them outside of tasks. */
#include "data/data.h"

#include <starpu.h>

#include "data/disk.h"
#include "data/pages.h"
#include "instrument/audit.h"

status data_create(struct data *data, bool on_this_rank)
{
    if (on_this_rank && !data->homeless && !(data->buffer = pages_allocate(data->bytes)))
        return out_of_memory("%s: %zu bytes could not be allocated", data->name, data->bytes);
    starpu_data_handle_t handle;
    starpu_vector_data_register(&handle, data->buffer ? STARPU_MAIN_RAM : -1, (uintptr_t)data->buffer,
                                (uint32_t)(data->bytes / DATA_ELEMENT_BYTES), DATA_ELEMENT_BYTES);
    starpu_data_set_name(handle, data->name);
    data->handle = handle;
    exchange_register(data);
    return STARPULLM_OK;
}

void data_destroy(struct data *data)
{
    if (data->handle) {
        exchange_unregister(data);
        starpu_data_unregister(data->handle);
    }
    if (data->buffer)
        pages_free(data->buffer, data->bytes);
}

static status check_acquired(const struct data *data, int error)
{
    if (error)
        return runtime_failure("%s: StarPU refused access from the application (error %d)", data->name, error);
    return STARPULLM_OK;
}

static status acquire(struct data *data, enum starpu_data_access_mode mode, void **memory)
{
    TRY(check_acquired(data, starpu_data_acquire(data->handle, mode)));
    audit_open(data->audit, data->id);
    *memory = starpu_data_get_local_ptr(data->handle);
    return STARPULLM_OK;
}

status data_acquire_read(struct data *data, const void **memory)
{
    return acquire(data, STARPU_R, (void **)memory);
}

status data_acquire_write(struct data *data, void **memory)
{
    data->has_value = true;
    return acquire(data, STARPU_W, memory);
}

void data_release(struct data *data)
{
    audit_close(data->audit, data->id);
    starpu_data_release(data->handle);
}

void *data_memory(const struct data *data)
{
    return data->buffer ? data->buffer : (void *)starpu_data_get_local_ptr(data->handle);
}

status data_when_readable(struct data *data, void (*ready)(void *argument), void *argument)
{
    return check_acquired(data,
                          starpu_data_acquire_on_node_cb(data->handle, STARPU_MAIN_RAM, STARPU_R, ready, argument));
}

void data_write_early(struct data *data)
{
    starpu_data_wont_use(data->handle);
}

void data_evict(const struct data *data)
{
    if (disk_has(data->handle))
        (void)starpu_data_evict_from_node(data->handle, STARPU_MAIN_RAM); /* refused while a task uses them */
}

void data_invalidate(struct data *data)
{
    data->has_value = false;
    data->invalidated = true;
    starpu_data_invalidate_submit(data->handle);
}
