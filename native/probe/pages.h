/* Which pages of memory hold nothing but data of handles, and their protection. Calls are serialised. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "content.h"

/* Adds bytes of handles; true if any of them are new, and there is room for them. Removes bytes. What is removed can be
 * accessed again. */
bool pages_add(uintptr_t begin, uintptr_t end);
void pages_remove(uintptr_t begin, uintptr_t end);

/* Sets the protection of the watched pages that these bytes touch; of all; false if the system refuses. */
bool pages_protect(uintptr_t begin, uintptr_t end, int protection);
bool pages_protect_all(int protection);

/* Whether a page is watched: all of it was added. Async-signal-safe. */
bool pages_watch(uintptr_t address);

/* The same of the elements of a handle, and how many of their bytes are on watched pages. */
bool pages_add_layout(const struct layout *layout);
void pages_remove_layout(const struct layout *layout);
bool pages_protect_layout(const struct layout *layout, int protection);
uint64_t pages_watched_bytes(const struct layout *layout);

uintptr_t page_bytes(void);
