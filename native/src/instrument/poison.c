/* The pattern is chosen so that what was computed from it can be recognised. */
#include "instrument/poison.h"

#include <string.h>

/* A NaN with a payload that no operation on numbers gives, without the quiet bit, which every operation on it sets. */
static const uint32_t pattern = UINT32_C(0x7fa5a5a5), quiet_bit = UINT32_C(0x00400000);
static const uint32_t without_sign = UINT32_C(0x7fffffff);

void poison_fill(void *memory, size_t bytes)
{
    for (size_t offset = 0; offset < bytes; offset += sizeof pattern)
        memcpy((char *)memory + offset, &pattern, sizeof pattern);
}

struct poison_found poison_find(const void *memory, size_t bytes)
{
    struct poison_found found = {0};
    for (size_t offset = 0; offset < bytes; offset += sizeof pattern) {
        uint32_t bits;
        memcpy(&bits, (const char *)memory + offset, sizeof bits);
        found.searched++;
        if ((bits & without_sign) == pattern) {
            if (found.left++ == 0)
                found.first_left = (int64_t)offset;
        } else if ((bits & without_sign) == (pattern | quiet_bit)) {
            if (found.spread++ == 0)
                found.first_spread = (int64_t)offset;
        }
    }
    return found;
}
