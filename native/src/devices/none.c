/* Without OpenCL there are no devices. */
#include "codelets/task.h"
#include "devices/devices.h"

status starpullm_device_info(int32_t index, struct starpullm_device_info *info)
{
    (void)index;
    CHECK_STRUCT(info);
    *info = (struct starpullm_device_info){.size = sizeof *info};
    return STARPULLM_OK;
}

int devices_wanted(int number)
{
    (void)number;
    return 0;
}

status devices_open(int count, bool fused, int64_t *memory)
{
    (void)fused;
    (void)count;
    *memory = 0;
    return STARPULLM_OK;
}

void devices_close(void)
{
}

void devices_traffic(int64_t *to_devices, int64_t *from_devices)
{
    *to_devices = *from_devices = 0;
}

device_function *device_function_of(int operation)
{
    (void)operation;
    return NULL;
}
