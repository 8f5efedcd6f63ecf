/* The OpenCL devices that StarPU can use, and those that it runs; none in a build without OpenCL (none.c). */
#pragma once

#include <stdbool.h>

#include "status.h"

enum { ALL_DEVICES = -1 };

/* How many devices this number stands for. */
int devices_wanted(int number);

/* Makes the kernels, with fused sums of products or strict ones, for each device that StarPU runs, which is started
 * with so many. *memory: the bytes of the one that has the least. */
status devices_open(int count, bool fused, int64_t *memory);
void devices_close(void);

/* Bytes to the devices' memory and from it since they were opened. */
void devices_traffic(int64_t *to_devices, int64_t *from_devices);
