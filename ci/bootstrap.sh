#!/usr/bin/env bash
# Prepares a machine for building and testing starpullm, then runs a command there. People, tox and CI call it.
set -euo pipefail

usage() {
    cat <<'EOF'
usage: ci/bootstrap.sh [COMMAND [ARG...]]

Makes sure that the build tools, MPI, hwloc, zlib, xxHash and a usable StarPU are there. With COMMAND it also makes a Python virtual
environment with tox and starpullm in it, and runs COMMAND there (for tox: without starpullm, which tox installs itself).

  ci/bootstrap.sh starpullm demo
  ci/bootstrap.sh pytest
  ci/bootstrap.sh tox

It can be run again at any time and does only what is missing. On Debian and Ubuntu, as root or with passwordless sudo, it
installs missing packages; everything else it makes goes into .cache/ of this checkout, the logs into .cache/logs/.

StarPU 1.4.10 or newer (older than 1.6), with MPI, is taken from the first of:
  STARPU_PREFIX   if set: an installed StarPU. It has to be usable.
  pkg-config      the module starpu-1.4 or starpu-1.5
  .cache/starpu   what an earlier run has built
  STARPU_SOURCE   if set: a StarPU source directory or tarball, which is built into .cache/starpu
  the source package of the distribution (Debian: of testing, then of unstable), which is built into .cache/starpu
  STARPU_ARCHIVE  the address of StarPU's release 1.4.10, with a fixed SHA-256, also built there; by default StarPU's own
EOF
}

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
CACHE=$ROOT/.cache
LOGS=$CACHE/logs
VENV=$CACHE/venv
# shellcheck source=ci/steps.sh
source "$ROOT/ci/steps.sh"
# shellcheck source=ci/starpu.sh
source "$ROOT/ci/starpu.sh"

# --- system packages ---------------------------------------------------------------------------------------------------

# The Debian packages that stand for what this machine lacks, one a line.
missing_packages() {
    command -v cc >/dev/null || printf '%s\n' gcc libc6-dev
    command -v make >/dev/null || echo make
    command -v cmake >/dev/null || echo cmake
    command -v ninja >/dev/null || echo ninja-build
    command -v pkg-config >/dev/null || echo pkg-config
    pkg-config --exists hwloc 2>/dev/null || echo libhwloc-dev
    pkg-config --exists zlib 2>/dev/null || echo zlib1g-dev
    pkg-config --exists 'libxxhash >= 0.8' 2>/dev/null || echo libxxhash-dev
    command -v git >/dev/null || echo git
    command -v mpicc >/dev/null || echo libopenmpi-dev
    command -v mpirun >/dev/null || echo openmpi-bin
    if [[ -z $STARPU_FOUND ]]; then
        # StarPU has one file of C++.
        command -v c++ >/dev/null || echo g++
        [[ -n ${STARPU_SOURCE:-} ]] || ! command -v apt-get >/dev/null || command -v dpkg-source >/dev/null || echo dpkg-dev
    fi
    if [[ -n $COMMAND && ! -x $VENV/bin/python && -z $(newest_python) ]]; then
        echo python3-venv
    fi
}

install_packages() {
    local as_root=()
    ((EUID == 0)) || as_root=(sudo -n)
    "${as_root[@]}" apt-get -q update
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=a \
        apt-get -q install -y --no-install-recommends -o DPkg::Lock::Timeout=300 "$@"
}

# Says what to install where this script can't: no apt-get, or no right to use it.
refuse_packages() {
    local by_hand="On Debian or Ubuntu:  sudo apt-get install $*"
    if ! command -v apt-get >/dev/null; then
        fail "this machine lacks what Debian calls: $*" \
            "Install the like of them with this machine's package manager, then run this again.
  Guix: guix shell gcc-toolchain make cmake ninja pkg-config hwloc zlib xxhash openmpi python
  Spack: spack install cmake ninja pkgconf hwloc zlib xxhash openmpi python, then spack load them"
    fi
    fail "system packages are missing and neither root nor passwordless sudo is there to install them: $*" \
        "$by_hand
then run this again."
}

can_install_packages() {
    command -v apt-get >/dev/null || return 1
    ((EUID == 0)) || sudo -n true 2>/dev/null
}

# --- Python environment ------------------------------------------------------------------------------------------------

# The newest released Python >= 3.11 on PATH that can make a virtual environment with pip; nothing if there is none.
newest_python() {
    local candidate
    for candidate in $(compgen -c python3. | grep -E '^python3\.[0-9]+$' | sort -Vru) python3; do
        if "$candidate" -c 'import sys, venv, ensurepip
sys.exit(sys.version_info < (3, 11) or sys.version_info.releaselevel != "final")' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
}

# 0 if the environment is complete, was made for this directory and its Python still runs.
venv_usable() {
    [[ $(cat "$VENV/made-for" 2>/dev/null) == "$VENV" ]] && "$VENV/bin/python" -c '' 2>/dev/null
}

make_venv() {
    local python
    python=$(newest_python)
    [[ -n $python ]] || { echo "no python3 >= 3.11 that can make virtual environments"; return 1; }
    rm -rf "$VENV"
    "$python" -m venv "$VENV"
    # Written last, so that an interrupted installation isn't taken for a complete one.
    "$VENV/bin/python" -m pip install 'tox>=4.45'
    echo "$VENV" >"$VENV/made-for"
}

# One hash of everything that the installed project is made from: a StarPU that was built anew may have other limits.
project_hash() {
    (
        cd "$ROOT"
        find pyproject.toml README.md LICENSE native starpullm -type f ! -name '*.pyc' -print0 2>/dev/null |
            sort -z | xargs -0 sha256sum
        printf '%s\n' "$STARPU_FOUND" "$STARPU_FOUND_VERSION"
        cat "$STARPU_FOUND"/include/starpu/*/starpu_config.h 2>/dev/null || true
    ) | sha256sum
}

project_current() {
    [[ $(cat "$VENV/project-hash" 2>/dev/null) == "$(project_hash)" ]]
}

install_project() {
    local hash
    hash=$(project_hash)
    "$VENV/bin/python" -m pip install "${ROOT}[mpi,test]"
    echo "$hash" >"$VENV/project-hash"
}

# --- all of it ---------------------------------------------------------------------------------------------------------

# Two bootstraps at once in one checkout would build into the same directories.
take_lock() {
    mkdir -p "$CACHE"
    command -v flock >/dev/null || return 0
    exec 9>"$CACHE/lock"
    if ! flock -n 9; then
        note "waiting for another bootstrap of this checkout"
        flock 9
    fi
}

wants_project() {
    [[ -n $COMMAND && $COMMAND != tox ]]
}

# Looks at everything first, so that the steps can be counted.
plan() {
    starpu_find || STEP_TOTAL=$((STEP_TOTAL + STARPU_BUILD_STEPS))
    mapfile -t PACKAGES < <(missing_packages)
    ((${#PACKAGES[@]} == 0)) || STEP_TOTAL=$((STEP_TOTAL + 1))
    if [[ -n $COMMAND ]]; then
        venv_usable || STEP_TOTAL=$((STEP_TOTAL + 1))
    fi
    if wants_project; then
        { venv_usable && project_current; } || STEP_TOTAL=$((STEP_TOTAL + 1))
    fi
}

prepare_system() {
    ((${#PACKAGES[@]} > 0)) || return 0
    can_install_packages || refuse_packages "${PACKAGES[@]}"
    step "system packages: ${PACKAGES[*]}" packages "Install them by hand, then run this again." \
        install_packages "${PACKAGES[@]}"
}

# Packages that only some tests need, which are skipped without them: where they can't be installed, that is no failure.
prepare_tests() {
    local tests=$1
    shift
    (($# > 0)) || return 0
    mkdir -p "$LOGS"
    if can_install_packages && install_packages "$@" >>"$LOGS/packages-of-tests.log" 2>&1 </dev/null; then
        note "installed for $tests: $*"
    else
        note "$tests will be skipped: $* can't be installed"
    fi
}

prepare_slurm() {
    [[ $COMMAND == tox ]] || return 0
    local path=$PATH:/usr/sbin:/sbin packages=()
    PATH=$path command -v slurmctld >/dev/null || packages+=(slurm-wlm)
    PATH=$path command -v munged >/dev/null || packages+=(munge)
    prepare_tests "the tests of ci/slurm" "${packages[@]}"
}

prepare_systems() {
    [[ $COMMAND == tox ]] || return 0
    local packages=()
    command -v musl-gcc >/dev/null || packages+=(musl-tools)
    command -v aarch64-linux-gnu-gcc >/dev/null || packages+=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross)
    command -v qemu-aarch64 >/dev/null || packages+=(qemu-user)
    prepare_tests "the tests with other systems" "${packages[@]}"
}

# OpenCL's headers, with which StarPU is built, and a device that is made of the CPU.
prepare_devices() {
    [[ $COMMAND == tox ]] || return 0
    local packages=()
    { pkg-config --exists OpenCL; } 2>/dev/null || packages+=(ocl-icd-opencl-dev)
    compgen -G '/etc/OpenCL/vendors/*.icd' >/dev/null || packages+=(pocl-opencl-icd)
    prepare_tests "the tests with devices" "${packages[@]}"
}

# Only in a container that starts no services: elsewhere a server would listen on the machine's own network from then on.
prepare_hosts() {
    [[ $COMMAND == tox && $EUID == 0 && -x /usr/sbin/policy-rc.d && ! -d /run/systemd/system ]] || return 0
    local path=$PATH:/usr/sbin:/sbin packages=()
    PATH=$path command -v sshd >/dev/null || packages+=(openssh-server)
    PATH=$path command -v ssh >/dev/null || packages+=(openssh-client)
    PATH=$path command -v ip >/dev/null || packages+=(iproute2)
    prepare_tests "the tests over two hosts" "${packages[@]}"
}

# The tests of the report's page are skipped without a browser, so a machine that has none isn't refused.
prepare_browser() {
    [[ $COMMAND == tox ]] || return 0
    if command -v chromium >/dev/null; then
        return 0
    fi
    mkdir -p "$LOGS"
    if can_install_packages && install_packages chromium >"$LOGS/browser.log" 2>&1 </dev/null; then
        note "installed Chromium for the tests of the report's page"
    else
        note "no Chromium: the tests of the report's page will be skipped"
    fi
}

prepare_starpu() {
    local reason
    # Looked for again, because it may be that pkg-config has just been installed.
    if ! starpu_find; then
        for reason in "${STARPU_REFUSED[@]}"; do
            note "StarPU not usable: $reason"
        done
        starpu_build
        starpu_find || fail "the StarPU just built is not usable: ${STARPU_REFUSED[*]}"
    elif [[ -n ${STARPU_SOURCE:-} ]]; then
        note "STARPU_SOURCE is not needed: there is a usable StarPU already"
    fi
    note "StarPU $STARPU_FOUND_VERSION in $STARPU_FOUND"
}

prepare_python() {
    venv_usable ||
        step "Python environment with tox" python "Put a python3 >= 3.11 with venv and ensurepip on PATH." make_venv
    if wants_project && ! project_current; then
        step "starpullm: compile and install" install "The compiler's message is in the log." install_project
    fi
}

main() {
    case ${1:-} in
        -h | --help) usage; exit ;;
        -*) usage >&2; exit 2 ;;
    esac
    COMMAND=${1:-}
    take_lock
    prepare_devices
    plan
    prepare_system
    prepare_browser
    prepare_slurm
    prepare_hosts
    prepare_systems
    prepare_starpu
    [[ -n $COMMAND ]] || return 0
    prepare_python
    # The command must not keep the lock: tox calls this script again.
    exec 9>&-
    export VIRTUAL_ENV=$VENV PATH=$VENV/bin:$PATH
    # In a container everything runs as root; Open MPI's mpirun wants to be told that this is meant.
    ((EUID == 0)) && export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    exec "$@"
}

main "$@"
