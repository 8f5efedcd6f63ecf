/* The kernels: the operations of the arithmetic contract (docs/numerics.md), one function each, and which of their
 * implementations this machine uses. kernels.def lists them with their parameters. Nothing here knows more than libc.
 *
 * An output that is an accumulating ordered sum takes a `sum_start`: SUM_FROM_ZERO starts the sum at +0.0f and never
 * reads the output (it may be uninitialised); SUM_CONTINUES starts from its present value. An output without a
 * sum_start is overwritten; a sum in it starts at +0.0f. Outputs never overlap inputs.
 *
 * All threads of a team call a kernel at the same time, with the same arguments except for the thread's own number.
 * Each output element is computed whole by one of them (kernels/team.h), so that the bits don't depend on how many
 * there are. If the team has a board, a matmul's threads pack its operands together, wait for each other until that is
 * done, and take parts of the output from each other; otherwise a kernel needs nothing of what other threads compute.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/arithmetic.h"
#include "kernels/team.h"

enum sum_start { SUM_FROM_ZERO, SUM_CONTINUES };

struct adamw_options {
    float learning_rate, beta1, beta2, eps, weight_decay;
};

struct kernels {
#define KERNEL(name, parameters) void(*name) parameters;
#include "kernels/kernels.def"
};

/* The kernels of this machine, chosen at the first call (kernels/select.c). Safe from any thread. */
const struct kernels *kernels(void);

/* From now on the matmuls are those of a CBLAS, a shared library's path or name, and no longer strict: each thread of a
 * team has its part of the outputs computed. false: the library can't serve, and `sentence` says why. Not while kernels
 * run. */
bool kernels_open_blas(char *sentence, size_t sentence_size, const char *library);

/* From now on sums of products are fused. Not while kernels run. */
void kernels_use_fused(void);

/* From now on expf, tanhf, coshf, logf and powf are those of the platform's libm, in plain loops. Not while kernels
 * run. */
void kernels_use_platform(void);

/* From now on the kernels are the level's own again, and strict. */
void kernels_restore(void);

/* Their level: "ref"; "sse2", "neon" or "vector16", which are vectors of 16 bytes on x86-64, aarch64 or another
 * processor; "avx2"; or "avx512". It is the best that this machine and build have, unless STARPULLM_SIMD in the
 * environment names another. */
const char *kernels_level(void);

/* This machine's caches, from which simd/blocking.c derives its blocks. No bit depends on them. */
struct caches {
    size_t l2;       /* bytes of one hardware thread's share */
    bool l3_is_slow; /* a prefetch instruction costs less than the wait for a line that has left the second level */
};

/* l2: STARPULLM_L2_CACHE in the environment, a number of bytes, KiB or MiB, as in "1M". Otherwise what Linux tells of
 * the first processor; 256 KiB where it doesn't. false: the variable isn't so; then the size is as without it.
 * l3_is_slow follows from the processor's maker, as measured (docs/performance.md, "Prefetching"); it is false for an
 * unknown processor. */
bool caches_read(struct caches *caches);

/* Those in use. */
const struct caches *kernels_caches(void);

/* From now on the blocks follow from these. Not while kernels run. */
void kernels_fit_caches(const struct caches *caches);

/* The kernels of a level of starpullm_simd_level_name(); those with fused sums of products of a level with _fused
 * behind its name; or those of "platform": those of "ref" with the platform's libm. NULL if there is no such level
 * here. */
const struct kernels *kernels_of_level(const char *name);
