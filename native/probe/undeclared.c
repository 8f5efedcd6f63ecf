/* One task runs at a time. Between two tasks, pages stay as they are, so that a task costs no more than its own
 * handles; all are opened when no task is left, because the application then goes on, and a system call doesn't end in
 * a signal. */
#include "undeclared.h"

#include <errno.h>
#include <execinfo.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "instrument/fault.h"
#include "names.h"
#include "pages.h"

enum { FRAMES = 24, TASK_FAULTS = 64, ALL_FAULTS = 20000, OPENED = 256 };
static const uint64_t most_padding = UINT64_C(1) << 30;

struct handle {
    struct layout layout; /* no elements: there is none, or none any more */
    bool is_new;          /* its pages haven't been closed yet, and it isn't counted */
    bool is_counted;
    bool is_inside; /* of others: its memory is theirs */
};

struct fault {
    uint64_t element;
    uint32_t handle;
    bool is_write, is_declared;
    int num_frames;
    void *frames[FRAMES];
};

static struct probe_header *header;
static int output;
static struct sigaction original, previous; /* before this handler was set first, and last */

/* Guards all that follows, and the pages. Whoever has it touches no data of handles. */
static atomic_flag lock = ATOMIC_FLAG_INIT;
static struct handle *handles;
static uint32_t num_handles; /* that there is room for */
static uint32_t num_known, num_counted;
static bool has_new;
static bool is_closed;           /* all pages but those of new handles, and those that are listed here */
static uintptr_t opened[OPENED]; /* pages, by accesses */
static size_t num_opened;
static bool is_running[STARPU_NMAXWORKERS]; /* a task */
static unsigned num_running;
static struct {
    const struct starpu_task *task;
    uint64_t number;
    pthread_t thread;
    struct declared *list;
    unsigned count;
    bool is_watched;
} task;
static struct fault faults[TASK_FAULTS];
static size_t num_faults, all_faults;
static _Atomic uint64_t unfinished, padding;

/* Who has it may wait for a processor: StarPU's workers that look for tasks take time from it. */
static void take(void)
{
    while (atomic_flag_test_and_set(&lock))
        sched_yield();
}

/* A signal's handler of the program might access data while its thread has the lock. */
static sigset_t acquire(void)
{
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGSEGV);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    take();
    return before;
}

static void release(sigset_t before)
{
    atomic_flag_clear(&lock);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* ---- The signal's handler: async-signal-safe calls only ---- */

static const struct declared *declared_at(uintptr_t address)
{
    const struct declared *found = NULL;
    uint64_t element;
    for (unsigned i = 0; i < task.count; i++)
        if (layout_element(&task.list[i].layout, address, &element) && (!found || task.list[i].writes))
            found = &task.list[i];
    return found;
}

/* Whether an access has opened the page already, for reading: this one is a write then, whatever the processor says. */
static bool was_opened(uintptr_t page)
{
    for (size_t i = 0; i < num_opened; i++)
        if (opened[i] == page)
            return true;
    return false;
}

/* Of the handles with this address, the one that was registered last. None: the address is in a gap. */
static bool find_handle(uintptr_t address, struct fault *fault)
{
    for (uint32_t i = num_handles; i-- > 0;) {
        if (layout_element(&handles[i].layout, address, &fault->element)) {
            fault->handle = i;
            return true;
        }
    }
    return false;
}

/* The stack begins behind the frame of the kernel that called the handler. */
static void note_fault(uintptr_t address, bool is_write, bool is_declared, const void *kernel)
{
    struct fault *fault = &faults[num_faults];
    void *frames[FRAMES];
    int first = 0;
    if (num_faults == TASK_FAULTS || all_faults == ALL_FAULTS || !find_handle(address, fault))
        return;
    const int count = backtrace(frames, FRAMES);
    while (first < count && frames[first] != kernel)
        first++;
    fault->is_write = is_write;
    fault->is_declared = is_declared;
    fault->num_frames = 0;
    for (int i = first + 1; i < count; i++)
        fault->frames[fault->num_frames++] = frames[i];
    num_faults++;
    all_faults++;
}

static bool open_all(void)
{
    is_closed = false;
    num_opened = 0;
    return pages_protect_all(PROT_READ | PROT_WRITE);
}

/* Behind the function, and before the task's end, the worker may call a function of the application's that was waiting
 * for data. Then no task is its current one. */
static bool is_in_function(void)
{
    return task.is_watched && pthread_equal(task.thread, pthread_self()) && starpu_task_get_current() == task.task;
}

/* False if the page isn't one of those that are protected. */
static bool open_page(uintptr_t address, const void *context, const void *kernel)
{
    const uintptr_t page = address & ~(page_bytes() - 1);
    bool is_write = true;
    if (!pages_watch(address))
        return false;
    if (is_in_function()) {
        const struct declared *declared = declared_at(address);
        is_write = fault_is_write(context) || declared || was_opened(page);
        if (!declared || !declared->writes)
            note_fault(address, is_write, declared, kernel);
    }
    const int protection = is_write ? PROT_READ | PROT_WRITE : PROT_READ;
    if (num_opened == OPENED || mprotect((void *)page, page_bytes(), protection) != 0)
        return open_all(); /* the system refuses to cut its areas further */
    opened[num_opened++] = page;
    return true;
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    static _Thread_local bool is_passed_on;
    const int error_number = errno;
    bool is_ours = false;
    if (info->si_code == SEGV_ACCERR) {
        take();
        is_ours = open_page((uintptr_t)info->si_addr, context, __builtin_return_address(0));
        atomic_flag_clear(&lock);
    }
    errno = error_number;
    if (is_ours)
        return;
    /* The program's handler, if it was set after this one, may call this one in turn. */
    const struct sigaction *next = is_passed_on ? &original : &previous;
    is_passed_on = true;
    if (next->sa_flags & SA_SIGINFO)
        next->sa_sigaction(number, info, context);
    else if (next->sa_handler != SIG_DFL && next->sa_handler != SIG_IGN)
        next->sa_handler(number);
    else /* the access is repeated, and ends the process */
        sigaction(number, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
    is_passed_on = false;
}

/* ---- Handles ---- */

static void count_handle(struct handle *handle)
{
    if (handle->is_counted || !header)
        return;
    handle->is_counted = true;
    header->handle_bytes += layout_bytes(&handle->layout);
    header->watched_bytes += pages_watched_bytes(&handle->layout);
}

/* Counts the handles that have become known since the last time. This waits until one of them leaves: before, others
 * that have the rest of its pages may be unknown; afterwards its pages aren't watched. */
static void count_known(void)
{
    for (; num_counted < num_known; num_counted++)
        if (handles[num_counted].layout.element_bytes > 0)
            count_handle(&handles[num_counted]);
}

/* Memory that can't be made writable, such as that of a file, isn't watched: it could not be opened again. */
static void add_handle(uint32_t number, const struct layout *layout)
{
    if (number >= num_handles) {
        const uint32_t room = 2 * number + 64;
        struct handle *more = realloc(handles, room * sizeof *more);
        if (!more)
            return;
        memset(more + num_handles, 0, (room - num_handles) * sizeof *more);
        handles = more;
        num_handles = room;
    }
    struct handle *handle = &handles[number];
    const bool is_new = pages_add_layout(layout);
    if (!is_new && handle->layout.address == layout->address)
        return;
    handle->layout = *layout;
    handle->is_inside = !is_new;
    handle->is_new = true;
    has_new = true;
    num_known = number < num_known ? num_known : number + 1;
    if (is_new && !pages_protect_layout(layout, PROT_READ | PROT_WRITE))
        pages_remove_layout(layout);
}

void undeclared_add(uint32_t number, const struct layout *layout)
{
    const sigset_t before = acquire();
    if (!layout)
        header->unwatched_handles++;
    else
        add_handle(number, layout);
    release(before);
}

void undeclared_remove(uint32_t number)
{
    const sigset_t before = acquire();
    if (number < num_handles && handles[number].layout.element_bytes > 0) {
        struct handle *handle = &handles[number];
        count_known();
        count_handle(handle); /* another one may have had its number */
        if (!handle->is_inside)
            pages_remove_layout(&handle->layout);
        *handle = (struct handle){0};
    }
    release(before);
}

/* StarPU's own memory for handles: it has its last page for itself, up to a limit of what that costs. */
static int allocate(unsigned node, void **address, size_t bytes, int flags)
{
    const uintptr_t page = page_bytes();
    const size_t whole = (bytes + page - 1) / page * page;
    (void)node;
    (void)flags;
    if (padding + (whole - bytes) > most_padding) {
        *address = malloc(bytes);
        return *address ? 0 : -ENOMEM;
    }
    *address = aligned_alloc(page, whole);
    if (!*address)
        return -ENOMEM;
    padding += whole - bytes;
    const sigset_t before = acquire();
    pages_add((uintptr_t)*address + bytes, (uintptr_t)*address + whole);
    release(before);
    return 0;
}

static int deallocate(unsigned node, void *address, size_t bytes, int flags)
{
    const uintptr_t page = page_bytes(), begin = (uintptr_t)address;
    const uintptr_t end = begin % page == 0 ? (begin + bytes + page - 1) / page * page : begin + bytes;
    (void)node;
    (void)flags;
    const sigset_t before = acquire();
    pages_remove(begin, end);
    release(before);
    if (begin % page == 0 && padding >= end - begin - bytes)
        padding -= end - begin - bytes;
    free(address);
    return 0;
}

/* ---- Tasks ---- */

/* Before each task, because the program may have set a handler of its own meanwhile. StarPU sets one too when it
 * starts, which gives signals back to the one before it, so that this must not be it. */
static void set_handler(void)
{
    static bool is_set;
    struct sigaction present, ours = {.sa_flags = SA_SIGINFO | SA_ONSTACK};
    ours.sa_sigaction = on_fault;
    sigemptyset(&ours.sa_mask);
    if (sigaction(SIGSEGV, NULL, &present) != 0 || present.sa_sigaction == on_fault)
        return;
    if (!is_set)
        original = present;
    is_set = true;
    previous = present;
    sigaction(SIGSEGV, &ours, NULL);
}

void undeclared_start(struct probe_header *chosen, int file)
{
    header = chosen;
    output = file;
    if (starpu_memory_nodes_get_numa_count() == 1) /* else StarPU would free memory as another allocator's */
        starpu_malloc_set_hooks(allocate, deallocate);
}

void undeclared_stop(void)
{
    const sigset_t before = acquire();
    open_all();
    num_counted = 0;
    count_known();
    header = NULL;
    release(before);
}

void undeclared_forked(void)
{
    header = NULL;
    atomic_flag_clear(&lock); /* another thread may have had it, which isn't in the child */
    open_all();
}

void undeclared_submitted(void)
{
    unfinished++;
}

static void close_the_rest(void)
{
    if (!is_closed)
        pages_protect_all(PROT_NONE);
    for (size_t i = 0; is_closed && i < num_opened; i++)
        pages_protect(opened[i], opened[i] + 1, PROT_NONE);
    for (uint32_t i = 0; has_new && i < num_handles; i++) {
        if (handles[i].is_new && is_closed)
            pages_protect_layout(&handles[i].layout, PROT_NONE);
        handles[i].is_new = false;
    }
    is_closed = true;
    has_new = false;
    num_opened = 0;
}

static bool open_declared(bool for_writing)
{
    bool is_done = true;
    for (unsigned i = 0; i < task.count; i++) {
        const bool is_writable = task.list[i].writes || !task.list[i].is_shared;
        if (is_writable == for_writing)
            is_done &= pages_protect_layout(&task.list[i].layout, for_writing ? PROT_READ | PROT_WRITE : PROT_READ);
    }
    return is_done;
}

static bool can_watch(const struct declared *list, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (!list[i].is_plain)
            return false;
    /* StarPU reads and writes files of a disk's node by system calls, whenever it likes. */
    return num_running == 1 && header && starpu_memory_nodes_get_count_by_kind(STARPU_DISK_RAM) == 0;
}

void undeclared_begin(const struct starpu_task *begun, uint64_t number, struct declared *list, unsigned count)
{
    const sigset_t before = acquire();
    set_handler();
    num_running += !is_running[starpu_worker_get_id_check()];
    is_running[starpu_worker_get_id_check()] = true;
    if (can_watch(list, count)) {
        task.task = begun;
        task.number = number;
        task.thread = pthread_self();
        task.list = list;
        task.count = count;
        for (unsigned i = 0; i < count; i++)
            if (list[i].is_shared && list[i].layout.address != 0)
                add_handle(list[i].handle, &list[i].layout);
        close_the_rest();
        /* For writing afterwards: two handles may have the same page, or the same memory. */
        task.is_watched = open_declared(false) && open_declared(true);
    } else {
        task.is_watched = false; /* also of the task that runs already */
        free(list);
    }
    if (!task.is_watched)
        open_all();
    if (header && task.is_watched)
        header->watched_tasks++;
    release(before);
}

static void write_fault(const struct fault *fault)
{
    char text[80];
    snprintf(text, sizeof text, "%llu\t%u\t%llu\t%c\t%d", (unsigned long long)task.number, fault->handle,
             (unsigned long long)fault->element, fault->is_write ? 'w' : 'r', fault->is_declared);
    write_frames(output, text, fault->frames, fault->num_frames);
}

void undeclared_end(void)
{
    const int worker = starpu_worker_get_id();
    if (worker < 0 || !is_running[worker])
        return;
    const sigset_t before = acquire();
    is_running[worker] = false;
    num_running--;
    if (task.list && pthread_equal(task.thread, pthread_self())) {
        for (unsigned i = 0; is_closed && i < task.count; i++)
            pages_protect_layout(&task.list[i].layout, PROT_NONE);
        for (size_t i = 0; header && i < num_faults; i++)
            write_fault(&faults[i]);
        num_faults = 0;
        free(task.list);
        task.list = NULL;
        task.count = 0;
        task.is_watched = false;
    }
    if (--unfinished == 0)
        open_all();
    release(before);
}
