/* A CBLAS, opened while the program runs: which of the usual names it has, which integers it takes, and how it is told
 * to use one thread. */
#include "kernels/blas/blas.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* cblas.h's. */
enum { CBLAS_ROW_MAJOR = 101, CBLAS_NO_TRANS = 111, CBLAS_TRANS = 112 };

typedef void sgemm_lp64(int order, int transpose_a, int transpose_b, int32_t M, int32_t N, int32_t K, float alpha,
                        const float *a, int32_t lda, const float *b, int32_t ldb, float beta, float *c, int32_t ldc);
typedef void sgemm_ilp64(int order, int transpose_a, int transpose_b, int64_t M, int64_t N, int64_t K, float alpha,
                         const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);

enum { MAX_NAME = 96 };

static struct {
    void *library;
    const char *prefix, *suffix; /* of its names */
    bool ilp64;
    sgemm_lp64 *lp64;
    sgemm_ilp64 *ilp64_sgemm;
    void (*set_threads)(int);
    int (*get_threads)(void); /* NULL: the number from before can't be restored */
    int threads_before;
    char description[256];
} blas;

/* Its own spelling of one of the usual names. */
static void *find(const char *name)
{
    char spelled[MAX_NAME];
    snprintf(spelled, sizeof spelled, "%s%s%s", blas.prefix, name, blas.suffix);
    return dlsym(blas.library, spelled);
}

/* POSIX lets an address be taken for a function's; C has no conversion for that. */
#define FIND_FUNCTION(function, name) (*(void **)&(function) = find(name))

/* SciPy's and NumPy's builds of OpenBLAS have a prefix; a suffix tells a build with integers of 64 bits. */
static bool find_sgemm(void)
{
    static const char *const prefixes[] = {"", "scipy_"}, *const suffixes[] = {"", "64_", "_64"};
    for (size_t p = 0; p < sizeof prefixes / sizeof *prefixes; p++)
        for (size_t s = 0; s < sizeof suffixes / sizeof *suffixes; s++) {
            blas.prefix = prefixes[p];
            blas.suffix = suffixes[s];
            blas.ilp64 = *suffixes[s] != '\0';
            if (FIND_FUNCTION(blas.lp64, "cblas_sgemm")) {
                FIND_FUNCTION(blas.ilp64_sgemm, "cblas_sgemm");
                return true;
            }
        }
    return false;
}

/* OpenBLAS: its name without a suffix doesn't say which integers it was built for, but its configuration does. */
static bool recognise_openblas(char *name, size_t size, bool *uses_openmp)
{
    char *(*get_config)(void), *(*get_core)(void);
    int (*get_parallel)(void);
    if (!FIND_FUNCTION(get_config, "openblas_get_config"))
        return false;
    const char *config = get_config();
    blas.ilp64 = blas.ilp64 || strstr(config, "USE64BITINT");
    const char *core = FIND_FUNCTION(get_core, "openblas_get_corename") ? get_core() : "unknown";
    *uses_openmp = FIND_FUNCTION(get_parallel, "openblas_get_parallel") && get_parallel() == 2;
    FIND_FUNCTION(blas.set_threads, "openblas_set_num_threads");
    FIND_FUNCTION(blas.get_threads, "openblas_get_num_threads");
    /* "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ...": name and version. */
    const char *version = strchr(config, ' ');
    const size_t length = version ? (size_t)(version - config) + 1 + strcspn(version + 1, " ") : strlen(config);
    snprintf(name, size, "%.*s, kernels for %s", (int)length, config, core);
    return true;
}

static bool recognise_mkl(char *name, size_t size)
{
    void (*get_version)(char *, int);
    if (!FIND_FUNCTION(get_version, "MKL_Get_Version_String"))
        return false;
    char version[128] = "";
    get_version(version, sizeof version - 1);
    snprintf(name, size, "%s", version);
    const char *layer = getenv("MKL_INTERFACE_LAYER");
    blas.ilp64 = blas.ilp64 || (layer && strstr(layer, "ILP64"));
    FIND_FUNCTION(blas.set_threads, "MKL_Set_Num_Threads");
    FIND_FUNCTION(blas.get_threads, "MKL_Get_Max_Threads");
    return true;
}

static bool recognise_blis(char *name, size_t size)
{
    const char *(*get_version)(void);
    long (*get_int_bits)(void);
    if (!FIND_FUNCTION(get_version, "bli_info_get_version_str"))
        return false;
    snprintf(name, size, "BLIS %s", get_version());
    blas.ilp64 = blas.ilp64 || (FIND_FUNCTION(get_int_bits, "bli_info_get_blas_int_type_size") && get_int_bits() == 64);
    *(void **)&blas.set_threads = dlsym(blas.library, "bli_thread_set_num_threads");
    return true;
}

bool blas_open(char *sentence, size_t sentence_size, const char *library)
{
    memset(&blas, 0, sizeof blas);
    /* Never closed: a BLAS may have threads of its own, whose code has to stay in memory. */
    blas.library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!blas.library) {
        const char *reason = dlerror();
        snprintf(sentence, sentence_size, "%s: can't be opened: %s", library, reason ? reason : "no reason is given");
        return false;
    }
    if (!find_sgemm()) {
        snprintf(sentence, sentence_size,
                 "%s: has no function cblas_sgemm, expected a BLAS with its C interface (tried scipy_ before the name "
                 "and 64_ and _64 after it, too)",
                 library);
        return false;
    }
    char name[192] = "BLAS of unknown make";
    bool uses_openmp = false;
    if (!recognise_openblas(name, sizeof name, &uses_openmp) && !recognise_mkl(name, sizeof name))
        recognise_blis(name, sizeof name);
    const char *threads = getenv("OMP_NUM_THREADS");
    if (uses_openmp && (!threads || strcmp(threads, "1") != 0)) {
        snprintf(sentence, sentence_size,
                 "%s: is built with OpenMP, whose threads can't be limited per worker, expected OMP_NUM_THREADS=1 in "
                 "the environment (the partition says how many threads there are), or a build with pthreads",
                 library);
        return false;
    }
    const char *file = strrchr(library, '/');
    snprintf(blas.description, sizeof blas.description, "%s, %s, integers of %d bits", file ? file + 1 : library, name,
             blas.ilp64 ? 64 : 32);
    if (blas.set_threads) {
        blas.threads_before = blas.get_threads ? blas.get_threads() : 0;
        blas.set_threads(1);
    }
    return true;
}

const char *blas_description(void)
{
    return blas.description;
}

void blas_close(void)
{
    if (blas.set_threads && blas.threads_before > 0)
        blas.set_threads(blas.threads_before);
}

void blas_product(float *c, size_t ldc, const float *a, size_t lda, bool transpose_a, const float *b, size_t ldb,
                  bool transpose_b, size_t rows, size_t columns, size_t depth, bool add)
{
    const int ta = transpose_a ? CBLAS_TRANS : CBLAS_NO_TRANS, tb = transpose_b ? CBLAS_TRANS : CBLAS_NO_TRANS;
    const float beta = add ? 1.0f : 0.0f;
    if (blas.ilp64)
        blas.ilp64_sgemm(CBLAS_ROW_MAJOR, ta, tb, (int64_t)rows, (int64_t)columns, (int64_t)depth, 1.0f, a,
                         (int64_t)lda, b, (int64_t)ldb, beta, c, (int64_t)ldc);
    else
        blas.lp64(CBLAS_ROW_MAJOR, ta, tb, (int32_t)rows, (int32_t)columns, (int32_t)depth, 1.0f, a, (int32_t)lda, b,
                  (int32_t)ldb, beta, c, (int32_t)ldc);
}
