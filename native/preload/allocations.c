/* The functions that allocate and free, in place of the C library's, which they call. Each allocation that is counted
 * has an entry in a table until it is freed. One of a module's allocations can be refused. */
#undef _FILE_OFFSET_BITS /* mmap and mmap64 are two functions */
#include "allocations.h"

#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>

#define EXPORTED __attribute__((visibility("default")))
#define CALLER __builtin_return_address(0)

/* ---- The C library's functions ---- */

#define FUNCTIONS(X) \
    X(malloc) X(calloc) X(realloc) X(memalign) X(aligned_alloc) X(posix_memalign) X(free) X(mmap) X(mremap) X(munmap)

static struct {
#define POINTER(name) __typeof__(name) *name;
    FUNCTIONS(POINTER)
} next;

/* dlsym() may allocate itself; it gets memory from here, which is never freed. */
static _Alignas(64) char early[4096];
static size_t early_used;

static void *allocate_early(size_t bytes)
{
    const size_t begin = early_used;
    early_used = (begin + bytes + 63) / 64 * 64;
    if (early_used > sizeof early)
        abort();
    return early + begin;
}

static bool is_early(const void *address)
{
    return (const char *)address >= early && (const char *)address < early + sizeof early;
}

/* False while dlsym() is running. A process has one thread when it allocates for the first time. */
static bool resolve(void)
{
    static bool started, done;
    if (started)
        return done;
    started = true;
#define RESOLVE(name) *(void **)&next.name = dlsym(RTLD_NEXT, #name);
    FUNCTIONS(RESOLVE)
    return done = true;
}

/* ---- The table ---- */

enum { MAX_SITES = 1 << 16, NUM_CHAINS = 1 << 14, MAX_ENTRIES = 1 << 20 }; /* powers of two */

struct site {
    _Atomic(uint64_t) key; /* the caller's address, then 16 bits with the thread's number; 0: unused */
    atomic_size_t made, live, live_bytes;
};

struct entry {
    struct entry *next;
    const void *address;
    size_t bytes;
    struct site *site;
};

struct chain {
    pthread_mutex_t mutex;
    struct entry *first;
};

static struct site sites[MAX_SITES];
static struct chain chains[NUM_CHAINS];
static atomic_bool counting; /* new allocations */
static atomic_bool in_use;   /* the table; from the first start on */

static size_t hash(uint64_t key)
{
    return (size_t)(key * 0x9e3779b97f4a7c15U >> 40);
}

static struct chain *chain_of(const void *address)
{
    return &chains[hash((uintptr_t)address >> 4) % NUM_CHAINS];
}

/* From 1 on. */
static uint16_t thread_number(void)
{
    static atomic_ushort numbers;
    /* With another model the first access in a thread would allocate. */
    static _Thread_local uint16_t number __attribute__((tls_model("initial-exec")));
    if (!number)
        number = (uint16_t)(atomic_fetch_add(&numbers, 1) + 1);
    return number;
}

/* The process ends if there are more sites than the table holds, because the count would be wrong. */
static struct site *site_of(const void *caller)
{
    const uint64_t key = (uint64_t)(uintptr_t)caller << 16 | thread_number();
    for (size_t i = hash(key), tries = 0; tries < MAX_SITES; i++, tries++) {
        struct site *site = &sites[i % MAX_SITES];
        uint64_t found = 0;
        if (atomic_compare_exchange_strong(&site->key, &found, key) || found == key)
            return site;
    }
    abort();
}

/* Entries aren't allocated: an allocator may call mmap() in its own malloc(), with its locks held. */
static struct entry entries[MAX_ENTRIES];
static struct chain unused = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void add(struct chain *chain, struct entry *entry)
{
    pthread_mutex_lock(&chain->mutex);
    entry->next = chain->first;
    chain->first = entry;
    pthread_mutex_unlock(&chain->mutex);
}

static void give_back(struct entry *entry)
{
    if (entry)
        add(&unused, entry);
}

static struct entry *new_entry(void)
{
    static size_t used;
    pthread_mutex_lock(&unused.mutex);
    struct entry *entry = unused.first ? unused.first : &entries[used++];
    if (entry == entries + MAX_ENTRIES)
        abort();
    unused.first = entry->next;
    pthread_mutex_unlock(&unused.mutex);
    return entry;
}

static void insert(struct entry *entry)
{
    atomic_fetch_add(&entry->site->live, 1);
    atomic_fetch_add(&entry->site->live_bytes, entry->bytes);
    add(chain_of(entry->address), entry);
}

static void *count(void *address, size_t bytes, const void *caller)
{
    if (!address || !atomic_load(&counting))
        return address;
    struct entry *entry = new_entry();
    *entry = (struct entry){.address = address, .bytes = bytes, .site = site_of(caller)};
    atomic_fetch_add(&entry->site->made, 1);
    insert(entry);
    return address;
}

/* Takes an allocation out of the table, before it is freed: afterwards another thread may get the same address. NULL if
 * it wasn't counted. */
static struct entry *take(const void *address)
{
    if (!address || !atomic_load(&in_use))
        return NULL;
    struct chain *chain = chain_of(address);
    pthread_mutex_lock(&chain->mutex);
    struct entry **link = &chain->first;
    while (*link && (*link)->address != address)
        link = &(*link)->next;
    struct entry *entry = *link;
    if (entry)
        *link = entry->next;
    pthread_mutex_unlock(&chain->mutex);
    if (entry) {
        atomic_fetch_sub(&entry->site->live, 1);
        atomic_fetch_sub(&entry->site->live_bytes, entry->bytes);
    }
    return entry;
}

static void forget(const void *address)
{
    give_back(take(address));
}

/* ---- Refusing ---- */

static atomic_uintptr_t refused_caller; /* whose allocations are counted down */
static atomic_long until_refused;       /* 0: none is refused */

static bool refuses(const void *caller)
{
    if (atomic_load(&until_refused) <= 0 || (uintptr_t)caller != atomic_load(&refused_caller))
        return false;
    const bool now = atomic_fetch_sub(&until_refused, 1) == 1;
    if (now)
        errno = ENOMEM;
    return now;
}

/* ---- In place of the C library ---- */

EXPORTED void *malloc(size_t bytes)
{
    if (!resolve())
        return allocate_early(bytes);
    return refuses(CALLER) ? NULL : count(next.malloc(bytes), bytes, CALLER);
}

EXPORTED void *calloc(size_t number, size_t bytes)
{
    if (!resolve())
        return allocate_early(number * bytes);
    return refuses(CALLER) ? NULL : count(next.calloc(number, bytes), number * bytes, CALLER);
}

EXPORTED void *realloc(void *address, size_t bytes)
{
    if (!resolve())
        return allocate_early(bytes);
    if (is_early(address)) {
        void *moved = next.malloc(bytes);
        if (moved) /* what lies behind the old memory is of no use, but can be read */
            memcpy(moved, address, bytes < sizeof early ? bytes : 0);
        return count(moved, bytes, CALLER);
    }
    if (refuses(CALLER))
        return NULL;
    struct entry *entry = take(address);
    void *moved = next.realloc(address, bytes);
    if (entry && !moved && bytes > 0)
        insert(entry);
    else
        give_back(entry);
    return count(moved, bytes, CALLER);
}

EXPORTED void *memalign(size_t alignment, size_t bytes)
{
    return resolve() && !refuses(CALLER) ? count(next.memalign(alignment, bytes), bytes, CALLER) : NULL;
}

EXPORTED void *aligned_alloc(size_t alignment, size_t bytes)
{
    return resolve() && !refuses(CALLER) ? count(next.aligned_alloc(alignment, bytes), bytes, CALLER) : NULL;
}

EXPORTED int posix_memalign(void **address, size_t alignment, size_t bytes)
{
    if (!resolve() || refuses(CALLER))
        return ENOMEM;
    const int error = next.posix_memalign(address, alignment, bytes);
    if (!error)
        count(*address, bytes, CALLER);
    return error;
}

EXPORTED void free(void *address)
{
    if (!resolve() || is_early(address))
        return;
    forget(address);
    next.free(address);
}

/* These two allocate for their caller, in the C library. */
EXPORTED char *strdup(const char *text)
{
    const size_t bytes = strlen(text) + 1;
    char *copy = !resolve() || refuses(CALLER) ? NULL : count(next.malloc(bytes), bytes, CALLER);
    return copy ? memcpy(copy, text, bytes) : NULL;
}

EXPORTED int asprintf(char **text, const char *format, ...)
{
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    *text = length < 0 || !resolve() || refuses(CALLER)
                ? NULL
                : count(next.malloc((size_t)length + 1), (size_t)length + 1, CALLER);
    length = *text ? vsnprintf(*text, (size_t)length + 1, format, again) : -1;
    va_end(again);
    va_end(arguments);
    return length;
}

EXPORTED void *mmap(void *wanted, size_t bytes, int protection, int flags, int file, off_t offset)
{
    if (!resolve() || refuses(CALLER))
        return MAP_FAILED;
    void *address = next.mmap(wanted, bytes, protection, flags, file, offset);
    if (address != MAP_FAILED && !(flags & MAP_FIXED))
        count(address, bytes, CALLER);
    return address;
}

_Static_assert(sizeof(off_t) == sizeof(off64_t), "mmap64 is mmap");
EXPORTED void *mmap64(void *, size_t, int, int, int, off64_t) __attribute__((alias("mmap")));

EXPORTED void *mremap(void *address, size_t bytes, size_t new_bytes, int flags, ...)
{
    if (!resolve())
        return MAP_FAILED;
    va_list arguments;
    va_start(arguments, flags);
    void *wanted = flags & MREMAP_FIXED ? va_arg(arguments, void *) : NULL;
    va_end(arguments);
    struct entry *entry = take(address);
    void *moved = next.mremap(address, bytes, new_bytes, flags, wanted);
    if (moved == MAP_FAILED) {
        if (entry)
            insert(entry);
        return moved;
    }
    give_back(entry);
    return count(moved, new_bytes, CALLER);
}

/* A part that stays mapped isn't counted any more if the part before it is unmapped. */
EXPORTED int munmap(void *address, size_t bytes)
{
    if (!resolve())
        return -1;
    forget(address);
    return next.munmap(address, bytes);
}

/* ---- What the counting process calls ---- */

EXPORTED void starpullm_allocations_start(void)
{
    if (!atomic_load(&in_use))
        for (size_t i = 0; i < NUM_CHAINS; i++)
            pthread_mutex_init(&chains[i].mutex, NULL);
    atomic_store(&counting, false);
    for (size_t i = 0; i < NUM_CHAINS; i++)
        while (chains[i].first)
            forget(chains[i].first->address);
    for (size_t i = 0; i < MAX_SITES; i++)
        atomic_store(&sites[i].made, 0);
    atomic_store(&in_use, true);
    atomic_store(&counting, true);
}

EXPORTED void starpullm_allocations_stop(void)
{
    atomic_store(&counting, false);
}

EXPORTED void starpullm_allocations_refuse(uint64_t caller, size_t number)
{
    atomic_store(&until_refused, 0);
    atomic_store(&refused_caller, (uintptr_t)caller);
    atomic_store(&until_refused, (long)number);
}

EXPORTED size_t starpullm_allocations_not_reached(void)
{
    const long left = atomic_exchange(&until_refused, 0);
    return left > 0 ? (size_t)left : 0; /* two threads may have counted down the last one */
}

EXPORTED size_t starpullm_allocations_sites(struct starpullm_allocation_site *found, size_t room)
{
    size_t number = 0;
    for (size_t i = 0; i < MAX_SITES; i++) {
        const uint64_t key = atomic_load(&sites[i].key);
        if (!key || !atomic_load(&sites[i].made) || number++ >= room)
            continue;
        char *call = (char *)(uintptr_t)(key >> 16) - 1; /* the address that the call returns to is behind it */
        Dl_info info;
        const bool known = dladdr(call, &info) != 0;
        found[number - 1] = (struct starpullm_allocation_site){
            .module = known ? info.dli_fname : NULL,
            .function = known ? info.dli_sname : NULL,
            .offset = (uint64_t)(known ? call - (char *)info.dli_fbase : (intptr_t)call),
            .caller = key >> 16,
            .thread = key & UINT16_MAX,
            .made = atomic_load(&sites[i].made),
            .live = atomic_load(&sites[i].live),
            .live_bytes = atomic_load(&sites[i].live_bytes),
        };
    }
    return number;
}
