/* Layouts of StarPU's data interfaces. XXH3 is used as a header, so that the library needs nothing at run time. */
#include "content.h"

#define XXH_INLINE_ALL
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "crash.h"

static void set_layout(struct layout *layout, uintptr_t address, size_t bytes, const uint64_t sizes[4],
                       const uint64_t pitches[4])
{
    *layout = (struct layout){.address = address, .element_bytes = bytes};
    for (int d = 0; d < 4; d++) {
        layout->sizes[d] = sizes[d];
        layout->strides[d] = pitches[d] * bytes;
    }
}

static bool ndim_layout(const struct starpu_ndim_interface *ndim, struct layout *layout)
{
    uint64_t sizes[4] = {1, 1, 1, 1}, pitches[4] = {1, 0, 0, 0};
    if (ndim->ndim > 4)
        return false;
    for (size_t d = 0; d < ndim->ndim; d++) {
        sizes[d] = ndim->nn[d];
        pitches[d] = ndim->ldn[d];
    }
    pitches[0] = 1;
    set_layout(layout, ndim->ptr, ndim->elemsize, sizes, pitches);
    return true;
}

bool content_layout(int interface_id, void *interface, struct layout *layout)
{
    switch (interface_id) {
    case STARPU_VARIABLE_INTERFACE_ID: {
        const struct starpu_variable_interface *v = interface;
        set_layout(layout, v->ptr, v->elemsize, (uint64_t[4]){1, 1, 1, 1}, (uint64_t[4]){1});
        return true;
    }
    case STARPU_VECTOR_INTERFACE_ID: {
        const struct starpu_vector_interface *v = interface;
        set_layout(layout, v->ptr, v->elemsize, (uint64_t[4]){v->nx, 1, 1, 1}, (uint64_t[4]){1});
        return true;
    }
    case STARPU_MATRIX_INTERFACE_ID: {
        const struct starpu_matrix_interface *m = interface;
        set_layout(layout, m->ptr, m->elemsize, (uint64_t[4]){m->nx, m->ny, 1, 1}, (uint64_t[4]){1, m->ld});
        return true;
    }
    case STARPU_BLOCK_INTERFACE_ID: {
        const struct starpu_block_interface *b = interface;
        set_layout(layout, b->ptr, b->elemsize, (uint64_t[4]){b->nx, b->ny, b->nz, 1},
                   (uint64_t[4]){1, b->ldy, b->ldz});
        return true;
    }
    case STARPU_TENSOR_INTERFACE_ID: {
        const struct starpu_tensor_interface *t = interface;
        set_layout(layout, t->ptr, t->elemsize, (uint64_t[4]){t->nx, t->ny, t->nz, t->nt},
                   (uint64_t[4]){1, t->ldy, t->ldz, t->ldt});
        return true;
    }
    case STARPU_NDIM_INTERFACE_ID:
        return ndim_layout(interface, layout);
    default:
        return false;
    }
}

bool content_values(int interface_id, void *interface, struct layout *layout)
{
    const struct starpu_csr_interface *csr = interface;
    const struct starpu_bcsr_interface *bcsr = interface;
    const struct starpu_coo_interface *coo = interface;
    switch (interface_id) {
    case STARPU_CSR_INTERFACE_ID:
        set_layout(layout, csr->nzval, csr->elemsize, (uint64_t[4]){csr->nnz, 1, 1, 1}, (uint64_t[4]){1});
        return true;
    case STARPU_BCSR_INTERFACE_ID:
        set_layout(layout, bcsr->nzval, bcsr->elemsize, (uint64_t[4]){(uint64_t)bcsr->nnz * bcsr->r * bcsr->c, 1, 1, 1},
                   (uint64_t[4]){1});
        return true;
    case STARPU_COO_INTERFACE_ID:
        set_layout(layout, coo->values, coo->elemsize, (uint64_t[4]){coo->n_values, 1, 1, 1}, (uint64_t[4]){1});
        return true;
    default:
        return content_layout(interface_id, interface, layout);
    }
}

uint64_t layout_bytes(const struct layout *layout)
{
    return layout->sizes[0] * layout->sizes[1] * layout->sizes[2] * layout->sizes[3] * layout->element_bytes;
}

bool layout_element(const struct layout *layout, uintptr_t address, uint64_t *element)
{
    uint64_t rest = address - layout->address, index = 0;
    if (address < layout->address || layout->element_bytes == 0)
        return false;
    for (int d = 3; d > 0; d--) {
        const uint64_t at = layout->sizes[d] > 1 ? rest / layout->strides[d] : 0;
        if (at >= layout->sizes[d])
            return false;
        rest -= at * (layout->sizes[d] > 1 ? layout->strides[d] : 0);
        index = index * layout->sizes[d] + at;
    }
    *element = index * layout->sizes[0] + rest / layout->element_bytes;
    return rest / layout->element_bytes < layout->sizes[0];
}

void content_for_each_run(const struct layout *layout, content_visit *function, void *state)
{
    uint64_t sizes[4];
    memcpy(sizes, layout->sizes, sizeof sizes);
    if (sizes[0] == 0 || sizes[1] == 0 || sizes[2] == 0 || sizes[3] == 0 || layout->element_bytes == 0)
        return;
    size_t bytes = sizes[0] * layout->element_bytes;
    for (int d = 1; d < 4 && (sizes[d] == 1 || layout->strides[d] == bytes); d++) {
        bytes *= sizes[d];
        sizes[d] = 1;
    }
    for (uint64_t t = 0; t < sizes[3]; t++) {
        for (uint64_t z = 0; z < sizes[2]; z++) {
            for (uint64_t y = 0; y < sizes[1]; y++)
                function(state,
                         (char *)layout->address + t * layout->strides[3] + z * layout->strides[2] +
                             y * layout->strides[1],
                         bytes);
        }
    }
}

struct hashing {
    XXH3_state_t *state;
    size_t element_bytes;
    content_translate *translate;
};

static void hash_run(void *pointer, char *row, size_t bytes)
{
    const struct hashing *hashing = pointer;
    char buffer[1 << 12];
    if (!hashing->translate) {
        XXH3_64bits_update(hashing->state, row, bytes);
        return;
    }
    for (size_t i = 0; i < bytes; i += sizeof buffer) {
        const size_t count = bytes - i < sizeof buffer ? bytes - i : sizeof buffer;
        memcpy(buffer, row + i, count);
        hashing->translate(buffer, count, hashing->element_bytes);
        XXH3_64bits_update(hashing->state, buffer, count);
    }
}

/* The indices of a sparse interface's values; other interfaces have none. */
static void hash_indices(XXH3_state_t *state, int interface_id, const void *interface)
{
    const struct starpu_csr_interface *csr = interface;
    const struct starpu_bcsr_interface *bcsr = interface;
    const struct starpu_coo_interface *coo = interface;
    if (interface_id == STARPU_CSR_INTERFACE_ID) {
        XXH3_64bits_update(state, csr->colind, csr->nnz * sizeof *csr->colind);
        XXH3_64bits_update(state, csr->rowptr, (csr->nrow + 1) * sizeof *csr->rowptr);
    } else if (interface_id == STARPU_BCSR_INTERFACE_ID) {
        XXH3_64bits_update(state, bcsr->colind, bcsr->nnz * sizeof *bcsr->colind);
        XXH3_64bits_update(state, bcsr->rowptr, (bcsr->nrow + 1) * sizeof *bcsr->rowptr);
    } else if (interface_id == STARPU_COO_INTERFACE_ID) {
        XXH3_64bits_update(state, coo->columns, coo->n_values * sizeof *coo->columns);
        XXH3_64bits_update(state, coo->rows, coo->n_values * sizeof *coo->rows);
    }
}

struct packing {
    starpu_data_handle_t handle;
    unsigned node;
    void *packed;
    starpu_ssize_t bytes;
};

static bool pack(void *state)
{
    struct packing *packing = state;
    return starpu_data_pack_node(packing->handle, packing->node, &packing->packed, &packing->bytes) == 0;
}

/* A pack method may be one that aborts, because the program never packs. */
static bool hash_packed(XXH3_state_t *state, starpu_data_handle_t handle, unsigned node)
{
    static _Atomic bool aborts[256]; /* by interface */
    struct packing packing = {.handle = handle, .node = node, .bytes = -1};
    const size_t id = (size_t)starpu_data_get_interface_id(handle) % (sizeof aborts / sizeof *aborts);
    if (!starpu_data_get_interface_ops(handle)->pack_data || aborts[id])
        return false;
    if (!crash_survive(pack, &packing)) {
        aborts[id] = true;
        return false;
    }
    if (!packing.packed || packing.bytes < 0)
        return false;
    XXH3_64bits_update(state, packing.packed, (size_t)packing.bytes);
    starpu_free_on_node_flags(node, (uintptr_t)packing.packed, (size_t)packing.bytes, 0);
    return true;
}

bool content_hash(starpu_data_handle_t handle, void *interface, unsigned node, content_translate *translate,
                  uint64_t *hash)
{
    XXH3_state_t state;
    struct layout layout;
    const int id = starpu_data_get_interface_id(handle);
    XXH3_64bits_reset(&state);
    if (content_values(id, interface, &layout)) {
        if (layout.address == 0 && content_layout(id, interface, &layout))
            return false;
        content_for_each_run(&layout, hash_run, &(struct hashing){&state, layout.element_bytes, translate});
        hash_indices(&state, id, interface);
    } else if (id == STARPU_VOID_INTERFACE_ID || !hash_packed(&state, handle, node)) {
        return false;
    }
    *hash = XXH3_64bits_digest(&state);
    return true;
}

void *content_fetch(starpu_data_handle_t handle, void *interface, unsigned node)
{
    const struct starpu_data_interface_ops *methods = starpu_data_get_interface_ops(handle);
    struct layout layout;
    /* Copies of an interface of n dimensions share its strides. An address is that of memory of the CPUs. */
    if (methods->interfaceid == STARPU_NDIM_INTERFACE_ID ||
        !content_layout((int)methods->interfaceid, interface, &layout) || layout.address != 0)
        return NULL;
    void *copy = malloc(methods->interface_size);
    STARPU_ASSERT_MSG(copy, "starpullm's probe: no memory");
    memcpy(copy, interface, methods->interface_size);
    if (methods->allocate_data_on_node(copy, STARPU_MAIN_RAM) >= 0) {
        methods->copy_methods->any_to_any(interface, node, copy, STARPU_MAIN_RAM, NULL);
        return copy;
    }
    free(copy);
    return NULL;
}

void content_release(starpu_data_handle_t handle, void *copy)
{
    if (copy)
        starpu_data_get_interface_ops(handle)->free_data_on_node(copy, STARPU_MAIN_RAM);
    free(copy);
}

static void copy_run(void *state, char *row, size_t bytes)
{
    char **to = state;
    memcpy(*to, row, bytes);
    *to += bytes;
}

int content_write(const struct layout *layout, int file, uint64_t offset)
{
    char *copy = malloc(layout_bytes(layout)), *end = copy;
    if (!copy)
        return ENOMEM;
    content_for_each_run(layout, copy_run, &end);
    int error = 0;
    for (char *from = copy; from < end && error == 0;) {
        const ssize_t written = pwrite(file, from, (size_t)(end - from), (off_t)(offset + (uint64_t)(from - copy)));
        if (written > 0)
            from += written;
        else if (written == 0 || errno != EINTR)
            error = written == 0 ? ENOSPC : errno;
    }
    free(copy);
    return error;
}

static uintptr_t end_of(const struct layout *layout)
{
    uintptr_t end = layout->address + layout->element_bytes;
    for (int d = 0; d < 4; d++)
        end += layout->sizes[d] == 0 ? 0 : (layout->sizes[d] - 1) * layout->strides[d];
    return end;
}

/* Whether two parts of one matrix lie beside each other: their rows have one distance, and different columns. */
static bool in_other_columns(const struct layout *low, const struct layout *high)
{
    const uint64_t pitch = low->strides[1], low_bytes = low->sizes[0] * low->element_bytes;
    const uint64_t high_bytes = high->sizes[0] * high->element_bytes;
    if (pitch == 0 || high->strides[1] != pitch || low->sizes[2] * low->sizes[3] * high->sizes[2] * high->sizes[3] != 1)
        return false;
    const uint64_t column = (high->address - low->address) % pitch;
    return column >= low_bytes && column + high_bytes <= pitch;
}

bool content_overlaps(starpu_data_handle_t one, void *its_interface, starpu_data_handle_t other, void *other_interface)
{
    struct layout a, b;
    if (!content_layout(starpu_data_get_interface_id(one), its_interface, &a) ||
        !content_layout(starpu_data_get_interface_id(other), other_interface, &b))
        return one == other;
    if (end_of(&a) <= b.address || end_of(&b) <= a.address)
        return false;
    return !(a.address <= b.address ? in_other_columns(&a, &b) : in_other_columns(&b, &a));
}
