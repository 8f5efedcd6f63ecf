/* One submit_<operation>() per operation of operations.def, which inserts one task. StarPU derives the dependencies
 * from the operands' accesses and the order of submission. */
#pragma once

#include "codelets/operation.h"

#define OPERATION(name, operands, values) status submit_##name(struct task_place place, const struct name *arguments);
#include "codelets/operations.def"

/* Submits a task of an operation with the members of its struct, such as .count = count. They are copied. */
#define SUBMIT(name, place, ...) submit_##name((place), &(const struct name){__VA_ARGS__})

/* Sends the value of `source` from its owner to the owner of `destination`; this rank is one of these two. Both have
 * the same size. It is a message and no task, but ordered among the tasks by its accesses. */
status submit_transfer(struct task_place place, struct data *destination, struct data *source);

/* ---- ACCUMULATION_REDUCES: once for each gradient, and before a step's first contribution ---- */

/* The reduction is a sum that starts at +0. */
void gradient_make_reducible(struct data *gradient);
void submit_gradient_clear(struct data *gradient);
