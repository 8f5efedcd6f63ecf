/* System calls that fail on demand, in place of the C library's, for the library's calls as well. */
#include "harness.h"

#include <sys/syscall.h>

struct fault faults[NUM_CALLS];
size_t most;
int interrupt_every;
bool refuse_direct;
int direct_writes;
const void *looked_for;
bool written_from_looked_for;

void no_faults(void)
{
    memset(faults, 0, sizeof faults);
    most = 0;
    interrupt_every = 0;
    refuse_direct = false;
    direct_writes = 0;
    looked_for = NULL;
    written_from_looked_for = false;
}

static bool fault(enum call call, int *result)
{
    faults[call].calls++;
    if (faults[call].fail_at != -1 && faults[call].fail_at != faults[call].calls)
        return false;
    errno = faults[call].error;
    *result = errno != 0 ? -1 : 0;
    return true;
}

void fail_call(enum call call, int at, int error)
{
    no_faults();
    faults[call].fail_at = at;
    faults[call].error = error;
}

void limit_transfers(size_t bytes, int every)
{
    no_faults();
    most = bytes;
    interrupt_every = every;
}

static bool interrupts(enum call call)
{
    errno = EINTR;
    return interrupt_every > 0 && faults[call].calls % interrupt_every == 0;
}

static size_t part_of(size_t size)
{
    return most > 0 && size > most ? most : size;
}

ssize_t pread(int descriptor, void *bytes, size_t size, off_t offset)
{
    int result;
    if (fault(CALL_READ, &result))
        return result;
    return interrupts(CALL_READ) ? -1 : syscall(SYS_pread64, descriptor, bytes, part_of(size), offset);
}

ssize_t pwrite(int descriptor, const void *bytes, size_t size, off_t offset)
{
    int result;
    if (fault(CALL_WRITE, &result))
        return result;
    if (interrupts(CALL_WRITE))
        return -1;
    const bool direct = (fcntl(descriptor, F_GETFL) & O_DIRECT) != 0;
    direct_writes += direct;
    if (direct && refuse_direct) {
        errno = EINVAL;
        return -1;
    }
    written_from_looked_for = written_from_looked_for || (looked_for != NULL && bytes == looked_for);
    return syscall(SYS_pwrite64, descriptor, bytes, part_of(size), offset);
}

int fallocate(int descriptor, int mode, off_t offset, off_t size)
{
    int result;
    if (fault(CALL_RESERVE, &result))
        return result;
    return (int)syscall(SYS_fallocate, descriptor, mode, offset, size);
}

/* A killed process leaves what it has written whether or not it was synced, so no disk has to be waited for. */
int fsync(int descriptor)
{
    int result;
    struct stat info;
    if (fault(CALL_SYNC, &result))
        return result;
    return fstat(descriptor, &info);
}

int renameat(int from_folder, const char *from, int to_folder, const char *to)
{
    int result;
    if (fault(CALL_RENAME, &result))
        return result;
    return (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, 0u);
}
