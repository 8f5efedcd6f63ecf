/* Status codes of the C ABI and the one sentence that goes with a failure, kept per thread.
 * Every room of the library sets it with fail(); api.c hands it to the caller. */
#ifndef STARPULLM_STATUS_H
#define STARPULLM_STATUS_H

#include "starpullm.h"

typedef enum starpullm_status status;

/* Sets the calling thread's last error to the formatted sentence and returns `code`. */
status fail(status code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same for a failed system call: appends the text of `error_number` (an errno value) and keeps the number. */
status fail_errno(status code, int error_number, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Makes another thread's failure, which `code`, `error_number` and `sentence` are from, the calling thread's. */
status fail_again(status code, int error_number, const char *sentence);

/* The calling thread's last sentence ("" if there was none), and the errno value that belongs to it (0 if none). */
const char *last_error(void);
int last_error_number(void);

/* Passes a failure on to the caller. */
#define TRY(call)                       \
    do {                                \
        status try_status = (call);     \
        if (try_status != STARPULLM_OK) \
            return try_status;          \
    } while (0)

#endif
