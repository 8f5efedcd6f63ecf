/* A device's facts, its program and its calls, in OpenCL 1.2 alone: StarPU's part is in devices/opencl.c. */
#define CL_TARGET_OPENCL_VERSION 120
#include "devices/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "devices/program_text.h"

/* Work-items of a group, as devices/matmul.cl has it, and groups of a compute unit: enough for a GPU to hide its
 * latencies. */
enum { GROUP = 64, GROUPS_PER_UNIT = 4 };

/* NULL: nothing. */
static const char *lacks(const struct starpullm_device_info *facts)
{
    return !facts->double_precision    ? "double precision"
           : !facts->denormals         ? "denormals of binary32"
           : !facts->correctly_rounded ? "correctly rounded division and square root of binary32"
                                       : NULL;
}

status device_describe(cl_device_id id, struct starpullm_device_info *facts)
{
    *facts = (struct starpullm_device_info){.size = sizeof *facts};
    cl_ulong memory;
    cl_device_fp_config single, wide;
    cl_int error = clGetDeviceInfo(id, CL_DEVICE_NAME, sizeof facts->name, facts->name, NULL);
    error = error ? error : clGetDeviceInfo(id, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof memory, &memory, NULL);
    error = error ? error : clGetDeviceInfo(id, CL_DEVICE_SINGLE_FP_CONFIG, sizeof single, &single, NULL);
    error = error ? error : clGetDeviceInfo(id, CL_DEVICE_DOUBLE_FP_CONFIG, sizeof wide, &wide, NULL);
    if (error)
        return runtime_failure("OpenCL tells nothing of a device (error %d)", error);
    facts->memory = (int64_t)memory;
    facts->double_precision = (wide & CL_FP_DENORM) != 0;
    facts->denormals = (single & CL_FP_DENORM) != 0;
    facts->correctly_rounded = (single & CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT) != 0;
    return STARPULLM_OK;
}

/* The first line of the build log that names an error. */
static status refuse_program(const struct device *device, cl_device_id id, cl_int error)
{
    size_t size = 0;
    clGetProgramBuildInfo(device->program, id, CL_PROGRAM_BUILD_LOG, 0, NULL, &size);
    char *log = calloc(1, size + 1);
    if (log)
        clGetProgramBuildInfo(device->program, id, CL_PROGRAM_BUILD_LOG, size, log, NULL);
    char *line = log ? strstr(log, "error") : NULL;
    while (line && line > log && line[-1] != '\n')
        line--;
    const int length = line ? (int)strcspn(line, "\n") : 0;
    const status code = runtime_failure("device %s: its compiler refuses the kernels (error %d): %.*s",
                                        device->facts.name, error, length, line ? line : "");
    free(log);
    return code;
}

static status build(struct device *device, cl_device_id id, cl_context context, bool fused)
{
#define OPTIONS "-cl-std=CL1.2 -cl-fp32-correctly-rounded-divide-sqrt"
    cl_int error;
    device->program = clCreateProgramWithSource(context, 1, &(const char *){device_program}, NULL, &error);
    if (error)
        return runtime_failure("device %s: no program can be made for it (error %d)", device->facts.name, error);
    error = clBuildProgram(device->program, 1, &id, fused ? OPTIONS " -DFUSED" : OPTIONS, NULL, NULL);
    if (error)
        return refuse_program(device, id, error);
#define KERNEL(name, parameters) \
    if (!error)                  \
        device->kernels[KERNEL_##name] = clCreateKernel(device->program, #name, &error);
#include "kernels/kernels.def"
    if (error)
        return runtime_failure("device %s: it has not all kernels (error %d)", device->facts.name, error);
    return STARPULLM_OK;
}

status device_open(struct device *device, cl_device_id id, cl_context context, cl_command_queue queue, bool fused)
{
    *device = (struct device){.queue = queue};
    TRY(device_describe(id, &device->facts));
    if (lacks(&device->facts))
        return runtime_failure("device %s: found no %s, expected it: the bits need it", device->facts.name,
                               lacks(&device->facts));
    cl_uint units = 1;
    clGetDeviceInfo(id, CL_DEVICE_MAX_COMPUTE_UNITS, sizeof units, &units, NULL);
    device->team = (size_t)units * GROUPS_PER_UNIT * GROUP;
    const status code = build(device, id, context, fused);
    if (code != STARPULLM_OK)
        device_close(device);
    return code;
}

void device_close(struct device *device)
{
    for (int i = 0; i < NUM_DEVICE_KERNELS; i++)
        if (device->kernels[i])
            clReleaseKernel(device->kernels[i]);
    if (device->program)
        clReleaseProgram(device->program);
    *device = (struct device){.queue = NULL};
}

void device_argument(struct device_call *call, size_t size, const void *value)
{
    const cl_int error = clSetKernelArg(call->device->kernels[call->number], call->arguments++, size, value);
    if (!call->error)
        call->error = error;
}

void device_array(struct device_call *call, cl_mem buffer, size_t offset)
{
    device_argument(call, sizeof buffer, buffer ? &buffer : NULL);
    device_argument(call, sizeof(cl_ulong), &(cl_ulong){buffer ? offset : 0});
}

status device_run(struct device_call *call)
{
    const struct device *device = call->device;
    static const char *const names[] = {
#define KERNEL(name, parameters) #name,
#include "kernels/kernels.def"
    };
    if (!call->error)
        call->error = clEnqueueNDRangeKernel(device->queue, device->kernels[call->number], 1, NULL, &device->team,
                                             &(size_t){GROUP}, 0, NULL, NULL);
    if (!call->error)
        call->error = clFinish(device->queue);
    if (call->error)
        return runtime_failure("device %s: %s failed (error %d)", device->facts.name, names[call->number], call->error);
    return STARPULLM_OK;
}
