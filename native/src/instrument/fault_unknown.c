/* Memory faults on a processor that isn't known here: they can't be told apart. Called by audit.c. */
#include "instrument/fault.h"

bool fault_is_write(const void *context)
{
    (void)context;
    return false;
}
