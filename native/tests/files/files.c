/* Files that are made byte by byte, independently of the library. */
#include "files.h"

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
