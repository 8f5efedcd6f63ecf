/* Status codes of the C ABI and the one sentence that goes with a failure, kept per thread. */
#pragma once

#include "starpullm_checks.h"

typedef enum starpullm_status status;

enum { SENTENCE_BYTES = 8192 }; /* the longest path (4096 on Linux) twice: a sentence may name a file and its folder */

/* Sets the calling thread's last error to the formatted sentence and returns `code`. */
status fail(status code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same for a failed system call: appends the text of `error_number` (an errno value) and keeps the number. */
status fail_errno(status code, int error_number, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Reports another thread's failure as the calling thread's: its code, errno value (0 if none) and sentence. */
status fail_again(status code, int error_number, const char *sentence);

/* Refuses a pointer that is NULL; for CHECK_POINTERS. `names` has the names of all, as in "session, inputs". */
status check_pointers(const char *function, const char *names, const void *const *pointers, size_t count);

/* Passes a failure on to the caller. */
#define TRY(call)                       \
    do {                                \
        status try_status = (call);     \
        if (try_status != STARPULLM_OK) \
            return try_status;          \
    } while (0)

/* ---- The pointers and structs that callers of the exported functions pass ---- */

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
