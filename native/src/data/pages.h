/* Memory of whole pages: of a datum's own buffer, and for StarPU where it moves data between memory and a disk. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* +0 at first; NULL if there is none. The rest of the last page can be used too. */
void *pages_allocate(size_t bytes);
void pages_free(void *memory, size_t bytes);
size_t whole_pages(size_t bytes);

/* Whether StarPU allocates by these functions; it mustn't be running. */
void pages_serve_starpu(bool served);
