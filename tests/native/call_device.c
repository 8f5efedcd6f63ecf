/* As call_kernels.c, by the arithmetic that is named, strict or fused, and a device. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CL_TARGET_OPENCL_VERSION 120
#include "devices/device.h"
#include "first_device.h"
#include "kernels/kernels.h"

enum { GUARD = 64, MOST_ARGUMENTS = 16 };

struct call {
    char kinds[16]; /* of the arguments: a for an array, v for a value */
    int64_t unused;
    int32_t kernel, arguments;
    int32_t thread, threads;
};

struct argument {
    cl_mem buffer; /* of an array */
    int64_t size;  /* -1: NULL */
    char *bytes;   /* with a guard on both sides */
};

static void expect(bool is_right, const char *what)
{
    if (!is_right) {
        fprintf(stderr, "%s: %s\n", what, starpullm_last_error());
        exit(1);
    }
}

static void receive(void *data, size_t size)
{
    expect(size == 0 || fread(data, size, 1, stdin) == 1, "the request ends too early");
}

static size_t whole(const struct argument *argument)
{
    return (size_t)argument->size + 2 * GUARD;
}

static void check_guard(const char *guard)
{
    for (int i = 0; i < GUARD; i++)
        expect(guard[i] == 0x5a, "a kernel writes out of bounds");
}

int main(int argc, char **argv)
{
    cl_int error;
    cl_device_id id = first_device();
    if (!id)
        return 3;
    cl_context context = clCreateContext(NULL, 1, &id, NULL, NULL, &error);
    expect(!error, "no context");
    cl_command_queue queue = clCreateCommandQueue(context, id, 0, &error);
    expect(!error, "no queue");
    struct device device;
    expect(device_open(&device, id, context, queue, argc > 1 && strcmp(argv[1], "fused") == 0) == STARPULLM_OK,
           "the device is refused");
    fprintf(stderr, "%s, %.1f GiB\n", device.facts.name, (double)device.facts.memory / (1 << 30));
    for (struct call call; fread(&call, sizeof call, 1, stdin) == 1;) {
        struct argument argument[MOST_ARGUMENTS] = {{NULL, -1, NULL}};
        for (int i = 0; i < call.arguments; i++) {
            struct argument *a = &argument[i];
            receive(&a->size, sizeof a->size);
            if (a->size < 0)
                continue;
            a->bytes = malloc(whole(a));
            memset(a->bytes, 0x5a, whole(a));
            receive(a->bytes + GUARD, (size_t)a->size);
            a->buffer = clCreateBuffer(context, CL_MEM_COPY_HOST_PTR, whole(a), a->bytes, &error);
            expect(!error, "no buffer");
        }
        struct device_call of_device = {&device, (enum device_kernel)call.kernel, 0, 0};
        for (int i = 0; i < call.arguments; i++)
            if (call.kinds[i] == 'a')
                device_array(&of_device, argument[i].buffer, GUARD);
            else
                device_argument(&of_device, (size_t)argument[i].size, argument[i].bytes + GUARD);
        expect(device_run(&of_device) == STARPULLM_OK, "the call");
        for (int i = 0; i < call.arguments; i++) {
            struct argument *a = &argument[i];
            if (a->size < 0)
                continue;
            error = clEnqueueReadBuffer(queue, a->buffer, CL_TRUE, 0, whole(a), a->bytes, 0, NULL, NULL);
            expect(!error, "the buffer can't be read");
            check_guard(a->bytes);
            check_guard(a->bytes + GUARD + a->size);
            fwrite(a->bytes + GUARD, (size_t)a->size, 1, stdout);
            clReleaseMemObject(a->buffer);
            free(a->bytes);
        }
        fflush(stdout);
    }
    device_close(&device);
    clReleaseCommandQueue(queue);
    clReleaseContext(context);
    return 0;
}
