/* The device's memory has a copy of the pool of all buffers; results stay there. */
#define CL_TARGET_OPENCL_VERSION 120
#include "bench_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_operations.h"
#include "devices/device.h"
#include "first_device.h"

/* devices/device.c compiled with the plain program. */
status device_open_plain(struct device *device, cl_device_id id, cl_context context, cl_command_queue queue,
                         bool fused);

enum { IMPLEMENTATIONS = 4 };

static cl_context context;
static cl_command_queue queue;
static cl_mem pool;
static struct device devices[IMPLEMENTATIONS];

static void expect(bool is_right, const char *what)
{
    if (!is_right) {
        fprintf(stderr, "bench_kernels: %s: %s\n", what, starpullm_last_error());
        exit(1);
    }
}

static void pass(struct device_call *call, const float *array)
{
    device_array(call, pool, (size_t)(array - operations_pool()) * sizeof *array);
}

static void pass_sizes(struct device_call *call, size_t count, const size_t *sizes)
{
    for (size_t i = 0; i < count; i++)
        device_argument(call, sizeof(cl_ulong), &(cl_ulong){sizes[i]});
}

/* The functions of a device; thread 0 of a team calls it. */
#define MATMULS(d)                                                                                                     \
    static void forward_##d(float *out, const float *inp, const float *weight, const float *bias, size_t N, size_t C,  \
                            size_t OC, struct team team)                                                               \
    {                                                                                                                  \
        struct device_call call = {.device = &devices[d], .number = KERNEL_matmul_forward};                            \
        if (team.index)                                                                                                \
            return;                                                                                                    \
        pass(&call, out), pass(&call, inp), pass(&call, weight), pass(&call, bias);                                    \
        pass_sizes(&call, 3, (size_t[]){N, C, OC});                                                                    \
        expect(device_run(&call) == STARPULLM_OK, "matmul_forward");                                                   \
    }                                                                                                                  \
    static void backward_input_##d(float *dinp, const float *dout, const float *weight, size_t N, size_t C, size_t OC, \
                                   struct team team)                                                                   \
    {                                                                                                                  \
        struct device_call call = {.device = &devices[d], .number = KERNEL_matmul_backward_input};                     \
        if (team.index)                                                                                                \
            return;                                                                                                    \
        pass(&call, dinp), pass(&call, dout), pass(&call, weight);                                                     \
        pass_sizes(&call, 3, (size_t[]){N, C, OC});                                                                    \
        expect(device_run(&call) == STARPULLM_OK, "matmul_backward_input");                                            \
    }                                                                                                                  \
    static void backward_weight_##d(float *dweight, float *dbias, const float *dout, const float *inp, size_t N,       \
                                    size_t C, size_t OC, size_t first, size_t rows, enum sum_start start,              \
                                    struct team team)                                                                  \
    {                                                                                                                  \
        struct device_call call = {.device = &devices[d], .number = KERNEL_matmul_backward_weight};                    \
        if (team.index)                                                                                                \
            return;                                                                                                    \
        pass(&call, dweight), pass(&call, dbias), pass(&call, dout), pass(&call, inp);                                 \
        pass_sizes(&call, 5, (size_t[]){N, C, OC, first, rows});                                                       \
        device_argument(&call, sizeof(cl_int), &(cl_int){start});                                                      \
        expect(device_run(&call) == STARPULLM_OK, "matmul_backward_weight");                                           \
    }
MATMULS(0)
MATMULS(1)
MATMULS(2)
MATMULS(3)

#define KERNELS(d)                                \
    {.matmul_forward = forward_##d,               \
     .matmul_backward_input = backward_input_##d, \
     .matmul_backward_weight = backward_weight_##d}
static const struct kernels implementations[IMPLEMENTATIONS] = {KERNELS(0), KERNELS(1), KERNELS(2), KERNELS(3)};

const struct kernels *device_kernels(const char *name)
{
    static const char *const names[IMPLEMENTATIONS] = {"opencl", "opencl_plain", "opencl_fused", "opencl_plain_fused"};
    int d = 0;
    while (d < IMPLEMENTATIONS && strcmp(name, names[d]) != 0)
        d++;
    cl_device_id id = d < IMPLEMENTATIONS ? first_device() : NULL;
    if (!id)
        return NULL;
    cl_int error = CL_SUCCESS;
    context = context ? context : clCreateContext(NULL, 1, &id, NULL, NULL, &error);
    expect(!error, "no context");
    queue = queue ? queue : clCreateCommandQueue(context, id, 0, &error);
    expect(!error, "no queue");
    const bool fused = d >= 2, plain = d % 2;
    expect((plain ? device_open_plain : device_open)(&devices[d], id, context, queue, fused) == STARPULLM_OK, "device");
    printf("%s: %s\n", name, devices[d].facts.name);
    return &implementations[d];
}

void device_prepare(void)
{
    if (!context)
        return;
    cl_int error = CL_SUCCESS;
    const size_t bytes = operations_pool_bytes();
    pool = pool ? pool : clCreateBuffer(context, CL_MEM_READ_WRITE, bytes, NULL, &error);
    expect(!error, "no buffer");
    error = clEnqueueWriteBuffer(queue, pool, CL_TRUE, 0, bytes, operations_pool(), 0, NULL, NULL);
    expect(!error, "the buffers can't be copied");
}
