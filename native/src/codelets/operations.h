/* The list of operations: one for each kernel, and those that have none. */
#define KERNEL(name, parameters) OPERATION(name)
#include "kernels/kernels.def"
OPERATION(report_loss)
