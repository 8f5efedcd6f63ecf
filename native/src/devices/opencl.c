/* Finding OpenCL devices by StarPU's rules, and opening those that it runs. */
#include <starpu.h>
#include <stdlib.h>
#include <string.h>

#include "devices/device.h"
#include "devices/devices.h"

enum { MAX_PLATFORMS = 16, MAX_DEVICES = STARPU_MAXOPENCLDEVS };

static struct device devices[MAX_DEVICES];
static int num_open;
static int64_t bytes_to, bytes_from; /* until StarPU's counts were last read, which sets them to 0 */

static bool is_positive(const char *variable)
{
    const char *text = getenv(variable);
    return text && atoi(text) > 0;
}

/* In StarPU's order. */
static int find(cl_device_id ids[MAX_DEVICES])
{
    cl_platform_id platforms[MAX_PLATFORMS];
    cl_uint num_platforms = 0;
    int found = 0;
    cl_device_type types = CL_DEVICE_TYPE_GPU | CL_DEVICE_TYPE_ACCELERATOR;
    if (is_positive("STARPU_OPENCL_ON_CPUS"))
        types |= CL_DEVICE_TYPE_CPU;
    if (is_positive("STARPU_OPENCL_ONLY_ON_CPUS"))
        types = CL_DEVICE_TYPE_CPU;
    if (clGetPlatformIDs(MAX_PLATFORMS, platforms, &num_platforms) != CL_SUCCESS)
        return 0;
    for (cl_uint i = 0; i < num_platforms && i < MAX_PLATFORMS && found < MAX_DEVICES; i++) {
        const cl_uint room = (cl_uint)(MAX_DEVICES - found);
        cl_uint more = 0;
        if (clGetDeviceIDs(platforms[i], types, room, ids + found, &more) == CL_SUCCESS)
            found += (int)(more < room ? more : room);
    }
    return found;
}

int devices_wanted(int number)
{
    return number == ALL_DEVICES ? find((cl_device_id[MAX_DEVICES]){NULL}) : number;
}

status starpullm_device_info(int32_t index, struct starpullm_device_info *info)
{
    CHECK_STRUCT(info);
    cl_device_id ids[MAX_DEVICES];
    *info = (struct starpullm_device_info){.size = sizeof *info};
    return index >= 0 && index < find(ids) ? device_describe(ids[index], info) : STARPULLM_OK;
}

/* Less where STARPU_LIMIT_OPENCL_MEM says so. */
static int64_t memory_of(int device)
{
    const int worker = starpu_worker_get_by_devid(STARPU_OPENCL_WORKER, device);
    return (int64_t)starpu_memory_get_total(starpu_worker_get_memory_node((unsigned)worker));
}

status devices_open(int count, bool fused, int64_t *memory)
{
    const int started = count ? (int)starpu_opencl_worker_get_count() : 0;
    if (started != count)
        return runtime_failure("devices: StarPU started %d, expected %d", started, count);
    *memory = INT64_MAX;
    for (; num_open < count; num_open++) {
        const int64_t own = memory_of(num_open);
        *memory = own < *memory ? own : *memory;
        cl_device_id id;
        cl_context context;
        cl_command_queue queue;
        starpu_opencl_get_device(num_open, &id);
        starpu_opencl_get_context(num_open, &context);
        starpu_opencl_get_queue(num_open, &queue);
        TRY(device_open(&devices[num_open], id, context, queue, fused));
    }
    bytes_to = bytes_from = 0;
    if (count)
        starpu_profiling_status_set(STARPU_PROFILING_ENABLE);
    return STARPULLM_OK;
}

void devices_traffic(int64_t *to_devices, int64_t *from_devices)
{
    for (int bus = 0; bus < starpu_bus_get_count(); bus++) {
        struct starpu_profiling_bus_info info;
        starpu_bus_get_profiling_info(bus, &info);
        const bool to = starpu_node_get_kind((unsigned)starpu_bus_get_dst(bus)) == STARPU_OPENCL_RAM;
        *(to ? &bytes_to : &bytes_from) += (int64_t)info.transferred_bytes;
    }
    *to_devices = bytes_to;
    *from_devices = bytes_from;
}

void devices_close(void)
{
    if (num_open)
        starpu_profiling_status_set(STARPU_PROFILING_DISABLE);
    while (num_open > 0)
        device_close(&devices[--num_open]);
}

const struct device *device_of_worker(void)
{
    return &devices[starpu_worker_get_devid(starpu_worker_get_id())];
}
