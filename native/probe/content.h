// What is in a handle: its layout in memory, a hash of its elements, and poison in them.
#pragma once

#include <starpu.h>
#include <stdbool.h>
#include <stdint.h>

// Elements of `element_bytes` at address + sum of i[d] * strides[d] over i[d] < sizes[d]. Dimension 0 is contiguous.
struct layout {
    uintptr_t address;
    size_t element_bytes;
    uint64_t sizes[4];
    uint64_t strides[4]; // bytes
};

// The layout of one of StarPU's dense interfaces; false if the interface has another structure.
bool content_layout(int interface_id, void *interface, struct layout *layout);

// Hashes what an interface on a CPU's memory node describes: dense and sparse ones as they lie, others packed.
// False if the contents can't be read that way.
bool content_hash(starpu_data_handle_t handle, void *interface, unsigned node, uint64_t *hash);

// Fills a dense interface with signalling NaNs, whose size is that of the elements. False for other interfaces.
bool content_poison(starpu_data_handle_t handle, void *interface);

// How many elements have the poison in them.
uint64_t content_count_poison(starpu_data_handle_t handle, void *interface);
