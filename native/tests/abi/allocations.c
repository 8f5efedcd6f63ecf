/* Replaces malloc and its like for the whole program; only calls from the library count. glibc's own functions, which
 * these call, have names with __libc_ in front. */
#include "allocations.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void *memory);

enum { PLACES = 1 << 14 };

static atomic_uintptr_t first_address, last_address; /* of the library's code */
static atomic_long number, countdown;                /* countdown 0: nothing fails any more */
static atomic_bool has_failed;
static void *volatile failed_in;
static atomic_flag lock = ATOMIC_FLAG_INIT;
static void *places[PLACES]; /* of allocations that live; a hash table with open addressing */
static atomic_size_t live;

#define CALLER __builtin_return_address(0)

static int find_code(struct dl_phdr_info *info, size_t size, void *unused)
{
    (void)size;
    (void)unused;
    if (!strstr(info->dlpi_name, "libstarpullm"))
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD && (info->dlpi_phdr[i].p_flags & PF_X)) {
            first_address = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
            last_address = first_address + info->dlpi_phdr[i].p_memsz;
        }
    return 1;
}

/* Whether the library has called; counts the call. *fails: the call has to fail. */
static bool counts(void *caller, bool *fails)
{
    *fails = false;
    const uintptr_t address = (uintptr_t)caller;
    if (address < first_address || address >= last_address)
        return false;
    if (countdown > 0 && atomic_fetch_sub(&countdown, 1) == 1) {
        *fails = has_failed = true;
        failed_in = caller;
        errno = ENOMEM;
    }
    return true;
}

static void enter(void)
{
    while (atomic_flag_test_and_set(&lock))
        ;
}

static size_t place_of(const void *memory)
{
    size_t place = ((uintptr_t)memory >> 4) * 2654435761u % PLACES;
    while (places[place] && places[place] != memory)
        place = (place + 1) % PLACES;
    return place;
}

static void *note(void *memory)
{
    if (!memory)
        return NULL;
    enter();
    if (live < PLACES / 2) {
        places[place_of(memory)] = memory;
        live++;
    }
    atomic_flag_clear(&lock);
    return memory;
}

static bool forget(void *memory)
{
    if (!memory || !live)
        return false;
    enter();
    size_t place = place_of(memory);
    const bool known = places[place] != NULL;
    if (known) {
        places[place] = NULL;
        live--;
        for (size_t next = (place + 1) % PLACES; places[next]; next = (next + 1) % PLACES) {
            void *moved = places[next];
            places[next] = NULL;
            places[place_of(moved)] = moved;
        }
    }
    atomic_flag_clear(&lock);
    return known;
}

void *malloc(size_t bytes)
{
    bool fails;
    if (!counts(CALLER, &fails))
        return __libc_malloc(bytes);
    return fails ? NULL : note(__libc_malloc(bytes));
}

void *calloc(size_t count, size_t bytes)
{
    bool fails;
    if (!counts(CALLER, &fails))
        return __libc_calloc(count, bytes);
    return fails ? NULL : note(__libc_calloc(count, bytes));
}

void *realloc(void *memory, size_t bytes)
{
    bool fails;
    const bool ours = counts(CALLER, &fails);
    if (fails)
        return NULL;
    const bool known = forget(memory);
    void *moved = __libc_realloc(memory, bytes);
    return ours || known ? note(moved) : moved;
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    bool fails;
    if (!counts(CALLER, &fails))
        return __libc_memalign(alignment, bytes);
    return fails ? NULL : note(__libc_memalign(alignment, bytes));
}

void free(void *memory)
{
    forget(memory);
    __libc_free(memory);
}

char *strdup(const char *text)
{
    bool fails;
    const bool ours = counts(CALLER, &fails);
    char *copy = fails ? NULL : __libc_malloc(strlen(text) + 1);
    if (copy)
        memcpy(copy, text, strlen(text) + 1);
    return ours ? note(copy) : copy;
}

int asprintf(char **text, const char *format, ...)
{
    bool fails;
    const bool ours = counts(CALLER, &fails);
    if (fails)
        return -1;
    va_list arguments;
    va_start(arguments, format);
    const int length = vasprintf(text, format, arguments);
    va_end(arguments);
    if (ours && length >= 0)
        note(*text);
    return length;
}

void *mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset)
{
    bool fails;
    const bool ours = counts(CALLER, &fails);
    if (fails)
        return MAP_FAILED;
    void *memory = (void *)syscall(SYS_mmap, address, bytes, protection, flags, file, offset);
    return ours && memory != MAP_FAILED ? note(memory) : memory;
}

int munmap(void *memory, size_t bytes)
{
    forget(memory);
    return (int)syscall(SYS_munmap, memory, bytes);
}

void allocations_fail(long n)
{
    dl_iterate_phdr(find_code, NULL);
    number = n;
    has_failed = false;
    failed_in = NULL;
    countdown = n;
}

long allocations_failing(void)
{
    return number;
}

bool allocations_have_failed(void)
{
    return has_failed;
}

const char *allocations_failed_in(void)
{
    static char text[200];
    Dl_info info;
    if (!failed_in)
        return "none";
    if (!dladdr(failed_in, &info))
        return "?";
    snprintf(text, sizeof text, "%s+0x%zx", info.dli_sname ? info.dli_sname : "",
             (size_t)((uintptr_t)failed_in - (info.dli_sname ? (uintptr_t)info.dli_saddr : first_address)));
    return text;
}

size_t allocations_live(void)
{
    return live;
}
