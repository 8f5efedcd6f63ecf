// Programs of codelets with an OpenCL function: ./devices NAME runs one of them.
#include "blocks.h"

#include <starpu_opencl.h>
#include <stdbool.h>

static struct starpu_opencl_program opencl;
static const char *const source =
    "__kernel void update(__global double *out, __global const double *in, double added)\n"
    "{\n"
    "    const size_t i = get_global_id(0);\n"
    "    out[i] = 0.5 * out[i] + 0.25 * in[i] + added;\n"
    "}\n"
    "__kernel void slow_update(__global double *out, __global const double *in)\n"
    "{\n"
    "    const size_t i = get_global_id(0);\n"
    "    double result = 0.5 * out[i] + 0.25 * in[i];\n"
    "    for (int n = 0; n < 1000000; n++)\n"
    "        result = n % 2 ? result + 1 : result - 1;\n"
    "    out[i] = result + 1;\n"
    "}\n"
    "__kernel void change(__global double *in)\n"
    "{\n"
    "    in[get_global_id(0)] += 1;\n"
    "}\n";

static void check(cl_int error)
{
    if (error != CL_SUCCESS)
        STARPU_OPENCL_REPORT_ERROR(error);
}

// Calls a kernel with the task's blocks, and a number where it has one; it may still run afterwards.
static cl_command_queue start(const char *name, void *buffers[], int num_blocks, const double *number)
{
    cl_kernel kernel;
    cl_command_queue queue;
    check(starpu_opencl_load_kernel(&kernel, &queue, &opencl, name, starpu_worker_get_devid(starpu_worker_get_id())));
    for (int i = 0; i < num_blocks; i++)
        check(clSetKernelArg(kernel, (cl_uint)i, sizeof(cl_mem),
                             &(cl_mem){(cl_mem)STARPU_VECTOR_GET_DEV_HANDLE(buffers[i])}));
    if (number)
        check(clSetKernelArg(kernel, (cl_uint)num_blocks, sizeof *number, number));
    check(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &(size_t){N}, NULL, 0, NULL, NULL));
    check(clFlush(queue));
    check(starpu_opencl_release_kernel(kernel));
    return queue;
}

static void smooth_there(void *buffers[], void *argument)
{
    check(clFinish(start("update", buffers, 2, &(double){1})));
}

static void smooth_with_2(void *buffers[], void *argument)
{
    check(clFinish(start("update", buffers, 2, &(double){2})));
}

static void smooth_with_rounding(void *buffers[], void *argument)
{
    check(clFinish(start("update", buffers, 2, &(double){1 + 0x1p-52})));
}

static void smooth_without_waiting(void *buffers[], void *argument)
{
    start("slow_update", buffers, 2, NULL);
}

// Uses its second block for a result in between, which is lost when the copy on the device is.
static void smooth_and_change(void *buffers[], void *argument)
{
    check(clFinish(start("update", buffers, 2, &(double){1})));
    check(clFinish(start("change", &buffers[1], 1, NULL)));
}

// Each block from itself and its left neighbour, twice; the CPUs compute the first one's start.
static void run(starpu_opencl_func_t there, bool only_there, bool asynchronous)
{
    static struct starpu_codelet fill_codelet = {
        .cpu_funcs = {fill}, .nbuffers = 1, .modes = {STARPU_W}, .name = "fill"};
    static struct starpu_codelet smooth_codelet = {
        .cpu_funcs = {smooth}, .nbuffers = 2, .modes = {STARPU_RW, STARPU_R}, .name = "smooth"};
    smooth_codelet.opencl_funcs[0] = there;
    if (asynchronous)
        smooth_codelet.opencl_flags[0] = STARPU_OPENCL_ASYNC;
    if (only_there)
        smooth_codelet.cpu_funcs[0] = NULL;
    for (int b = 0; b < BLOCKS; b++)
        SUBMIT(&fill_codelet, STARPU_W, handles[b]);
    for (int step = 0; step < 2; step++)
        for (int b = BLOCKS - 1; b >= 0; b--)
            SUBMIT(&smooth_codelet, STARPU_RW, handles[b], STARPU_R, handles[b > 0 ? b - 1 : BLOCKS - 1]);
}

static void right(void)
{
    run(smooth_there, false, false);
}

static void right_on_devices_only(void)
{
    run(smooth_there, true, false);
}

static void right_asynchronous(void)
{
    run(smooth_without_waiting, false, true);
}

static void other_result(void)
{
    run(smooth_with_2, false, false);
}

static void other_rounding(void)
{
    run(smooth_with_rounding, false, false);
}

static void unsynchronised(void)
{
    run(smooth_without_waiting, false, false);
}

static void wrong_mode(void)
{
    run(smooth_and_change, false, false);
}

int main(int argc, char **argv)
{
    static const struct program programs[] = {
        PROGRAM(right),          PROGRAM(right_on_devices_only), PROGRAM(right_asynchronous), PROGRAM(other_result),
        PROGRAM(other_rounding), PROGRAM(unsynchronised),        PROGRAM(wrong_mode)};
    const struct program *program = find_program(argc, argv, programs, sizeof programs / sizeof *programs);
    if (!program || starpu_init(NULL) != 0)
        return 2;
    check(starpu_opencl_load_opencl_from_string(source, &opencl, NULL));
    register_data();
    program->run();
    starpu_task_wait_for_all();
    unregister_data();
    double sum = 0;
    for (int b = 0; b < BLOCKS; b++)
        for (int i = 0; i < N; i++)
            sum += blocks[b][i];
    printf("%.17g\n", sum);
    check(starpu_opencl_unload_opencl(&opencl));
    starpu_shutdown();
    return 0;
}
