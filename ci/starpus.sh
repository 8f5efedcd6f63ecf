#!/usr/bin/env bash
# Builds StarPU as it was at several commits, this project against each, and runs the suite and the tests of the probe.
# shellcheck disable=SC2329  # step() calls them
set -euo pipefail

usage() {
    cat <<'END'
usage: ci/starpus.sh CLONE [REF[,OPTION...]...]

CLONE is a clone of StarPU's repository. A REF is a tag, a branch or a commit of it, by default each of
  starpu-1.4.10  starpu-1.4.12  starpu-1.4  master  starpu-1.4.10,--disable-parallel-worker
and an OPTION one for its configure script, after those of ci/starpu.sh. Everything goes into a folder of its own below
.cache/starpus/, where a StarPU that is built stays. The last lines say what suite and probe showed; the exit status is
1 if something failed.

It needs what ci/bootstrap.sh installs, and autoconf, automake and libtool-bin, which StarPU's autogen.sh calls.
END
}

case ${1:-} in
    '' | -*) usage >&2; exit 2 ;;
esac
CLONE=$1
shift
(($#)) || set -- starpu-1.4.10 starpu-1.4.12 starpu-1.4 master starpu-1.4.10,--disable-parallel-worker
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# shellcheck source=ci/steps.sh
source "$ROOT/ci/steps.sh"

take_commit() {
    rm -rf "$STARPU_SOURCE"
    mkdir -p "$STARPU_SOURCE"
    git -C "$CLONE" archive "$1" | tar -x -C "$STARPU_SOURCE"
    cd "$STARPU_SOURCE"
    ./autogen.sh
}

install_project() {
    [[ -x $CACHE/venv/bin/python ]] || python3 -m venv "$CACHE/venv"
    STARPU_PREFIX=$STARPU_CACHE "$CACHE/venv/bin/python" -m pip install -C build-dir="$CACHE/build" "${ROOT}[mpi,test]"
}

# Prints the command's last line; the placements are the same on every machine.
run_tests() {
    local title=$1 log=$LOGS/$1.log status=0
    shift
    HWLOC_SYNTHETIC="numa:1 core:2 pu:1" "$CACHE/venv/bin/pytest" -p no:cacheprovider "$@" >"$log" 2>&1 </dev/null || status=$?
    printf '  %-6s %s\n' "$title" "$(tail -n 1 "$log" | tr -d =)"
    return "$status"
}

# In a subshell, because ci/starpu.sh derives its places from CACHE.
try() (
    ref=${1%%,*} options=${1#"${1%%,*}"} status=0
    commit=$(git -C "$CLONE" rev-parse --short "$ref^{commit}")
    # The linker takes a comma in a path for the end of an option.
    CACHE=$ROOT/.cache/starpus/$commit${options//,/+} LOGS=$CACHE/logs STARPU_SOURCE=$CACHE/source
    # shellcheck source=ci/starpu.sh
    source "$ROOT/ci/starpu.sh"
    IFS=, read -ra more <<<"$options"
    STARPU_OPTIONS+=("${more[@]:1}")
    STEP_TOTAL=1
    if [[ $(cat "$STARPU_CACHE/recipe" 2>/dev/null) != "$(starpu_recipe)" ]]; then
        STEP_TOTAL=$((2 + STARPU_BUILD_STEPS))
        step "StarPU: take $ref" take "" take_commit "$commit"
        starpu_build
    fi
    step "starpullm: compile and install" install "" install_project
    export PATH=$CACHE/venv/bin:$PATH VIRTUAL_ENV=$CACHE/venv
    echo "$1: $commit of $(git -C "$CLONE" log -1 --format=%cs "$commit"), $(starpullm doctor | sed -n "s/^StarPU  */StarPU /p")"
    cd "$ROOT"
    run_tests suite --pyargs starpullm.suite --starpullm-records tiny,odd --starpullm-partition all || status=1
    run_tests probe tests/probe || status=1
    return "$status"
)

failed=0
for ref in "$@"; do
    # Not in a condition, where the shell would ignore `set -e` inside.
    set +e
    (set -e; try "$ref")
    failed=$((failed | $?))
    set -e
done
exit "$((failed != 0))"
