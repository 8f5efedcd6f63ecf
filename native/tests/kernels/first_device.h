/* The OpenCL device that is measured and tested: the first that is no CPU, or else the first. */
#pragma once

#include <CL/cl.h>

static inline cl_device_id first_device_of(cl_device_type type)
{
    enum { MOST_PLATFORMS = 8 };
    cl_platform_id platforms[MOST_PLATFORMS];
    cl_uint count = 0;
    clGetPlatformIDs(MOST_PLATFORMS, platforms, &count);
    for (cl_uint i = 0; i < count && i < MOST_PLATFORMS; i++) {
        cl_device_id id;
        if (clGetDeviceIDs(platforms[i], type, 1, &id, NULL) == CL_SUCCESS)
            return id;
    }
    return NULL;
}

/* NULL: there is none. */
static inline cl_device_id first_device(void)
{
    cl_device_id id = first_device_of(CL_DEVICE_TYPE_GPU | CL_DEVICE_TYPE_ACCELERATOR);
    return id ? id : first_device_of(CL_DEVICE_TYPE_ALL);
}
