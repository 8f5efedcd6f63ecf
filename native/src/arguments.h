/* Checks of the pointers and structs that callers of the exported functions pass. */
#pragma once

#include "status.h"

#define CHECK_POINTERS(...)                                                        \
    TRY(check_pointers(__func__, #__VA_ARGS__, (const void *const[]){__VA_ARGS__}, \
                       sizeof((const void *const[]){__VA_ARGS__}) / sizeof(const void *)))

/* A caller built against another header has a struct of another size. */
#define CHECK_STRUCT(pointer)                                                                                \
    do {                                                                                                     \
        CHECK_POINTERS(pointer);                                                                             \
        if ((pointer)->size != sizeof *(pointer))                                                            \
            return fail(STARPULLM_INVALID_ARGUMENT, "%s: " #pointer "->size is %zu, expected %zu", __func__, \
                        (pointer)->size, sizeof *(pointer));                                                 \
    } while (0)
