/* Checks and folders for the ctests of files. */
#include "harness.h"

#include <dirent.h>
#include <stdarg.h>

int checks, failures;

void check_at(const char *file, int line, bool passed, const char *what)
{
    checks++;
    if (passed)
        return;
    failures++;
    printf("%s:%d: failed: %s\n    last error: %s\n", file, line, what, starpullm_last_error());
}

void refused_at(const char *file, int line, status found, status expected, ...)
{
    char what[256];
    snprintf(what, sizeof what, "status %d, expected %d", (int)found, (int)expected);
    check_at(file, line, found == expected, what);
    check_at(file, line, strchr(starpullm_last_error(), '\n') == NULL, "the sentence is one line");
    check_at(file, line, (starpullm_last_error_number() != 0) == (expected == STARPULLM_FILE_ERROR),
             "an errno value goes with FILE_ERROR and nothing else");
    va_list parts;
    va_start(parts, expected);
    for (const char *part; (part = va_arg(parts, const char *)) != NULL;) {
        snprintf(what, sizeof what, "the sentence has \"%s\"", part);
        check_at(file, line, strstr(starpullm_last_error(), part) != NULL, what);
    }
    va_end(parts);
}

void *must(void *memory)
{
    if (memory == NULL)
        abort();
    return memory;
}

int entries(const char *folder)
{
    DIR *opened = must(opendir(folder));
    int count = 0;
    for (const struct dirent *entry; (entry = readdir(opened)) != NULL;)
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(opened);
    return count;
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

int open_descriptors(void)
{
    int count = 0;
    for (int d = 0; d < 256; d++)
        count += fcntl(d, F_GETFD) != -1;
    return count;
}

void remove_all(const char *folder)
{
    DIR *opened = opendir(folder);
    if (opened == NULL)
        return;
    for (const struct dirent *entry; (entry = readdir(opened)) != NULL;) {
        char path[1024];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        struct stat info;
        if (lstat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
            chmod(path, 0700);
            remove_all(path);
            rmdir(path);
        } else {
            unlink(path);
        }
    }
    closedir(opened);
}

uint64_t next_random(uint64_t limit)
{
    static uint64_t state = 1;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % limit;
}

int run_tests(int argc, char **argv, const char *name, void (*tests)(void))
{
    const char *under = argc > 1 ? argv[1] : getenv("TMPDIR");
    char folder[1024];
    snprintf(folder, sizeof folder, "%s/%s-XXXXXX", under != NULL ? under : "/tmp", name);
    if (mkdtemp(folder) == NULL || chmod(folder, 0755) != 0 || chdir(folder) != 0) {
        printf("%s: %s: %s\n", name, folder, strerror(errno));
        return 1;
    }
    char *home = must(realpath(".", NULL));
    const int before = open_descriptors();
    setvbuf(stdout, NULL, _IOLBF, 0); /* children inherit no half-written lines */
    tests();
    CHECK(open_descriptors() == before);

    remove_all(".");
    CHECK(entries(".") == 0);
    if (chdir("/") != 0 || rmdir(home) != 0)
        printf("%s: %s could not be removed: %s\n", name, home, strerror(errno));
    free(home);
    printf("%s: %d checks, %d failed\n", name, checks, failures);
    return failures == 0 ? 0 : 1;
}
