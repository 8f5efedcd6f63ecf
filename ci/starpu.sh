# Finds a usable StarPU, or builds one into .cache/starpu. Sourced by bootstrap.sh.
# native/cmake/FindStarPU.cmake looks in the same places, in the same order, with the same conditions.
# shellcheck shell=bash

STARPU_NEEDED="StarPU 1.4.10 or newer, older than 1.6, configured with MPI"
STARPU_CACHE=$CACHE/starpu
STARPU_WORK=$CACHE/starpu-build

# Each parallel worker takes a scheduling context and StarPU's default of 10 leaves room for 8 of them, hence 64. Each data
# handle has a table with an entry for each pair of memory nodes: it takes 2.7 KiB with 8 nodes, which are enough for NUMA
# nodes and a disk, and 73 KiB with 64. The number of processors takes nothing of a handle, and 0.5 MiB of a process.
STARPU_OPTIONS=(
    --enable-parallel-worker --enable-max-sched-ctxs=64 --enable-maxcpus=256 --enable-maxnodes=8
    --disable-build-doc --disable-build-tests --disable-build-examples --disable-starpufft --disable-fortran
    --disable-starpupy --disable-fxt --disable-papi --disable-glpk --disable-cuda --disable-hip
    --disable-static --disable-dependency-tracking
)

# OpenCL is built in where its headers are: without devices it takes nothing of a handle, a task or a start.
starpu_options() {
    printf '%s\n' "${STARPU_OPTIONS[@]}"
    if pkg-config --exists OpenCL 2>/dev/null; then echo --enable-opencl; else echo --disable-opencl; fi
}

: "${STARPU_ARCHIVE:=https://files.inria.fr/starpu/starpu-1.4.10/starpu-1.4.10.tar.gz}"
STARPU_ARCHIVE_SHA256=8f35f59c337ba109e5ef5fb4f6331b4845d524921e184fcc89f2ecac60faaf03
STARPU_TIME_LIMIT=180 # seconds, of one download

STARPU_ADVICE="What you can do:
  - Set STARPU_PREFIX to an installed $STARPU_NEEDED.
      Guix:  guix shell --with-configure-flag=starpu=--enable-parallel-worker \\
                 --with-configure-flag=starpu=--enable-maxnodes=8 starpu gcc-toolchain make cmake ninja pkg-config \\
                 hwloc zlib openmpi python    and there: STARPU_PREFIX=\$GUIX_ENVIRONMENT ci/bootstrap.sh ...
      Spack: spack install starpu    with --enable-parallel-worker and --enable-maxnodes=8 added to the configure_args
                 of 'spack edit starpu', then: STARPU_PREFIX=\$(spack location -i starpu) ci/bootstrap.sh ...
  - Or set STARPU_SOURCE to StarPU's source, a directory or a tarball, and run this again to have it built."

# Set by starpu_find: the prefix found (empty: none), its version, and one line for each place that was refused.
STARPU_FOUND=
STARPU_FOUND_VERSION=
STARPU_REFUSED=()

starpu_version_ok() {
    [[ $1 =~ ^1\.([45])\.([0-9]+)$ ]] && ((BASH_REMATCH[1] == 5 || BASH_REMATCH[2] >= 10))
}

# The number after "#define STARPU_<NAME>" in a starpu_config.h; nothing if it isn't defined.
starpu_config_value() {
    sed -n "s/^#define STARPU_$2[[:space:]][[:space:]]*\([0-9][0-9]*\).*/\1/p" "$1"
}

# starpu_check INCLUDE_DIR LIBRARY_DIR: 0 and the version on stdout, or 1 and the reason.
starpu_check() {
    local config=$1/starpu_config.h api=${1##*/} version
    [[ -r $config && -r $1/starpu.h ]] || { echo "no StarPU headers (starpu.h, starpu_config.h) in $1"; return 1; }
    version=$(starpu_config_value "$config" MAJOR_VERSION).$(starpu_config_value "$config" MINOR_VERSION)
    version+=.$(starpu_config_value "$config" RELEASE_VERSION)
    starpu_version_ok "$version" || { echo "$1 is of version $version"; return 1; }
    [[ -r $2/libstarpu-$api.so || -r $2/libstarpu-$api.dylib ]] || { echo "no libstarpu-$api shared library in $2"; return 1; }
    [[ -r $1/starpu_mpi.h && ( -r $2/libstarpumpi-$api.so || -r $2/libstarpumpi-$api.dylib ) ]] ||
        { echo "$1 is version $version without StarPU-MPI (no starpu_mpi.h, or no libstarpumpi-$api in $2)"; return 1; }
    echo "$version"
}

# starpu_try PLACE PREFIX INCLUDE_DIR LIBRARY_DIR: records the StarPU there as found, or why it was refused.
starpu_try() {
    local answer
    if answer=$(starpu_check "$3" "$4"); then
        STARPU_FOUND=$2 STARPU_FOUND_VERSION=$answer
    else
        STARPU_REFUSED+=("$1: $answer")
        return 1
    fi
}

# StarPU's folder of headers below a prefix: the first that is there of 1.4 and 1.5, or else 1.4.
starpu_include_dir() {
    local dir=$1/include/starpu
    if [[ -e $dir/1.5 && ! -e $dir/1.4 ]]; then echo "$dir/1.5"; else echo "$dir/1.4"; fi
}

# The library directory below a prefix: lib, lib64 or Debian's lib/<architecture>.
starpu_library_dir() {
    local dir
    for dir in "$1"/lib "$1"/lib64 "$1"/lib/*-linux-gnu*; do
        compgen -G "$dir/libstarpu-1.[45].*" >/dev/null && break
        dir=$1/lib
    done
    echo "$dir"
}

# What a cached build was made with and where; a moved checkout or other options make it stale.
starpu_recipe() {
    printf '%s\n' "$STARPU_CACHE"
    starpu_options
}

# 0 and STARPU_FOUND if there is a usable StarPU. STARPU_PREFIX, when set, is the only place that counts.
starpu_find() {
    local api
    STARPU_FOUND='' STARPU_REFUSED=()
    if [[ -n ${STARPU_PREFIX:-} ]]; then
        starpu_try "STARPU_PREFIX" "$STARPU_PREFIX" \
            "$(starpu_include_dir "$STARPU_PREFIX")" "$(starpu_library_dir "$STARPU_PREFIX")" ||
            fail "STARPU_PREFIX is not usable: ${STARPU_REFUSED[0]#*: }; needed: $STARPU_NEEDED" "$STARPU_ADVICE"
        return
    fi
    for api in 1.4 1.5; do
        pkg-config --exists "starpu-$api" 2>/dev/null || continue
        starpu_try "pkg-config" "$(pkg-config --variable=prefix "starpu-$api")" \
            "$(pkg-config --variable=includedir "starpu-$api")/starpu/$api" \
            "$(pkg-config --variable=libdir "starpu-$api")" && return
    done
    if [[ -e $STARPU_CACHE ]]; then
        if [[ $(cat "$STARPU_CACHE/recipe" 2>/dev/null) == "$(starpu_recipe)" ]]; then
            starpu_try ".cache/starpu" "$STARPU_CACHE" "$(starpu_include_dir "$STARPU_CACHE")" "$STARPU_CACHE/lib" && return
        else
            STARPU_REFUSED+=(".cache/starpu: built with other options or for another directory")
        fi
    fi
    return 1
}

# Unpacks or links what the user named in STARPU_SOURCE to $STARPU_WORK/source.
starpu_take_source() {
    if [[ -d $STARPU_SOURCE ]]; then
        ln -s "$(cd "$STARPU_SOURCE" && pwd)" "$STARPU_WORK/source"
    elif [[ -r $STARPU_SOURCE ]]; then
        mkdir "$STARPU_WORK/source"
        tar -xf "$STARPU_SOURCE" -C "$STARPU_WORK/source" --strip-components=1
    else
        echo "STARPU_SOURCE=$STARPU_SOURCE is neither a directory nor a readable file"
        return 1
    fi
}

# apt-get or apt-cache with sources and lists of its own, so that the machine's stay as they are. The sandbox user is off
# because it often can't reach a checkout below someone's home.
starpu_apt() {
    timeout "$STARPU_TIME_LIMIT" "$1" -q -o Dir::Etc::SourceList="$STARPU_WORK/apt.sources" \
        -o Dir::Etc::SourceParts=/dev/null -o Dir::State::Lists="$STARPU_WORK/lists" -o Dir::Cache="$STARPU_WORK/cache" \
        -o APT::Sandbox::User= -o APT::Update::Error-Mode=any "${@:2}"
}

# The Signed-By of the configured source that apt calls FILE:NUMBER, as a deb822 field; nothing if it has none.
# NUMBER counts stanzas in a .sources file and lines in any other.
starpu_signed_by() {
    local file=${1%:*} number=${1##*:}
    if [[ $file == *.sources ]]; then
        awk -v wanted="$number" '
            /^[[:space:]]*$/ { if (inside) inside = 0; field = 0; next }
            /^#/ { next }
            { if (!inside) { inside = 1; stanza++ } }
            /^[^[:space:]]/ { field = tolower($0) ~ /^signed-by:/ }
            stanza == wanted && field { print }' "$file"
    else
        sed -n "${number}s/^[^#]*\[[^]]*signed-by=\([^] ]*\).*/Signed-By: \1/p" "$file"
    fi
}

# One line per archive of the distribution that this machine is configured with: label|codename|URI|component|FILE:NUMBER.
starpu_archives() {
    # shellcheck disable=SC2016  # apt-get expands these
    apt-get indextargets --format '$(LABEL)|$(CODENAME)|$(REPO_URI)|$(COMPONENT)|$(SOURCESENTRY)' \
        'Created-By: Packages' 'Target-Of: deb' "$@" | sed -n '/^\(Debian\|Ubuntu\)|/p' | sort -u
}

# The newest suitable version of the source package that the private lists offer, or why there is none.
starpu_offered() {
    local version newest= offered=
    while read -r version; do
        offered+=" $version"
        starpu_version_ok "${version%%[+~-]*}" && newest=$version
    done < <(starpu_apt apt-cache madison starpu | awk -F '|' '{ gsub(/ /, "", $2); print $2 }' | sort -V)
    [[ -n $newest ]] || { echo "needed: $STARPU_NEEDED; offered:${offered:- nothing}" >&2; return 1; }
    echo "$newest"
}

# The archives of the distribution, with whose addresses and keyrings its source packages are got, in $STARPU_WORK/archives.
starpu_list_archives() {
    local lists=()
    if [[ -z $(starpu_archives) ]]; then
        # Without package lists apt doesn't know whose archives these are.
        lists=(-o Dir::State::Lists="$STARPU_WORK/lists" -o Dir::Cache="$STARPU_WORK/cache" -o APT::Sandbox::User=)
        timeout "$STARPU_TIME_LIMIT" apt-get -q "${lists[@]}" update
    fi
    starpu_archives "${lists[@]}" >"$STARPU_WORK/archives"
    [[ -s $STARPU_WORK/archives ]] || { echo "apt is configured with no archive of Debian or Ubuntu"; return 1; }
}

# starpu_fetch_package SUITE: gets the suite's source package, signature checked, into $STARPU_WORK/source.
starpu_fetch_package() {
    local uri entry components version
    IFS='|' read -r _ _ uri _ entry <"$STARPU_WORK/archives"
    components=$(awk -F '|' -v uri="$uri" '$3 == uri { print $4 }' "$STARPU_WORK/archives" | sort -u | tr '\n' ' ')
    printf 'Types: deb-src\nURIs: %s\nSuites: %s\nComponents: %s\n' "$uri" "$1" "$components" >"$STARPU_WORK/apt.sources"
    starpu_signed_by "$entry" >>"$STARPU_WORK/apt.sources"
    starpu_apt apt-get update
    version=$(starpu_offered)
    cd "$STARPU_WORK"
    starpu_apt apt-get source "starpu=$version"
    mv "$STARPU_WORK"/starpu-*/ "$STARPU_WORK/source"
}

# Gets StarPU's own release into $STARPU_WORK/source.
starpu_fetch_release() {
    local sum
    timeout "$STARPU_TIME_LIMIT" python3 -c 'import shutil, sys, urllib.request
with urllib.request.urlopen(sys.argv[1], timeout=30) as answer, open(sys.argv[2], "wb") as file:
    shutil.copyfileobj(answer, file)' "$STARPU_ARCHIVE" "$STARPU_WORK/release.tar.gz"
    sum=$(sha256sum "$STARPU_WORK/release.tar.gz")
    [[ ${sum%% *} == "$STARPU_ARCHIVE_SHA256" ]] ||
        { echo "its SHA-256 is ${sum%% *}, expected $STARPU_ARCHIVE_SHA256"; return 1; }
    mkdir "$STARPU_WORK/source"
    tar -xf "$STARPU_WORK/release.tar.gz" -C "$STARPU_WORK/source" --strip-components=1
}

# starpu_attempt WHAT COMMAND [ARG...]: unless there is a source already, runs the command, and says in
# $STARPU_WORK/attempts that the source was taken, or why not.
starpu_attempt() {
    local log=$STARPU_WORK/attempt.log status reason
    [[ ! -d $STARPU_WORK/source ]] || return 0
    set +e
    (
        set -e
        "${@:2}"
    ) >"$log" 2>&1
    status=$?
    set -e
    cat "$log"
    case $status in
        0) reason=taken ;;
        124) reason="not finished after $STARPU_TIME_LIMIT s" ;;
        *) reason=$(grep -m 1 '^E: ' "$log" || tail -n 1 "$log") ;;
    esac
    [[ $status == 0 && ! -d $STARPU_WORK/source ]] || echo "$1: $reason" | tee -a "$STARPU_WORK/attempts"
}

# Gets the first suitable source. Debian's released suites are too old, so its testing suite comes first.
starpu_fetch_source() {
    local suite suites
    mkdir -p "$STARPU_WORK/lists/partial" "$STARPU_WORK/cache/archives/partial"
    touch "$STARPU_WORK/archives"
    starpu_attempt "the distribution's archives" starpu_list_archives
    suites=$(awk -F '|' '{ print ($1 == "Debian" ? "testing unstable " : "") $2; exit }' "$STARPU_WORK/archives")
    for suite in $suites; do
        starpu_attempt "$suite's source package" starpu_fetch_package "$suite"
    done
    starpu_attempt "$STARPU_ARCHIVE" starpu_fetch_release
    [[ -d $STARPU_WORK/source ]] || { echo "no source of StarPU can be had:"; cat "$STARPU_WORK/attempts"; return 1; }
}

starpu_configure() {
    local version options
    mapfile -t options < <(starpu_options)
    [[ -r $STARPU_WORK/source/configure ]] ||
        { echo "no configure script in StarPU's source; run ./autogen.sh there first"; return 1; }
    version=$(sed -n "s/^PACKAGE_VERSION='\(.*\)'/\1/p" "$STARPU_WORK/source/configure")
    starpu_version_ok "$version" || { echo "this is the source of StarPU ${version:-?}; needed: $STARPU_NEEDED"; return 1; }
    mkdir "$STARPU_WORK/build"
    cd "$STARPU_WORK/build"
    # Debian's patches leave Makefile.am newer than Makefile.in: the autotools must not start over (nor be needed).
    # StarPU 1.5 has parallel workers only with its OpenMP runtime, which 1.4 has by default.
    ../source/configure --prefix="$STARPU_CACHE" "${options[@]}" --enable-openmp ACLOCAL=: AUTOCONF=: AUTOHEADER=: AUTOMAKE=:
}

starpu_compile() {
    make -C "$STARPU_WORK/build" -j"$(nproc)"
}

# Installs beside the final place, checks the result, then renames: an interrupted build never looks like a finished one.
starpu_install() {
    local staged=$STARPU_WORK/root$STARPU_CACHE
    make -C "$STARPU_WORK/build" install DESTDIR="$STARPU_WORK/root"
    starpu_check "$(starpu_include_dir "$staged")" "$staged/lib"
    # With OpenCL, StarPU's own flags define a text whose quotes a shell's word has in another form.
    sed -i 's/ -DSTARPU_OPENCL_DATADIR=[^ ]*//' "$staged"/lib/pkgconfig/*.pc
    starpu_recipe >"$staged/recipe"
    [[ ! -e $STARPU_CACHE ]] || mv "$STARPU_CACHE" "$STARPU_WORK/replaced"
    mv "$staged" "$STARPU_CACHE"
}

STARPU_BUILD_STEPS=4

starpu_build() {
    # A running bootstrap holds the lock, so what is here was left by one that was interrupted.
    rm -rf "$STARPU_WORK"
    mkdir -p "$STARPU_WORK"
    if [[ -n ${STARPU_SOURCE:-} ]]; then
        step "StarPU: unpack $STARPU_SOURCE" starpu-source "$STARPU_ADVICE" starpu_take_source
    else
        step "StarPU: get its source" starpu-source "$STARPU_ADVICE" starpu_fetch_source
        sed "s/^/bootstrap: StarPU's source: /" "$STARPU_WORK/attempts" >&2
    fi
    step "StarPU: configure" starpu-configure "$STARPU_ADVICE" starpu_configure
    step "StarPU: compile (about a minute on two cores)" starpu-compile "$STARPU_ADVICE" starpu_compile
    step "StarPU: install into .cache/starpu" starpu-install "$STARPU_ADVICE" starpu_install
    rm -rf "$STARPU_WORK"
}
