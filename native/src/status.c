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
    int length = vsnprintf(out, room, format, arguments);
    if (length < 0) {
        out[0] = '\0';
        return 0;
    }
    if ((size_t)length < room)
        return (size_t)length;
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
static void set_error(int error_number, const char *format, va_list arguments)
{
    char sentence[SENTENCE_BYTES];
    const size_t kept_free = error_number ? ERROR_TEXT_BYTES : 0;
    const size_t length = format_sentence(sentence, sizeof sentence - kept_free, format, arguments);
    if (error_number)
        append_error_text(sentence + length, sizeof sentence - length, error_number);
    memcpy(last_sentence, sentence, strlen(sentence) + 1);
    last_number = error_number;
}

status fail(status code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    set_error(0, format, arguments);
    va_end(arguments);
    return code;
}

status fail_errno(status code, int error_number, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    set_error(error_number, format, arguments);
    va_end(arguments);
    return code;
}

status fail_again(status code, int error_number, const char *sentence)
{
    fail(code, "%s", sentence);
    last_number = error_number;
    return code;
}

status check_pointers(const char *function, const char *names, const void *const *pointers, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const size_t length = strcspn(names, ",");
        if (!pointers[i])
            return fail(STARPULLM_INVALID_ARGUMENT, "%s: %.*s is NULL", function, (int)length, names);
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
