/* What is in a handle: its layout in memory, and a hash of its elements. */
#pragma once

#include <starpu.h>
#include <stdbool.h>
#include <stdint.h>

/* Elements of `element_bytes` at address + sum of i[d] * strides[d] over i[d] < sizes[d]. Dimension 0 is contiguous. */
struct layout {
    uintptr_t address;
    size_t element_bytes;
    uint64_t sizes[4];
    uint64_t strides[4]; /* bytes */
};

/* The layout of one of StarPU's dense interfaces; false if the interface has another structure. */
bool content_layout(int interface_id, void *interface, struct layout *layout);

/* The same, and of sparse interfaces the values, without their indices. */
bool content_values(int interface_id, void *interface, struct layout *layout);

/* The bytes of all elements. */
uint64_t layout_bytes(const struct layout *layout);

/* Which element an address belongs to, counted in the order of dimensions; false if to none. */
bool layout_element(const struct layout *layout, uintptr_t address, uint64_t *element);

/* Calls a function for each contiguous run of elements. Rows without a gap between them are one run. */
typedef void content_visit(void *state, char *row, size_t bytes);
void content_for_each_run(const struct layout *layout, content_visit *function, void *state);

/* Changes a copy of `bytes` bytes of elements before they are hashed. */
typedef void content_translate(char *elements, size_t bytes, size_t element_bytes);

/* Hashes what an interface on a CPU's memory node describes: dense and sparse ones as they lie, others packed. False if
 * the contents can't be read that way. translate NULL: elements are hashed as they are. */
bool content_hash(starpu_data_handle_t handle, void *interface, unsigned node, content_translate *translate,
                  uint64_t *hash);

/* A copy in main memory of what a dense interface of at most four dimensions has on a device; NULL of others. */
void *content_fetch(starpu_data_handle_t handle, void *interface, unsigned node);
void content_release(starpu_data_handle_t handle, void *copy);

/* Writes the elements, in the order in which they are hashed, to a file from an offset on; 0 or an errno. */
int content_write(const struct layout *layout, int file, uint64_t offset);

/* Whether two dense interfaces share bytes; of others, only whether they are the same handle's. */
bool content_overlaps(starpu_data_handle_t one, void *its_interface, starpu_data_handle_t other, void *other_interface);
