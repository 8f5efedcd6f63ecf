#!/usr/bin/env bash
# Builds StarPU's own examples from the source package that ci/starpu.sh fetches, into .cache/starpu-examples. They are no
# part of the product: tests.probe.examples runs the probe over them.
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

configure_examples() {
    mkdir -p "$EXAMPLES/build"
    cd "$EXAMPLES/build"
    "$STARPU_WORK/source/configure" --prefix="$EXAMPLES/unused" --enable-parallel-worker --enable-maxcpus=256 \
        --enable-maxnodes=64 --disable-build-doc --disable-opencl --disable-starpufft --disable-fortran --disable-static \
        --disable-fxt --disable-starpupy --disable-cuda --disable-hip ACLOCAL=: AUTOCONF=: AUTOHEADER=: AUTOMAKE=:
}

build_examples() {
    make -C "$EXAMPLES/build/src" -j"$(nproc)"
    # Some need libraries that aren't here; the others are enough.
    make -C "$EXAMPLES/build/examples" -k -j"$(nproc)" || true
}

mkdir -p "$EXAMPLES"
if [[ ! -d $STARPU_WORK/source ]]; then
    mkdir -p "$STARPU_WORK"
    if [[ -n ${STARPU_SOURCE:-} ]]; then
        starpu_take_source
    else
        starpu_fetch_source
    fi
fi
[[ -e $EXAMPLES/build/Makefile ]] || configure_examples
build_examples
