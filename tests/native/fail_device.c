/* A library to be preloaded, with which calls of OpenCL fail: FAIL_CALL names the function, FAIL_AFTER says how many of
 * its calls succeed, FAIL_ERROR is what the others return. A program that is created so doesn't compile. A buffer fails
 * too if all would have more than FAIL_BYTES. */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static atomic_int calls;

static bool fails(const char *name)
{
    const char *which = getenv("FAIL_CALL"), *after = getenv("FAIL_AFTER");
    return which && strcmp(which, name) == 0 && atomic_fetch_add(&calls, 1) >= (after ? atoi(after) : 0);
}

static cl_int error(void)
{
    return atoi(getenv("FAIL_ERROR"));
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

cl_program clCreateProgramWithSource(cl_context context, cl_uint count, const char **texts, const size_t *sizes,
                                     cl_int *code)
{
    static const char *wrong = "not OpenCL C;";
    return fails(__func__) ? REAL(clCreateProgramWithSource)(context, 1, &wrong, NULL, code)
                           : REAL(clCreateProgramWithSource)(context, count, texts, sizes, code);
}

static atomic_long used; /* bytes of all buffers */

cl_mem clCreateBuffer(cl_context context, cl_mem_flags flags, size_t size, void *host, cl_int *code)
{
    const char *limit = getenv("FAIL_BYTES");
    if (fails(__func__) || (limit && atomic_load(&used) + (long)size > atol(limit))) {
        *code = error();
        return NULL;
    }
    atomic_fetch_add(&used, (long)size);
    return REAL(clCreateBuffer)(context, flags, size, host, code);
}

cl_int clReleaseMemObject(cl_mem buffer)
{
    size_t size = 0;
    clGetMemObjectInfo(buffer, CL_MEM_SIZE, sizeof size, &size, NULL);
    atomic_fetch_sub(&used, (long)size);
    return REAL(clReleaseMemObject)(buffer);
}

cl_int clEnqueueNDRangeKernel(cl_command_queue queue, cl_kernel kernel, cl_uint dimensions, const size_t *offset,
                              const size_t *global, const size_t *local, cl_uint count, const cl_event *events,
                              cl_event *event)
{
    if (fails(__func__))
        return error();
    return REAL(clEnqueueNDRangeKernel)(queue, kernel, dimensions, offset, global, local, count, events, event);
}

cl_int clEnqueueReadBuffer(cl_command_queue queue, cl_mem buffer, cl_bool blocking, size_t offset, size_t size,
                           void *memory, cl_uint count, const cl_event *events, cl_event *event)
{
    if (fails(__func__))
        return error();
    return REAL(clEnqueueReadBuffer)(queue, buffer, blocking, offset, size, memory, count, events, event);
}
