#!/usr/bin/env bash
# Builds StarPU's own examples, those with MPI too, from the source package that ci/starpu.sh fetches, into
# .cache/starpu-examples; with the argument `tests` its own tests instead. They are no part of the product:
# evaluation.probe.examples runs the probe over them. Interrupted, it goes on where it was.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
CACHE=$ROOT/.cache
LOGS=$CACHE/logs
# shellcheck source=ci/steps.sh
source "$ROOT/ci/steps.sh"
# shellcheck source=ci/starpu.sh
source "$ROOT/ci/starpu.sh"
EXAMPLES=$CACHE/starpu-examples
STARPU_WORK=$EXAMPLES/work

# LU, Cholesky, CG and heat call BLAS. Only the examples, and the StarPU of this build, are linked with it.
find_blas() {
    pkg-config --exists blas && return
    local install=(apt-get install -y --no-install-recommends libopenblas-dev)
    [[ $(id -u) == 0 && -x $(command -v apt-get) ]] || fail "no BLAS (pkg-config knows none), which examples need" \
        "On Debian or Ubuntu:  sudo ${install[*]}"
    note "no BLAS: ${install[*]}"
    "${install[@]}"
}

# The options are those of the StarPU that the examples will run on: its types have sizes that depend on them.
# --enable-quick-check makes examples and tests small.
configure_examples() {
    local options
    mapfile -t options < <(starpu_options)
    mkdir -p "$EXAMPLES/build"
    cd "$EXAMPLES/build"
    "$STARPU_WORK/source/configure" --prefix="$EXAMPLES/unused" "${options[@]}" --enable-build-examples \
        --enable-build-tests --enable-quick-check CFLAGS='-g -O1' ACLOCAL=: AUTOCONF=: AUTOHEADER=: AUTOMAKE=:
}

build_examples() {
    make -C "$EXAMPLES/build/src" -j"$(nproc)"
    make -C "$EXAMPLES/build/mpi/src" -j"$(nproc)"
    # Some need libraries that aren't here; the others are enough.
    make -C "$EXAMPLES/build/$1" -k -j"$(nproc)" || true
    make -C "$EXAMPLES/build/mpi/$1" -k -j"$(nproc)" || true
}

KIND=${1:-examples}
mkdir -p "$EXAMPLES"
[[ $KIND == tests ]] || find_blas
if [[ ! -d $STARPU_WORK/source ]]; then
    mkdir -p "$STARPU_WORK"
    if [[ -n ${STARPU_SOURCE:-} ]]; then
        starpu_take_source
    else
        starpu_fetch_source
    fi
fi
[[ -e $EXAMPLES/build/Makefile ]] || configure_examples
build_examples "$KIND"
