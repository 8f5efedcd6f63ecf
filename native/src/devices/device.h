/* An OpenCL device that computes the kernels with the bits of the CPU's: what it has to be able to do, the program made
 * of kernels/ref for it, and the call of a kernel. */
#pragma once

#include <CL/cl.h>
#include <stdbool.h>

#include "status.h"

enum device_kernel {
#define KERNEL(name, parameters) KERNEL_##name,
#include "kernels/kernels.def"
    NUM_DEVICE_KERNELS
};

struct device {
    struct starpullm_device_info facts;
    cl_command_queue queue;
    cl_program program;
    cl_kernel kernels[NUM_DEVICE_KERNELS];
    size_t team; /* work-items of a call */
};

status device_describe(cl_device_id id, struct starpullm_device_info *facts);

/* Refuses a device without the arithmetic. Context and queue are the caller's, and last until device_close(). fused:
 * sums of products are. */
status device_open(struct device *device, cl_device_id id, cl_context context, cl_command_queue queue, bool fused);
void device_close(struct device *device);

/* A call: the kernel's arguments in order, then device_run(), which returns when the kernel has run. */
struct device_call {
    const struct device *device;
    enum device_kernel number;
    cl_uint arguments; /* so far */
    cl_int error;      /* the first */
};

void device_argument(struct device_call *call, size_t size, const void *value);
/* An array, from this byte of the buffer on; NULL: there is none. */
void device_array(struct device_call *call, cl_mem buffer, size_t offset);
status device_run(struct device_call *call);

/* The device of the calling worker (opencl.c). */
const struct device *device_of_worker(void);
