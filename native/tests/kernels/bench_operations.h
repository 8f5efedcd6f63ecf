/* What bench_kernels measures: one entry an operation, with the sizes that it is measured at. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "kernels/kernels.h"

/* The letters of kernels.h; those that an operation has no use for are 0. */
struct sizes {
    size_t B, T, C, OC, NH, V;
};

struct operation {
    const char *name;
    void (*setup)(void);
    void (*run)(const struct kernels *k, struct team team); /* one call, on the buffers of operation_prepare() */
    const struct sizes *sizes;
    size_t num_sizes;
    bool is_matmul; /* of 2*N*C*OC floating-point operations */
};

extern const struct operation operations[];
extern const size_t num_operations;

/* The memory of all buffers. false: there is none. */
bool operations_start(void);
void operations_stop(void);

/* The memory, and how much of it there is. */
const float *operations_pool(void);
size_t operations_pool_bytes(void);

/* Makes the operation's buffers for these sizes. */
void operation_prepare(const struct operation *operation, const struct sizes *sizes);
