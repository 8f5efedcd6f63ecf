/* The choice of a seeded defect, and what some of them do; only in builds with STARPULLM_DEFECTS. Called by runtime.c,
 * the sites, and tests/mutation, which reads the table. */
#include "defects.h"

#include <stdlib.h>
#include <string.h>

enum defect chosen_defect = NO_DEFECT;

static const struct {
    const char *name, *kind, *sentence;
} defects[] = {
#define DEFECT_ENTRY(name, kind, sentence) {#name, kind, sentence},
#include "defects_table.h"
#undef DEFECT_ENTRY
};

enum { NUM_DEFECTS = sizeof defects / sizeof *defects };

const char *choose_defect(void)
{
    const char *name = getenv("STARPULLM_DEFECT");
    chosen_defect = NO_DEFECT;
    if (!name || !*name)
        return NULL;
    for (int i = 0; i < NUM_DEFECTS; i++)
        if (strcmp(defects[i].name, name) == 0) {
            chosen_defect = (enum defect)(i + 1);
            return NULL;
        }
    return name;
}

/* The table for Python: the index-th defect's name, kind or sentence; NULL past the last. */
#define EXPORT_COLUMN(column)                                                                   \
    __attribute__((visibility("default"))) const char *starpullm_defect_##column(size_t index); \
    __attribute__((visibility("default"))) const char *starpullm_defect_##column(size_t index)  \
    {                                                                                           \
        return index < NUM_DEFECTS ? defects[index].column : NULL;                              \
    }
EXPORT_COLUMN(name)
EXPORT_COLUMN(kind)
EXPORT_COLUMN(sentence)

void defect_flush_to_zero(void)
{
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(1l << 24));
#endif
}
