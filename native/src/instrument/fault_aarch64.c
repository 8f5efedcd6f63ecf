/* Memory faults on aarch64. */
#include "instrument/fault.h"

#include <asm/sigcontext.h>
#include <ucontext.h>

enum { WRITE_NOT_READ_BIT = 1 << 6 }; /* of a data abort's syndrome (Arm ARM, ESR_EL1, "WnR") */

bool fault_is_write(const void *context)
{
    const ucontext_t *user = context;
    const char *record = (const char *)user->uc_mcontext.__reserved;
    const struct _aarch64_ctx *head = (const struct _aarch64_ctx *)record;
    for (; head->magic; record += head->size, head = (const struct _aarch64_ctx *)record)
        if (head->magic == ESR_MAGIC)
            return ((const struct esr_context *)record)->esr & WRITE_NOT_READ_BIT;
    return false;
}
