/* The matmuls on an OpenCL device as kernels that bench_kernels measures. */
#pragma once

#include "kernels/kernels.h"

/* Of the level "opencl", or of "opencl_plain", whose matmuls are those of kernels/ref; _fused behind either. NULL:
 * another name, or there is no device. */
const struct kernels *device_kernels(const char *name);

/* Brings the operations' buffers to the device, if its kernels are measured. */
void device_prepare(void);
