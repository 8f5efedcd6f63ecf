/* Allocating buffers, registering them with StarPU, and access to them outside of tasks. */
#include "data/data.h"

#include <starpu.h>
#include <sys/mman.h>

#include "data/exchange.h"
#include "instrument/audit.h"

static status allocate(struct data *data)
{
    data->buffer = mmap(NULL, data->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data->buffer == MAP_FAILED) {
        data->buffer = NULL;
        return fail(STARPULLM_OUT_OF_MEMORY, "%s: %zu bytes could not be allocated", data->name, data->bytes);
    }
    /* Fewer page faults and TLB misses. Small buffers take no more memory: they lie side by side in one huge page. The
     * system may refuse. */
    (void)madvise(data->buffer, data->bytes, MADV_HUGEPAGE);
    return STARPULLM_OK;
}

status data_create(struct data *data, bool registered, bool on_this_rank)
{
    if (!registered)
        return STARPULLM_OK;
    if (on_this_rank)
        TRY(allocate(data));
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
        munmap(data->buffer, data->bytes);
    data->handle = NULL;
    data->buffer = NULL;
}

static status check_acquired(const struct data *data, int error)
{
    if (error)
        return fail(STARPULLM_RUNTIME_FAILURE, "%s: StarPU refused access from the application (error %d)", data->name,
                    error);
    return STARPULLM_OK;
}

static status acquire(struct data *data, enum starpu_data_access_mode mode)
{
    TRY(check_acquired(data, starpu_data_acquire(data->handle, mode)));
    audit_open(data->audit, data->id);
    return STARPULLM_OK;
}

status data_acquire_read(struct data *data, const void **memory)
{
    TRY(acquire(data, STARPU_R));
    *memory = starpu_data_get_local_ptr(data->handle);
    return STARPULLM_OK;
}

status data_acquire_write(struct data *data, void **memory)
{
    TRY(acquire(data, STARPU_W));
    *memory = starpu_data_get_local_ptr(data->handle);
    return STARPULLM_OK;
}

void data_release(struct data *data)
{
    audit_close(data->audit, data->id);
    starpu_data_release(data->handle);
}

status data_when_readable(struct data *data, void (*ready)(void *argument), void *argument)
{
    return check_acquired(data,
                          starpu_data_acquire_on_node_cb(data->handle, STARPU_MAIN_RAM, STARPU_R, ready, argument));
}
