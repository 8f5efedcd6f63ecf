/* In a build without OpenCL there is no device. */
#include "bench_device.h"

const struct kernels *device_kernels(const char *name)
{
    (void)name;
    return NULL;
}

void device_prepare(void)
{
}
