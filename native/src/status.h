/* Status codes of the C ABI and the one sentence that goes with a failure, kept per thread. */
#pragma once

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>

#include "starpullm_checks.h"

typedef enum starpullm_status status;

enum { SENTENCE_BYTES = 8192 }; /* the longest path (4096 on Linux) twice: a sentence may name a file and its folder */

/* Sets the calling thread's last error to the formatted sentence and returns `code`. Of a failed system call: appends
 * the text of `error_number` (an errno value; 0: none) and keeps the number. */
status fail_errno(status code, int error_number, const char *format, ...) __attribute__((format(printf, 3, 4)));
#define fail(code, ...) fail_errno((code), 0, __VA_ARGS__)
#define invalid_argument(...) fail(STARPULLM_INVALID_ARGUMENT, __VA_ARGS__)
#define invalid_file(...) fail(STARPULLM_INVALID_FILE, __VA_ARGS__)
#define invalid_state(...) fail(STARPULLM_INVALID_STATE, __VA_ARGS__)
#define out_of_memory(...) fail(STARPULLM_OUT_OF_MEMORY, __VA_ARGS__)
#define runtime_failure(...) fail(STARPULLM_RUNTIME_FAILURE, __VA_ARGS__)
#define file_error(error_number, ...) fail_errno(STARPULLM_FILE_ERROR, (error_number), __VA_ARGS__)

/* Whether a system call failed because the kernel, the file system or a container's rules don't offer it. */
static inline bool is_unavailable(int error_number)
{
    return error_number == EOPNOTSUPP || error_number == ENOSYS || error_number == EPERM;
}

/* The first failure of some threads, which can't return it. */
struct failure {
    pthread_mutex_t mutex;
    status code;
    int error_number;
    char sentence[SENTENCE_BYTES];
};
void failure_init(struct failure *failure);
void failure_destroy(struct failure *failure);
/* Keeps `code`, if it is a failure, with what the calling thread said of it, unless another one came before. */
void failure_keep(struct failure *failure, status code);
/* Reports what is kept as the calling thread's; STARPULLM_OK if there is nothing. */
status failure_check(struct failure *failure);

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
#define CHECK_STRUCT(pointer)                                                                                 \
    do {                                                                                                      \
        CHECK_POINTERS(pointer);                                                                              \
        if ((pointer)->size != sizeof *(pointer))                                                             \
            return invalid_argument("%s: " #pointer "->size is %zu, expected %zu", __func__, (pointer)->size, \
                                    sizeof *(pointer));                                                       \
    } while (0)
