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

// The bytes of a dense interface's elements; 0 for other interfaces, and for memory that isn't there.
uint64_t content_bytes(starpu_data_handle_t handle, void *interface);

// Writes these bytes, in the order in which they are hashed, to a file from an offset on; 0 or an errno.
int content_write(starpu_data_handle_t handle, void *interface, int file, uint64_t offset);

// Fills a dense interface, or the values of a sparse one, with signalling NaNs that fit the size of its elements and
// are a task's access's own. False for other interfaces.
bool content_poison(starpu_data_handle_t handle, void *interface, unsigned access);

// Whether two dense interfaces share bytes; of others, only whether they are the same handle's.
bool content_overlaps(starpu_data_handle_t one, void *its_interface, starpu_data_handle_t other, void *other_interface);

// How many times that poison is there.
uint64_t content_count_poison(starpu_data_handle_t handle, void *interface, unsigned access);
