/* Two kinds of poison, and what of them is still in a handle. Poison is told from data byte by byte, because a part of
 * an element may be left as it was, as between the members of a struct. */
#include "poison.h"

#include <string.h>

/* Poison is a row of words, whatever the elements are; those of 8, 4 and 2 bytes lie in it one after the other. */
enum { WORD = 8 };

/* By what the size of elements can be divided by: 8, 4, 2 or 1 bytes. NaNs that are signalling, in elements of one byte
 * negative numbers; large positive numbers; and the bytes that the variants change, which keeps both so. */
static const struct poison {
    uint64_t nan, large, varied;
} poisons[] = {
    {0xfff47a318d66c2af, 0x4b1e6c937ad3085e, 0x0000ffffffffffff},
    {0xffa4c2afffa4c2af, 0x4b1e085e4b1e085e, 0x0000ffff0000ffff},
    {0xfdaffdaffdaffdaf, 0x7a5e7a5e7a5e7a5e, 0x00ff00ff00ff00ff},
    {0xafafafafafafafaf, 0x5e5e5e5e5e5e5e5e, 0x7f7f7f7f7f7f7f7f},
};

/* What a variant changes in a byte. The differences are no numbers that programs add to what they find. */
static const uint64_t changed[POISON_VARIANTS + 1] = {0x00, 0x4d, 0x97, 0xda, 0x6b};

static enum poison_mode mode;
static _Thread_local unsigned data_variants; /* a bit each: of poison that counts as data */

struct state {
    const struct poison *poison;
    enum poison_mode mode;
    unsigned variants; /* that are looked for, a bit each */
    unsigned found;    /* of these */
    uint64_t left;     /* bytes of them */
    unsigned variant;  /* that is put */
    bool is_even;      /* of the next word that is put */
    bool is_filled;
};

void poison_start(enum poison_mode chosen)
{
    mode = chosen;
}

static const struct poison *poison_of(size_t element_bytes)
{
    return &poisons[element_bytes % 8 == 0 ? 0 : element_bytes % 4 == 0 ? 1 : element_bytes % 2 == 0 ? 2 : 3];
}

static uint64_t vary(const struct poison *poison, uint64_t word, unsigned variant)
{
    return word ^ (poison->varied & changed[variant] * 0x0101010101010101);
}

/* What can be poisoned: elements, of sparse interfaces the values alone, because a task may have to follow the indices.
 * False if there is nothing like that. */
static bool poisoned_layout(starpu_data_handle_t handle, void *interface, struct layout *layout)
{
    return content_values(starpu_data_get_interface_id(handle), interface, layout) && layout->address != 0;
}

static void put_run(void *pointer, char *row, size_t bytes)
{
    struct state *state = pointer;
    const struct poison *poison = state->poison;
    for (size_t i = 0; i < bytes; i++)
        state->is_filled |= row[i] != 0;
    for (size_t i = 0; i < bytes; i += WORD, state->is_even = !state->is_even) {
        const uint64_t large = state->is_even ? 0 : vary(poison, poison->large, state->variant);
        const uint64_t word = state->mode == POISON_LARGE ? large : vary(poison, poison->nan, state->variant);
        memcpy(row + i, &word, bytes - i < WORD ? bytes - i : WORD);
    }
}

/* Counts by four bytes, so that a number which is a part of a larger element counts, too. */
static void find_run(void *pointer, char *row, size_t bytes)
{
    struct state *state = pointer;
    const struct poison *poison = state->poison;
    for (unsigned variant = 0; variant < POISON_VARIANTS; variant++) {
        const uint64_t word = vary(poison, mode == POISON_LARGE ? poison->large : poison->nan, variant);
        for (size_t i = 0; (state->variants >> variant & 1) != 0 && i < bytes; i += WORD / 2) {
            const size_t count = bytes - i < WORD / 2 ? bytes - i : WORD / 2;
            if (memcmp(row + i, (const char *)&word + i % WORD, count) == 0) {
                state->found |= 1u << variant;
                state->left += count;
            }
        }
    }
}

unsigned poison_find(starpu_data_handle_t handle, void *interface, unsigned variants, uint64_t *bytes)
{
    struct layout layout;
    struct state state = {.variants = variants};
    if (mode != POISON_NONE && poisoned_layout(handle, interface, &layout)) {
        state.poison = poison_of(layout.element_bytes);
        content_for_each_run(&layout, find_run, &state);
    }
    *bytes = state.left;
    return state.found;
}

bool poison_put(starpu_data_handle_t handle, void *interface, uint64_t task, unsigned variant, bool is_other)
{
    struct layout layout;
    if (!poisoned_layout(handle, interface, &layout))
        return false;
    struct state state = {.poison = poison_of(layout.element_bytes), .variant = variant, .mode = mode};
    if (is_other)
        state.mode = mode == POISON_NAN ? POISON_LARGE : POISON_NAN;
    state.is_even = (task * 0x9e3779b97f4a7c15 >> 63) != 0;
    content_for_each_run(&layout, put_run, &state);
    return state.is_filled;
}

/* Makes each byte zero that either kind of poison has there: then a byte that a task has left is the same in both runs,
 * and one that it has written is, if it was. */
static void clear_poison(char *elements, size_t bytes, size_t element_bytes)
{
    const struct poison *poison = poison_of(element_bytes);
    bool is_poison[WORD][256] = {0};
    for (unsigned variant = 0; variant < POISON_VARIANTS; variant++) {
        const uint64_t nan = vary(poison, poison->nan, variant), large = vary(poison, poison->large, variant);
        for (unsigned byte = 0; byte < WORD && (data_variants >> variant & 1) == 0; byte++)
            is_poison[byte][nan >> 8 * byte & 0xff] = is_poison[byte][large >> 8 * byte & 0xff] = true;
    }
    for (size_t i = 0; i < bytes; i++)
        elements[i] = is_poison[i % WORD][(unsigned char)elements[i]] ? 0 : elements[i];
}

content_translate *poison_translation(unsigned data)
{
    data_variants = data;
    return mode == POISON_NONE ? NULL : clear_poison;
}

static void clear_run(void *unused, char *row, size_t bytes)
{
    (void)unused;
    memset(row, 0, bytes);
}

void poison_clear(starpu_data_handle_t handle, void *interface)
{
    struct layout layout;
    if (content_layout(starpu_data_get_interface_id(handle), interface, &layout) && layout.address != 0)
        content_for_each_run(&layout, clear_run, NULL);
}
