/* What is submitted: the arguments of each operation of operations.def, a task's attributes, and one
 * submit_<operation>() for each, which inserts one task. StarPU derives the dependencies from the operands' accesses
 * and the order of submission. */
#pragma once

#include "codelets/iteration.h"
#include "data/data.h"
#include "kernels/kernels.h"

/* A scheduler with priorities takes, of the tasks that are ready, one of the highest priority. */
enum { PRIORITY_LATER = -1, PRIORITY_DEFAULT, PRIORITY_AT_ONCE };

/* The sub-batch and the layer that a task is of (below 0: of none), the rank that runs it, and its priority. */
struct task_attributes {
    struct iteration *iteration;
    int sub_batch, layer, rank, priority;
};

/* A sum that a task starts, continues, or contributes to by StarPU's reduction, which adds the contributions in any
 * order. */
enum accumulation { ACCUMULATION_STARTS, ACCUMULATION_CONTINUES, ACCUMULATION_REDUCES };
struct sum {
    struct data *data;
    enum accumulation accumulation;
};

static inline enum sum_start start_of(struct sum sum)
{
    return sum.accumulation == ACCUMULATION_STARTS ? SUM_FROM_ZERO : SUM_CONTINUES;
}

/* struct <operation>: the operands, then the values that the task brings along. */
#define W(x) struct data *x;
#define R(x) struct data *x;
#define RW(x) struct data *x;
#define RW_FROM(first, x) struct data *x;
#define S(x) struct sum x;
#define R_OR_NULL(x) struct data *x;
#define S_OR_NULL(x) struct sum x;
#define SIZE(x) size_t x;
#define OFFSET(x) size_t x;
#define VALUE(type, x) type x;
#define ADDRESS(type, x) type x;
#define START(x)
#define OPERATION(name, operands, values) \
    struct name {                         \
        operands values                   \
    };
#include "codelets/operations.def"

#define OPERATION(name, operands, values) \
    status submit_##name(struct task_attributes attributes, const struct name *arguments);
#include "codelets/operations.def"

/* Submits a task of an operation with the members of its struct, such as .count = count. They are copied. */
#define SUBMIT(name, attributes, ...) submit_##name((attributes), &(const struct name){__VA_ARGS__})

/* Sends the value of `source` from its owner to the owner of `destination`; this rank is one of these two. Both have
 * the same size. It is a message and no task, but ordered among the tasks by its accesses. */
status submit_transfer(struct task_attributes attributes, struct data *destination, struct data *source);

/* For ACCUMULATION_REDUCES: the reduction of this gradient is a sum that starts at +0. */
void gradient_make_reducible(struct data *gradient);
