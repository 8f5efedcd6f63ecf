/* The operations' names by their numbers in the trace. */
#include "codelets/operation.h"

const char *operation_name(int index)
{
    static const char *const names[NUM_OPERATIONS] = {
#define OPERATION(name) #name,
#include "codelets/operations.def"
#undef OPERATION
    };
    return index >= 0 && index < NUM_OPERATIONS ? names[index] : NULL;
}
