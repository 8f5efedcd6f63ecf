/* False declarations: seeded defects in what a task tells StarPU, the recorder and whoever else looks at its accesses.
 * Called by insert_*.c before anything else sees the accesses; see defects.h. */
#ifndef STARPULLM_LIES_H
#define STARPULLM_LIES_H

#include "codelets/operation.h"
#include "defects.h"

#ifdef STARPULLM_DEFECTS

/* Returns what the task is to declare; it is in `lied`. Called by the application's thread alone. */
const struct access *lie_about(struct access *lied, const struct operation *operation, const struct access *accesses,
                               size_t num_accesses);

#else

static inline const struct access *lie_about(struct access *lied, const struct operation *operation,
                                             const struct access *accesses, size_t num_accesses)
{
    (void)lied, (void)operation, (void)num_accesses;
    return accesses;
}

#endif

#endif
