/* The calling thread's last failure: its sentence and its errno value. */
#include "status.h"

#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { ERROR_TEXT_BYTES = 256 }; /* kept free for the system's text, so that a long sentence doesn't cut it off */

static _Thread_local char last_sentence[SENTENCE_BYTES];
static _Thread_local int last_number;

/* What doesn't fit is replaced by "...". Returns the length. */
static size_t format_sentence(char *out, size_t room, const char *format, va_list arguments)
{
    static const char cut[] = "...";
    const size_t length = (size_t)vsnprintf(out, room, format, arguments);
    if (length < room)
        return length;
    memcpy(out + room - sizeof cut, cut, sizeof cut);
    return room - 1;
}

/* The text in the C locale, so that a sentence is in one language whatever the process has set. */
static void append_error_text(char *out, size_t room, int error_number)
{
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (c == (locale_t)0) {
        snprintf(out, room, ": error %d", error_number);
        return;
    }
    snprintf(out, room, ": %s", strerror_l(error_number, c));
    freelocale(c);
}

/* Formatting goes through a buffer of its own because an argument may be starpullm_last_error() itself. */
status fail_errno(status code, int error_number, const char *format, ...)
{
    char sentence[SENTENCE_BYTES];
    const size_t kept_free = error_number ? ERROR_TEXT_BYTES : 0;
    va_list arguments;
    va_start(arguments, format);
    const size_t length = format_sentence(sentence, sizeof sentence - kept_free, format, arguments);
    va_end(arguments);
    if (error_number)
        append_error_text(sentence + length, sizeof sentence - length, error_number);
    strcpy(last_sentence, sentence);
    last_number = error_number;
    return code;
}

void failure_init(struct failure *failure)
{
    pthread_mutex_init(&failure->mutex, NULL);
    failure->code = STARPULLM_OK;
}

void failure_destroy(struct failure *failure)
{
    pthread_mutex_destroy(&failure->mutex);
}

void failure_keep(struct failure *failure, status code)
{
    pthread_mutex_lock(&failure->mutex);
    if (failure->code == STARPULLM_OK && code != STARPULLM_OK) {
        failure->code = code;
        failure->error_number = last_number;
        strcpy(failure->sentence, last_sentence);
    }
    pthread_mutex_unlock(&failure->mutex);
}

status failure_check(struct failure *failure)
{
    pthread_mutex_lock(&failure->mutex);
    const status code = failure->code;
    if (code != STARPULLM_OK) {
        strcpy(last_sentence, failure->sentence);
        last_number = failure->error_number;
    }
    pthread_mutex_unlock(&failure->mutex);
    return code;
}

status check_pointers(const char *function, const char *names, const void *const *pointers, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const size_t length = strcspn(names, ",");
        if (!pointers[i])
            return invalid_argument("%s: %.*s is NULL", function, (int)length, names);
        names += names[length] ? length + strlen(", ") : length;
    }
    return STARPULLM_OK;
}

const char *starpullm_last_error(void)
{
    return last_sentence;
}

int starpullm_last_error_number(void)
{
    return last_number;
}
