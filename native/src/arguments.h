/* Checks of the pointers and structs that callers of the exported functions pass. */
#ifndef STARPULLM_ARGUMENTS_H
#define STARPULLM_ARGUMENTS_H

#include "status.h"

#define CHECK_POINTER(pointer)                                                             \
    do {                                                                                   \
        if (!(pointer))                                                                    \
            return fail(STARPULLM_INVALID_ARGUMENT, "%s: " #pointer " is NULL", __func__); \
    } while (0)

/* A caller built against another header has a struct of another size. */
#define CHECK_STRUCT(pointer)                                                                                \
    do {                                                                                                     \
        CHECK_POINTER(pointer);                                                                              \
        if ((pointer)->size != sizeof *(pointer))                                                            \
            return fail(STARPULLM_INVALID_ARGUMENT, "%s: " #pointer "->size is %zu, expected %zu", __func__, \
                        (pointer)->size, sizeof *(pointer));                                                 \
    } while (0)

#endif
