/* Memory faults on aarch64. */
#include "instrument/fault.h"

#include <asm/sigcontext.h>
#include <stdint.h>
#include <ucontext.h>

enum { WRITE_NOT_READ_BIT = 1 << 6 }; /* of a data abort's syndrome (Arm ARM, ESR_EL1, "WnR") */

/* The bits of an instruction (Arm ARM, "Loads and Stores", "SVE Memory"). */
enum {
    SVE_MASK = 0x1e000000,
    SVE = 0x04000000, /* of scalable vectors, as in glibc's memcpy */
    SVE_STORE = 7,    /* the three highest bits */
    MEMORY_MASK = 0x0a000000,
    MEMORY = 0x08000000, /* a load, a store, or both */
    ATOMIC_MASK = 0x3b200c00,
    ATOMIC = 0x38200000, /* reads and writes, such as LDADD */
    ACQUIRE_MASK = 0x3ffffc00,
    ACQUIRE = 0x38bfc000, /* LDAPR, which is coded as if it were atomic */
    COMPARE_MASK = 0x3fa07c00,
    COMPARE = 0x08a07c00, /* CAS */
    SIGNED_MASK = 0x3a800000,
    SIGNED = 0x38800000, /* one register: a load that extends the sign, a prefetch, or with VECTOR 16 bytes */
    VECTOR = 1 << 26,
    LOAD = 1 << 22, /* in all others */
};

/* Emulators of user programs don't say what the access was. */
static bool writes(uint32_t instruction)
{
    if ((instruction & SVE_MASK) == SVE)
        return instruction >> 29 == SVE_STORE;
    if ((instruction & MEMORY_MASK) != MEMORY)
        return true; /* DC ZVA */
    if ((instruction & ACQUIRE_MASK) == ACQUIRE)
        return false;
    if ((instruction & ATOMIC_MASK) == ATOMIC || (instruction & COMPARE_MASK) == COMPARE)
        return true;
    if ((instruction & SIGNED_MASK) == SIGNED && !(instruction & VECTOR))
        return false;
    return !(instruction & LOAD);
}

bool fault_is_write(const void *context)
{
    const ucontext_t *user = context;
    const char *record = (const char *)user->uc_mcontext.__reserved;
    const struct _aarch64_ctx *head = (const struct _aarch64_ctx *)record;
    for (; head->magic; record += head->size, head = (const struct _aarch64_ctx *)record)
        if (head->magic == ESR_MAGIC)
            return ((const struct esr_context *)record)->esr & WRITE_NOT_READ_BIT;
    return writes(*(const uint32_t *)user->uc_mcontext.pc);
}
