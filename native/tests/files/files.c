/* System calls that fail on demand, and files that are made byte by byte, independently of the library. */
#include "files.h"

/* ---- System calls that fail on demand; the library's calls come here first ---- */

struct faults faults;
int fsync_fail_at, fsync_calls, fsync_error;

static bool fault(size_t *size, ssize_t *result)
{
    faults.calls++;
    if (faults.interrupt_every > 0 && faults.calls % faults.interrupt_every == 0) {
        errno = EINTR;
        *result = -1;
        return true;
    }
    if (faults.fail_at > 0 && faults.calls == faults.fail_at) {
        errno = faults.error;
        *result = faults.error != 0 ? -1 : 0;
        return true;
    }
    if (faults.most > 0 && *size > faults.most)
        *size = faults.most;
    return false;
}

ssize_t pread(int descriptor, void *values, size_t size, off_t offset)
{
    ssize_t result;
    if (fault(&size, &result))
        return result;
    if (lseek(descriptor, offset, SEEK_SET) < 0)
        return -1;
    return read(descriptor, values, size);
}

ssize_t pwrite(int descriptor, const void *values, size_t size, off_t offset)
{
    ssize_t result;
    if (fault(&size, &result))
        return result;
    if (lseek(descriptor, offset, SEEK_SET) < 0)
        return -1;
    return write(descriptor, values, size);
}

int fsync(int descriptor)
{
    struct stat info;
    if (++fsync_calls == fsync_fail_at) {
        errno = fsync_error;
        return -1;
    }
    return fstat(descriptor, &info);
}

void no_faults(void)
{
    memset(&faults, 0, sizeof faults);
    fsync_fail_at = fsync_calls = fsync_error = 0;
}

/* ---- Files made byte by byte ---- */

void put(struct bytes *bytes, uint64_t value, size_t width)
{
    if (bytes->size + width > bytes->room) {
        bytes->room = 2 * bytes->room + 4096;
        bytes->data = must(realloc(bytes->data, bytes->room));
    }
    for (size_t i = 0; i < width; i++)
        bytes->data[bytes->size++] = (unsigned char)(value >> 8 * i);
}

void put_int(struct bytes *bytes, int64_t value)
{
    put(bytes, (uint64_t)value, 4);
}

void put_float(struct bytes *bytes, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put(bytes, bits, 4);
}

void set_int(struct bytes *bytes, size_t index, int32_t value)
{
    for (size_t i = 0; i < 4; i++)
        bytes->data[4 * index + i] = (unsigned char)((uint32_t)value >> 8 * i);
}

void put_header(struct bytes *bytes, const int32_t *values, size_t count)
{
    for (size_t i = 0; i < 256; i++)
        put_int(bytes, i < count ? values[i] : 0);
}

/* A new file each time: overwriting one makes some file systems write to disk at once. */
void save_part(const char *path, const struct bytes *bytes, size_t size)
{
    unlink(path);
    FILE *file = must(fopen(path, "wb"));
    if (fwrite(bytes->data, 1, size, file) != size || fclose(file) != 0)
        abort();
}

void save(const char *path, const struct bytes *bytes)
{
    save_part(path, bytes, bytes->size);
}

bool has_bytes(const char *path, const struct bytes *bytes)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return false;
    unsigned char *found = must(malloc(bytes->size + 1));
    size_t size = fread(found, 1, bytes->size + 1, file);
    bool same = size == bytes->size && memcmp(found, bytes->data, size) == 0;
    free(found);
    fclose(file);
    return same;
}

/* What is neither a regular file nor absent. */
void make_special_files(void)
{
    if (mkdir("folder", 0755) != 0 || mkfifo("fifo", 0644) != 0 || mknod("socket", S_IFSOCK | 0644, 0) != 0)
        abort();
}
