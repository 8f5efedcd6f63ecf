/* Memory faults on any other processor: reads and writes look the same. */
#include "instrument/fault.h"

bool fault_is_write(const void *context)
{
    (void)context;
    return false;
}
