/* Numbers and names of the operations, as the trace gives them. Called by insert_*.c and api.c. */
#include "codelets/operation.h"

#define OPERATION(name) extern struct operation operation_##name;
#include "codelets/operations.h"
#undef OPERATION

static const struct operation *const operations[] = {
#define OPERATION(name) &operation_##name,
#include "codelets/operations.h"
#undef OPERATION
};

enum { NUM_OPERATIONS = sizeof operations / sizeof *operations };

/* After the operations that have a codelet: the one that is a message between ranks. */
const char *operation_name(int index)
{
    if (index == transfer_number())
        return "transfer";
    return index >= 0 && index < NUM_OPERATIONS ? operations[index]->codelet.name : NULL;
}

int operation_number(const struct operation *operation)
{
    int index = 0;
    while (operations[index] != operation)
        index++;
    return index;
}

int transfer_number(void)
{
    return NUM_OPERATIONS;
}
