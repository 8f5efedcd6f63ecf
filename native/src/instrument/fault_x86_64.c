/* Memory faults on x86-64. */
#include "instrument/fault.h"

#include <ucontext.h>

enum { WRITE_BIT = 2 }; /* of the page fault's error code (Intel SDM 3A, "Page-Fault Exception") */

bool fault_is_write(const void *context)
{
    const ucontext_t *user = context;
    return user->uc_mcontext.gregs[REG_ERR] & WRITE_BIT;
}
