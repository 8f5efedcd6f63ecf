/* Defects on purpose: a build with STARPULLM_DEFECTS has all of defects_table.h, and the environment chooses one when
 * the runtime starts, so that the checks can be tried on it. In any other build DEFECT(name) is the constant 0.
 *
 * A site reads `DEFECT(name) ? wrong : right`; kernels have sites too, so this needs libc only. */
#ifndef STARPULLM_DEFECTS_H
#define STARPULLM_DEFECTS_H

#include <stddef.h>

#ifdef STARPULLM_DEFECTS

enum defect {
    NO_DEFECT,
#define DEFECT_ENTRY(name, kind, sentence) DEFECT_##name,
#include "defects_table.h"
#undef DEFECT_ENTRY
};

extern enum defect chosen_defect;

#define DEFECT(name) (chosen_defect == DEFECT_##name)

/* Takes the defect that STARPULLM_DEFECT names, none if it isn't set. Returns a name that there is no defect of, else
 * NULL. */
const char *choose_defect(void);

/* Switches on in the calling thread what a library built with fast-math would. */
void defect_flush_to_zero(void);

#else

#define DEFECT(name) 0

static inline const char *choose_defect(void)
{
    return NULL;
}

static inline void defect_flush_to_zero(void)
{
}

#endif

#endif
