#!/usr/bin/env bash
# Runs README's two commands in a clean root of a Debian system, and shows what each of them printed last.
# shellcheck disable=SC2329  # a trap and other namespaces call functions
set -euo pipefail

usage() {
    cat <<'EOT'
usage: ci/systems.sh SYSTEM

Makes a clean root with git and python3 below $TMPDIR or /tmp, clones this checkout's HEAD into it, and runs there
  ci/bootstrap.sh starpullm demo
  ci/bootstrap.sh pytest
SYSTEM is debian12, debian13, testing or debian12-arm64. The last one is emulated and slow: the suite with the record
`tiny` on one worker, and the C tests, stand for the second command and come first.

It needs root, debootstrap and 5 GB, and for debian12-arm64 qemu-user-static. The mirror of this machine's Debian and the
settings of apt, pip and proxies hold in the root, too, which is gone afterwards. All output is in .cache/logs/.
EOT
}

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
SYSTEM=${1:-}
LOG=$ROOT/.cache/logs/systems-$SYSTEM
EMULATOR=/usr/bin/qemu-aarch64-static
ARCHITECTURE=$(dpkg --print-architecture)
COMMANDS=("ci/bootstrap.sh starpullm demo" "ci/bootstrap.sh pytest")

case $SYSTEM in
    -h | --help) usage; exit ;;
    debian12) SUITE=bookworm ;;
    debian13) SUITE=trixie ;;
    testing) SUITE=testing ;;
    debian12-arm64)
        SUITE=bookworm ARCHITECTURE=arm64
        COMMANDS=("ci/bootstrap.sh pytest --timeout 3600 --pyargs starpullm.suite --starpullm-time-limit 3600 \
            --starpullm-records tiny --starpullm-partition 1x1" "cd native && cmake --preset release &&
            cmake --build --preset release && ctest --preset release" "${COMMANDS[0]}")
        ;;
    *) usage >&2; exit 2 ;;
esac

[[ $EUID == 0 && -x $(command -v debootstrap) ]] || { echo "systems: root and debootstrap are needed" >&2; exit 1; }
[[ $SYSTEM != *-arm64 || -x $EMULATOR ]] || { echo "systems: $EMULATOR (qemu-user-static) is missing" >&2; exit 1; }

# Mounts the kernel's list of emulators and writes TEXT to its FILE.
binfmt() {
    mount -t binfmt_misc binfmt /proc/sys/fs/binfmt_misc
    printf '%s' "$2" >"/proc/sys/fs/binfmt_misc/$1"
}

# inside COMMAND...: runs them. Its namespaces are its own: all mounts and processes end with its first process.
inside() {
    set -euo pipefail
    local root=$WORK/root mirror name value path folder settings=() status=0 number=0 command
    # The head of an ELF file of this machine, and its mask. F: the kernel keeps the emulator open, so no root needs a copy.
    [[ $SYSTEM != *-arm64 ]] || binfmt register ":starpullm-arm64:M::\\x7fELF\\x02\\x01\\x01$(printf '\\x00%.0s' {1..9}
        )\\x02\\x00\\xb7\\x00:$(printf '\\xff%.0s' {1..7})\\x00$(printf '\\xff%.0s' {1..8})\\xfe\\xff\\xff\\xff:$EMULATOR:F"
    mirror=$(apt-get indextargets --format "\$(LABEL) \$(REPO_URI)" | sed -n '/^Debian /{s///p;q}')
    eval "$(apt-config shell http_proxy Acquire::http::Proxy)"
    ${http_proxy:+env http_proxy="$http_proxy"} debootstrap --variant=minbase --include=git,python3,ca-certificates \
        --arch="$ARCHITECTURE" "$SUITE" "$root" "${mirror:-https://deb.debian.org/debian}" >"$LOG-root.log"
    apt-config dump | grep -E '^Acquire::(https?|ftp|Check|Retries)' >"$root/etc/apt/apt.conf.d/90machine" || true
    cp /etc/hosts "$root/etc/hosts"
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs tmpfs "$root/dev/shm"
    # pip's settings, as variables. Folders of files that they name are mounted: an index refers to what lies beside it.
    while read -r name value; do
        settings+=("PIP_$(tr a-z- A-Z_ <<<"$name")=$value")
        for path in $value; do
            path=${path#file://} folder=$(dirname "${path#file://}")
            [[ $path != /*/* || ! -e $path ]] || mountpoint -q "$root$folder" ||
                mount --bind -o ro,X-mount.mkdir "$folder" "$root$folder"
        done
    done < <(python3 -m pip config list | sed -n "s/^\(global\|install\|:env:\)\.\([a-z-]*\)='\(.*\)'\$/\2 \3/p")
    mapfile -t -O "${#settings[@]}" settings < <(env | grep -iE '^(https?|no)_proxy=')
    git clone -q --no-local "$ROOT" "$root/root/starpullm"
    for command; do
        printf '\n%s, command %d: %s\n' "$SYSTEM" $((number += 1)) "$command"
        chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 "${settings[@]}" \
            bash -c "cd ~/starpullm && $command" </dev/null 2>&1 | tee "$LOG-$number.log" || status=1
    done
    return "$status"
}

finish() {
    trap '' INT TERM HUP
    # JOB waits for the first process of the namespaces, whose end is that of all the others.
    [[ -z ${JOB:-} ]] || { pkill -KILL -P "$JOB" || true; wait "$JOB" || true; }
    # Before Linux 6.7 the list of emulators outlives its mount.
    [[ $SYSTEM != *-arm64 ]] || unshare --mount bash -c 'binfmt starpullm-arm64 -1' 2>/dev/null || true
    rm -rf --one-file-system "$WORK"
}

mkdir -p "$(dirname "$LOG")"
rm -f "$LOG"-[0-9].log
WORK=$(mktemp -d "${TMPDIR:-/tmp}/starpullm-$SYSTEM.XXXXXX")
trap finish EXIT
trap 'exit 130' INT TERM HUP
export ROOT SYSTEM LOG EMULATOR ARCHITECTURE SUITE WORK
export -f binfmt inside
# A group of its own: without one, interrupts would be ignored in everything that it starts.
set -m
unshare --mount --pid --ipc --fork --kill-child bash -c 'inside "$@"' - "${COMMANDS[@]}" </dev/null &
JOB=$!
wait "$JOB" && STATUS=0 || STATUS=$?
printf '\n%s, %s, %s\n' "$SYSTEM" "$(date +%F)" "$(sed -n '/^model name/{s/.*: //p;q}' /proc/cpuinfo)"
tail -n 2 "$LOG"-[0-9].log
exit "$STATUS"
