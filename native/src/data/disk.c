/* A StarPU disk of our own (struct starpu_disk_ops). StarPU's abort the process on every trouble, and leave files
 * behind when it is killed.
 *
 * Each datum has a range of whole pages in the file while StarPU has it on the disk. Two threads serve the requests,
 * past the page cache where the file system can. A checksum of what was written is compared when it is read again: not
 * the CRC-32 of training states, which takes longer than a fast disk. */
#include "data/disk.h"

#define XXH_INLINE_ALL
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <pthread.h>
#include <signal.h>
#include <starpu.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <xxhash.h>

#include "data/pages.h"

enum { NUM_THREADS = 2 };

struct object {
    off_t offset;
    size_t bytes; /* of the range */
    uint64_t checksum;
    struct object *next; /* among those that are free, or have no range yet */
};

struct request {
    struct object *object;
    void *memory;
    size_t bytes;
    bool is_write, done;
    struct request *next; /* in the queue */
};

static struct {
    int descriptor; /* -1: closed */
    int node;       /* StarPU's number */
    char folder[256];
    pthread_t threads[NUM_THREADS];
    int num_threads;
    atomic_int_fast64_t written, read;
    pthread_mutex_t mutex;  /* of the following */
    pthread_cond_t changed; /* the queue, or done */
    struct request *first, **last;
    bool stopped;
    struct object *free, *unused;
    off_t end;      /* of the ranges that were given */
    off_t reserved; /* the file's room */
    struct disk_share *shares;
    struct failure failure;
} disk = {.descriptor = -1,
          .mutex = PTHREAD_MUTEX_INITIALIZER,
          .changed = PTHREAD_COND_INITIALIZER,
          .failure.mutex = PTHREAD_MUTEX_INITIALIZER};

bool disk_has(void *handle)
{
    int is_valid = 0, is_loading = 0;
    starpu_data_query_status2(handle, disk.node, NULL, &is_valid, &is_loading, NULL);
    return is_valid && !is_loading;
}

static void keep_failure(int number, const char *what, const struct object *object)
{
    failure_keep(&disk.failure,
                 fail_errno(STARPULLM_RUNTIME_FAILURE, number, "offload: %s: %zu bytes at %" PRId64 " %s", disk.folder,
                            object->bytes, (int64_t)object->offset, what));
}

status disk_check(void)
{
    return failure_check(&disk.failure);
}

/* ---- Requests ---- */

/* Whole pages, so also behind the datum: its memory is from pages_allocate(). Returns an errno value; -1 at the file's
 * end. */
static int move(const struct request *request)
{
    const size_t bytes = whole_pages(request->bytes);
    for (size_t done = 0; done < bytes;) {
        char *memory = (char *)request->memory + done;
        const off_t offset = request->object->offset + (off_t)done;
        const ssize_t now = request->is_write ? pwrite(disk.descriptor, memory, bytes - done, offset)
                                              : pread(disk.descriptor, memory, bytes - done, offset);
        if (now < 0 && errno != EINTR)
            return errno;
        if (now == 0)
            return -1;
        done += now > 0 ? (size_t)now : 0;
    }
    atomic_fetch_add(request->is_write ? &disk.written : &disk.read, (int64_t)bytes);
    return 0;
}

static void serve(const struct request *request)
{
    struct object *object = request->object;
    if (request->is_write)
        object->checksum = XXH3_64bits(request->memory, request->bytes);
    const int error = move(request);
    if (error)
        keep_failure(error > 0 ? error : 0, request->is_write ? "could not be written" : "could not be read", object);
    else if (!request->is_write && XXH3_64bits(request->memory, request->bytes) != object->checksum)
        keep_failure(0, "are damaged: they have another checksum than when they were written", object);
}

static void *serve_requests(void *argument)
{
    (void)argument;
    pthread_mutex_lock(&disk.mutex);
    while (!disk.stopped) {
        struct request *request = disk.first;
        if (!request) {
            pthread_cond_wait(&disk.changed, &disk.mutex);
            continue;
        }
        disk.first = request->next;
        if (!disk.first)
            disk.last = &disk.first;
        pthread_mutex_unlock(&disk.mutex);
        serve(request);
        pthread_mutex_lock(&disk.mutex);
        request->done = true;
        pthread_cond_broadcast(&disk.changed);
    }
    pthread_mutex_unlock(&disk.mutex);
    return NULL;
}

/* NULL if there is no memory: StarPU then waits for the same without a request. */
static void *submit(void *object, void *memory, size_t bytes, bool is_write)
{
    struct request *request = malloc(sizeof *request);
    if (!request)
        return NULL;
    *request = (struct request){.object = object, .memory = memory, .bytes = bytes, .is_write = is_write};
    pthread_mutex_lock(&disk.mutex);
    *disk.last = request;
    disk.last = &request->next;
    pthread_cond_broadcast(&disk.changed);
    pthread_mutex_unlock(&disk.mutex);
    return request;
}

/* ---- What StarPU calls; offsets are 0, as each datum is one vector ---- */

static void *plug(void *parameter, starpu_ssize_t size)
{
    (void)parameter, (void)size;
    return &disk;
}

static void unplug(void *base)
{
    (void)base;
}

/* Nothing is measured: no scheduler has a second disk to compare with. */
static int bandwidth(unsigned node, void *base)
{
    (void)node, (void)base;
    return 1;
}

static void *allocate(void *base, size_t size)
{
    (void)base;
    const size_t bytes = whole_pages(size);
    pthread_mutex_lock(&disk.mutex);
    struct object **link = &disk.free;
    while (*link && (*link)->bytes != bytes)
        link = &(*link)->next;
    if (!*link)
        link = &disk.unused;
    struct object *object = *link;
    if (object) {
        *link = object->next;
        if (link == &disk.unused) {
            *object = (struct object){.offset = disk.end, .bytes = bytes};
            disk.end += (off_t)bytes;
        }
    }
    pthread_mutex_unlock(&disk.mutex);
    return object;
}

static void free_object(void *base, void *freed, size_t size)
{
    (void)base, (void)size;
    struct object *object = freed;
    pthread_mutex_lock(&disk.mutex);
    object->next = disk.free;
    disk.free = object;
    pthread_mutex_unlock(&disk.mutex);
}

static int read_now(void *base, void *object, void *memory, off_t offset, size_t size)
{
    (void)base, (void)offset;
    serve(&(struct request){.object = object, .memory = memory, .bytes = size});
    return 0;
}

static int write_now(void *base, void *object, const void *memory, off_t offset, size_t size)
{
    (void)base, (void)offset;
    serve(&(struct request){.object = object, .memory = (void *)memory, .bytes = size, .is_write = true});
    return 0;
}

static void *read_later(void *base, void *object, void *memory, off_t offset, size_t size)
{
    (void)base, (void)offset;
    return submit(object, memory, size, false);
}

static void *write_later(void *base, void *object, void *memory, off_t offset, size_t size)
{
    (void)base, (void)offset;
    return submit(object, memory, size, true);
}

static void wait_request(void *waited)
{
    const struct request *request = waited;
    pthread_mutex_lock(&disk.mutex);
    while (!request->done)
        pthread_cond_wait(&disk.changed, &disk.mutex);
    pthread_mutex_unlock(&disk.mutex);
}

static int test_request(void *tested)
{
    pthread_mutex_lock(&disk.mutex);
    const bool done = ((const struct request *)tested)->done;
    pthread_mutex_unlock(&disk.mutex);
    return done;
}

static struct starpu_disk_ops operations = {.plug = plug,
                                            .unplug = unplug,
                                            .bandwidth = bandwidth,
                                            .alloc = allocate,
                                            .free = free_object,
                                            .read = read_now,
                                            .write = write_now,
                                            .async_read = read_later,
                                            .async_write = write_later,
                                            .wait_request = wait_request,
                                            .test_request = test_request,
                                            .free_request = free};

/* ---- The file ---- */

/* Without a name from the start where the file system can, else named for a moment. */
static int open_unnamed(const char *folder, int flags)
{
    int descriptor = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
    if (descriptor >= 0)
        return descriptor;
    char path[4096];
    const int length = snprintf(path, sizeof path, "%s/.starpullm-offload-XXXXXX", folder);
    if (length < 0 || (size_t)length >= sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    descriptor = mkostemp(path, O_CLOEXEC | flags);
    const int error = errno;
    unlink(path); /* is there, too, if it can't be opened with these flags */
    errno = error;
    return descriptor;
}

static status open_file(const char *folder)
{
    struct statfs system;
    disk.descriptor = open_unnamed(folder, O_DIRECT);
    if (disk.descriptor < 0 && errno == EINVAL)
        disk.descriptor = open_unnamed(folder, 0);
    if (disk.descriptor < 0)
        return file_error(errno, "offload: %s: no file can be made in this folder", folder);
    if (fstatfs(disk.descriptor, &system) == 0 && (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC))
        return invalid_argument("offload: %s: found a file system in memory, expected one on a disk", folder);
    return STARPULLM_OK;
}

/* Signals go to the application's threads. */
static status start_threads(void)
{
    sigset_t all, before;
    int error = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (disk.num_threads < NUM_THREADS && error == 0) {
        error = pthread_create(&disk.threads[disk.num_threads], NULL, serve_requests, NULL);
        disk.num_threads += error == 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error)
        return out_of_memory("offload: a thread for the disk could not be started (error %d)", error);
    return STARPULLM_OK;
}

/* StarPU keeps no memory, and no ranges, of data that have ended. */
static void take_over_allocation(bool taken)
{
    starpu_interface_vector_ops.dontcache = taken;
    pages_serve_starpu(taken);
}

status disk_open(const char *folder)
{
    snprintf(disk.folder, sizeof disk.folder, "%s", folder);
    disk.last = &disk.first;
    disk.stopped = false;
    status code = open_file(folder);
    if (code == STARPULLM_OK)
        code = start_threads();
    if (code == STARPULLM_OK)
        take_over_allocation(true);
    else
        disk_close();
    return code;
}

static void take_memory(int64_t bytes)
{
    (void)starpu_memory_allocate(STARPU_MAIN_RAM, (size_t)bytes, STARPU_MEMORY_OVERFLOW);
}

status disk_register(int64_t memory_limit)
{
    const int64_t mib = (int64_t)1 << 20;
    const int node = starpu_disk_register(&operations, NULL, -1);
    if (node < 0)
        return runtime_failure("offload: StarPU refused the disk (error %d)", node);
    disk.node = node;
    take_memory((mib - memory_limit % mib) % mib);
    return STARPULLM_OK;
}

void disk_close(void)
{
    if (disk.descriptor < 0)
        return;
    pthread_mutex_lock(&disk.mutex);
    disk.stopped = true;
    pthread_cond_broadcast(&disk.changed);
    pthread_mutex_unlock(&disk.mutex);
    while (disk.num_threads > 0)
        pthread_join(disk.threads[--disk.num_threads], NULL);
    take_over_allocation(false);
    close(disk.descriptor);
    disk.descriptor = -1;
    disk.failure.code = STARPULLM_OK; /* a runtime without offload asks too */
    disk.written = disk.read = 0;
}

/* ---- The share of a session; under the mutex ---- */

/* Also where the file system can't reserve. */
static int reserve_file(off_t from, off_t bytes)
{
    struct statvfs system;
    if (bytes == 0 || fallocate(disk.descriptor, 0, from, bytes) == 0)
        return 0;
    if (!is_unavailable(errno) || fstatvfs(disk.descriptor, &system) != 0)
        return errno;
    return (int64_t)(system.f_bavail * system.f_frsize) < bytes ? ENOSPC : 0;
}

static void free_unused(int64_t number)
{
    for (struct object *object; number > 0 && (object = disk.unused); number--) {
        disk.unused = object->next;
        free(object);
    }
}

static void add_unused(struct object *object)
{
    object->next = disk.unused;
    disk.unused = object;
}

static status reserve_objects(int64_t number)
{
    int64_t made = 0;
    for (struct object *object; made < number && (object = malloc(sizeof *object)); made++)
        add_unused(object);
    if (made < number)
        free_unused(made);
    return made < number ? out_of_memory("offload: a table of %" PRId64 " data", number) : STARPULLM_OK;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static struct disk_share shared_with(const struct disk_share *share)
{
    struct disk_share all = *share;
    for (const struct disk_share *other = disk.shares; other; other = other->next) {
        all.evictable += other->evictable;
        all.staying += other->staying;
        all.task = larger(all.task, other->task);
        all.datum = larger(all.datum, other->datum);
        all.number += other->number;
    }
    return all;
}

status disk_reserve(struct disk_share *share, status (*check)(const struct disk_share *all), struct disk_share *all)
{
    pthread_mutex_lock(&disk.mutex);
    *all = shared_with(share);
    status code = check(all);
    const int error = code == STARPULLM_OK ? reserve_file(disk.reserved, share->evictable) : 0;
    if (error)
        code = file_error(error, "offload: %s: no room for %" PRId64 " bytes", disk.folder, share->evictable);
    if (code == STARPULLM_OK)
        code = reserve_objects(share->number);
    if (code == STARPULLM_OK) {
        disk.reserved += share->evictable;
        share->next = disk.shares;
        disk.shares = share;
        take_memory(share->staying);
    }
    pthread_mutex_unlock(&disk.mutex);
    return code;
}

/* All free ranges are given up, whatever their sizes, and the other sessions' data get new ones behind all others.
 * Room for these is reserved again; if another program takes it first, a write fails later. */
static void renew_ranges(const struct disk_share *ended)
{
    off_t room = disk.reserved - disk.end - ended->evictable;
    for (struct object *object; (object = disk.free);) {
        room += (off_t)object->bytes;
        if (disk.shares) /* else the whole file is cut, which is faster */
            (void)!fallocate(disk.descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, object->offset,
                             (off_t)object->bytes);
        disk.free = object->next;
        add_unused(object);
    }
    free_unused(ended->number);
    if (!disk.shares)
        disk.end = room = 0;
    const off_t before = disk.reserved;
    disk.reserved = disk.end + room;
    if (disk.reserved < before)
        (void)!ftruncate(disk.descriptor, disk.reserved);
    else
        (void)reserve_file(before, disk.reserved - before);
}

void disk_give_back(struct disk_share *share)
{
    pthread_mutex_lock(&disk.mutex);
    struct disk_share **link = &disk.shares;
    while (*link && *link != share)
        link = &(*link)->next;
    if (*link) {
        *link = share->next;
        starpu_memory_deallocate(STARPU_MAIN_RAM, (size_t)share->staying);
        renew_ranges(share);
    }
    pthread_mutex_unlock(&disk.mutex);
}

void disk_traffic(int64_t *written, int64_t *read)
{
    *written = atomic_load(&disk.written);
    *read = atomic_load(&disk.read);
}
