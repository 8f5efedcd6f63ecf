/* Page protection, and the signal handler that opens a page at its first access. */
#include "instrument/audit.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "instrument/fault.h"

/* The kinds of accesses, in the order of all arrays that have an element for each. */
enum { NUM_KINDS = 2 };
static const struct {
    int32_t mode, undeclared, never_happened;
} kinds[NUM_KINDS] = {{STARPULLM_READ, STARPULLM_UNDECLARED_READ, STARPULLM_READ_NEVER_HAPPENED},
                      {STARPULLM_WRITE, STARPULLM_UNDECLARED_WRITE, STARPULLM_WRITE_NEVER_HAPPENED}};

/* First accesses of one kind to a region's pages. Written by the signal handler. */
struct touch {
    atomic_llong pages, offset;
};

struct region {
    uintptr_t begin, end; /* of whole pages */
    int32_t handle;
    int32_t declared; /* by the running task */
    atomic_bool hit;  /* an access has opened pages of it */
    struct touch by_task[NUM_KINDS], outside[NUM_KINDS];
};

struct audit {
    struct region *regions; /* sorted by address */
    size_t count;
    struct region **of_handle;
    uintptr_t page;
    int after_read; /* a page's protection after its first read */
    atomic_bool in_task;
    pthread_t worker; /* while in_task */
};

static _Atomic(const struct audit *) the_audit;
static struct sigaction previous;

static void protect(const struct region *region, int protection)
{
    /* Fails only if the process has too many mappings, and whole regions need few. */
    (void)mprotect((void *)region->begin, region->end - region->begin, protection);
}

/* ---- The signal handler: async-signal-safe calls only ---- */

static struct region *find_region(const struct audit *audit, uintptr_t address)
{
    size_t low = 0, high = audit->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (address >= audit->regions[middle].end)
            low = middle + 1;
        else
            high = middle;
    }
    return low < audit->count && address >= audit->regions[low].begin ? &audit->regions[low] : NULL;
}

/* Opens the page and counts the access. False if the page is in no region, or can't be opened. */
static bool open_page(const struct audit *audit, uintptr_t address, bool is_write)
{
    struct region *region = find_region(audit, address);
    if (!region)
        return false;
    const bool by_task = atomic_load(&audit->in_task) && pthread_equal(audit->worker, pthread_self());
    struct touch *touch = (by_task ? region->by_task : region->outside) + is_write;
    if (atomic_fetch_add(&touch->pages, 1) == 0)
        atomic_store(&touch->offset, (long long)(address - region->begin));
    atomic_store(&region->hit, true);
    const int protection = is_write ? PROT_READ | PROT_WRITE : audit->after_read;
    if (mprotect((void *)(address & ~(audit->page - 1)), audit->page, protection) == 0)
        return true;
    /* Too many mappings: open the whole region. */
    return mprotect((void *)region->begin, region->end - region->begin, PROT_READ | PROT_WRITE) == 0;
}

/* What would have happened without this handler. */
static void call_previous_handler(int number, siginfo_t *info, void *context)
{
    if (previous.sa_flags & SA_SIGINFO)
        previous.sa_sigaction(number, info, context);
    else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN)
        previous.sa_handler(number);
    else {
        /* When this returns, the access is repeated and ends the process. */
        const struct sigaction standard = {.sa_handler = SIG_DFL};
        sigaction(number, &standard, NULL);
    }
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    const int error_number = errno;
    const struct audit *audit = atomic_load(&the_audit);
    /* A signal sent by kill() has another code, and no address. */
    const bool ours =
        audit && info->si_code == SEGV_ACCERR && open_page(audit, (uintptr_t)info->si_addr, fault_is_write(context));
    errno = error_number;
    if (!ours)
        call_previous_handler(number, info, context);
}

/* ---- Create and destroy ---- */

static int compare_regions(const void *left, const void *right)
{
    const struct region *a = left, *b = right;
    return (a->begin > b->begin) - (a->begin < b->begin);
}

static status make_regions(struct audit *audit, const struct audit_buffer *buffers, size_t count)
{
    audit->regions = calloc(count + 1, sizeof *audit->regions);
    audit->of_handle = calloc(count + 1, sizeof(struct region *));
    if (!audit->regions || !audit->of_handle)
        return out_of_memory("a table of %zu audited buffers", count);
    for (size_t i = 0; i < count; i++) {
        const uintptr_t begin = (uintptr_t)buffers[i].begin, bytes = buffers[i].bytes;
        audit->regions[i] = (struct region){
            .begin = begin, .end = begin + (bytes + audit->page - 1) / audit->page * audit->page, .handle = (int32_t)i};
    }
    audit->count = count;
    qsort(audit->regions, count, sizeof *audit->regions, compare_regions);
    for (size_t i = 0; i < count; i++)
        audit->of_handle[audit->regions[i].handle] = &audit->regions[i];
    return STARPULLM_OK;
}

/* Reads and writes a closed page: the handler must tell one from the other. */
static status test_faults(struct audit *audit)
{
    const size_t bytes = audit->page;
    char *page = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return out_of_memory("a page to test memory faults with");
    struct region region = {.begin = (uintptr_t)page, .end = (uintptr_t)page + bytes};
    /* What it takes for a read opens the page for writes, too: otherwise a write taken for a read would be repeated for
     * ever. */
    const struct audit probe = {.regions = &region, .count = 1, .page = bytes, .after_read = PROT_READ | PROT_WRITE};
    atomic_store(&the_audit, &probe);
    volatile char *first = page;
    (void)*first;
    const bool read_known = region.outside[0].pages == 1;
    protect(&region, PROT_NONE);
    *first = 1;
    const bool write_known = region.outside[1].pages == 1;
    atomic_store(&the_audit, audit);
    munmap(page, bytes);
    if (read_known && write_known)
        return STARPULLM_OK;
    return invalid_argument(
        "instruments: found the audit, expected it where a memory fault is known to be a read or a write (Linux on "
        "x86-64 or aarch64): here a %s is taken for a %s",
        read_known ? "write" : "read", read_known ? "read" : "write");
}

static void remove_handler(void)
{
    /* A handler that was installed later may call this one, which then stays and passes every fault on. */
    struct sigaction present;
    if (sigaction(SIGSEGV, NULL, &present) == 0 && (present.sa_flags & SA_SIGINFO) && present.sa_sigaction == on_fault)
        sigaction(SIGSEGV, &previous, NULL);
    atomic_store(&the_audit, NULL);
}

static status install_handler(struct audit *audit)
{
    const struct audit *none = NULL;
    if (!atomic_compare_exchange_strong(&the_audit, &none, audit))
        return invalid_state("another session of this process is audited, expected none: close it");
    struct sigaction action = {.sa_flags = SA_SIGINFO | SA_ONSTACK};
    action.sa_sigaction = on_fault;
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGSEGV, &action, &previous) == 0)
        return STARPULLM_OK;
    const int error_number = errno;
    atomic_store(&the_audit, NULL);
    return fail_errno(STARPULLM_RUNTIME_FAILURE, error_number, "a handler of memory faults");
}

static void free_audit(struct audit *audit)
{
    free(audit->regions);
    free(audit->of_handle);
    free(audit);
}

status audit_create(const struct audit_buffer *buffers, size_t count, struct audit **created)
{
    struct audit *audit = calloc(1, sizeof *audit);
    if (!audit)
        return out_of_memory("an audit");
    audit->page = (uintptr_t)sysconf(_SC_PAGESIZE);
    audit->after_read = PROT_READ;
    status code = make_regions(audit, buffers, count);
    if (code == STARPULLM_OK)
        code = install_handler(audit);
    if (code == STARPULLM_OK) {
        code = test_faults(audit);
        if (code != STARPULLM_OK)
            remove_handler();
    }
    if (code != STARPULLM_OK) {
        free_audit(audit);
        return code;
    }
    for (size_t i = 0; i < count; i++)
        protect(&audit->regions[i], PROT_NONE);
    *created = audit;
    return STARPULLM_OK;
}

void audit_destroy(struct audit *audit)
{
    if (!audit)
        return;
    for (size_t i = 0; i < audit->count; i++)
        protect(&audit->regions[i], PROT_READ | PROT_WRITE);
    remove_handler();
    free_audit(audit);
}

/* ---- Around a task ---- */

static void close_hit(struct region *region)
{
    if (atomic_exchange(&region->hit, false))
        protect(region, PROT_NONE);
}

void audit_begin(struct audit *audit)
{
    /* Close what accesses outside of tasks have opened. */
    for (size_t i = 0; i < audit->count; i++)
        close_hit(&audit->regions[i]);
    audit->worker = pthread_self();
    atomic_store(&audit->in_task, true);
}

void audit_declare(struct audit *audit, int32_t handle, int32_t mode)
{
    audit->of_handle[handle]->declared |= mode == STARPULLM_REDUX ? STARPULLM_READ_WRITE : mode;
}

int64_t audit_end(struct audit *audit, int64_t task, audit_report *report, void *argument)
{
    int64_t all_pages = 0;
    atomic_store(&audit->in_task, false);
    for (size_t i = 0; i < audit->count; i++) {
        struct region *region = &audit->regions[i];
        close_hit(region);
        for (int k = 0; k < NUM_KINDS; k++) {
            const struct touch *touch = &region->by_task[k];
            const int64_t pages = atomic_exchange(&region->by_task[k].pages, 0);
            const bool declared = region->declared & kinds[k].mode;
            all_pages += pages;
            if (pages > 0 && !declared)
                report(argument,
                       (struct starpullm_finding){task, region->handle, kinds[k].undeclared, touch->offset, pages});
            else if (pages == 0 && declared)
                report(argument, (struct starpullm_finding){task, region->handle, kinds[k].never_happened, 0, 0});
        }
        region->declared = 0;
    }
    return all_pages;
}

void audit_outside(struct audit *audit, audit_report *report, void *argument)
{
    for (size_t i = 0; i < audit->count; i++)
        for (int k = 0; k < NUM_KINDS; k++) {
            struct region *region = &audit->regions[i];
            const int64_t pages = atomic_exchange(&region->outside[k].pages, 0);
            if (pages > 0)
                report(argument, (struct starpullm_finding){-1, region->handle, kinds[k].undeclared,
                                                            region->outside[k].offset, pages});
        }
}

void audit_open(struct audit *audit, int32_t handle)
{
    if (audit)
        protect(audit->of_handle[handle], PROT_READ | PROT_WRITE);
}

void audit_close(struct audit *audit, int32_t handle)
{
    if (audit)
        protect(audit->of_handle[handle], PROT_NONE);
}
