# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# Sourced by tools/demo, tools/test and tools/bench, which set `root` (the repository) and `me` (their name for
# messages).
#
#   setup_need THING...   check each thing; install what is missing; exit 2, printing the command, where that fails
#   setup_want THING...   the same for things without which a check is merely skipped: a note instead of the exit
#   setup_cuda            says so if there is no CUDA compiler
#   setup_gpu             in `cuda`: the option of Meson's that builds libamp_cuda.so for the GPU that is here, or not
#                         at all
#   setup_disassembler    cuobjdump on PATH, where there is a CUDA compiler: the toolkit's, or NVIDIA's own package on
#                         PyPI
#   setup_darknet         in `darknet`: the folder of libdarknet.so, if it is not where Debian has it; empty without it
#   setup_ggml            in `ggml`: the folder of ggml's sources, built in its lib/; empty if they cannot be had
#   configure DIR ARG...  meson setup, anew only when something about it changed
#   logged LOG CMD...     run quietly; show the log's end if it fails
#
# Nothing is installed and the network is not touched when nothing is missing. All messages go to stderr.

: "${root:?tools/setup.sh is sourced with root set}" "${me:?tools/setup.sh is sourced with me set}"

say() { printf '%s: %s\n' "$me" "$*" >&2; }

have() { command -v "$1" >/dev/null 2>&1; }

# at_least 1.10.2 1.9
at_least() {
    printf '%s %s\n' "$1" "$2" | awk '{
        n = split($1, a, /[^0-9]+/); m = split($2, b, /[^0-9]+/)
        for (i = 1; i <= n || i <= m; i++) if (a[i] + 0 != b[i] + 0) exit !(a[i] + 0 > b[i] + 0)
    }'
}

# Does this C or C++ compiler (words: it may be "ccache gcc") work, with headers? compiles "gcc" c stdlib.h
compiles() {
    # shellcheck disable=SC2086 # $1 may carry arguments
    printf '#include <%s>\n' "$3" | $1 -x "$2" -fsyntax-only - >/dev/null 2>&1
}

# Without pkg-config itself a library counts as missing: it cannot be found.
library() { have "${PKG_CONFIG:-pkg-config}" && "${PKG_CONFIG:-pkg-config}" --atleast-version="$2" "$1" 2>/dev/null; }

# ---- what is needed: one line a thing --------------------------------------------------------------------------------

present() {
    case $1 in
    cc) find_cc ;;
    gcc) compiles gcc c stdlib.h ;;
    clang) compiles clang c stdlib.h ;;
    c++) compiles g++ c++ cstddef || compiles c++ c++ cstddef || compiles clang++ c++ cstddef ;;
    meson) have meson && at_least "$(meson --version 2>/dev/null || echo 0)" 1.0.1 ;;
    ninja) have ninja || have ninja-build || have samu ;;
    pkg-config) have "${PKG_CONFIG:-pkg-config}" ;;
    libffi) library libffi 3.4 ;;
    jansson) library jansson 2.11 ;;
    onednn) compiles gcc c oneapi/dnnl/dnnl.h ;;
    zlib) library zlib 1.2 ;;
    check) library check 0.11 ;;
    dlpack) compiles gcc c dlpack/dlpack.h ;;
    cblas) compiles gcc c cblas.h ;;
    jsonschema) have python3 && python3 -c 'import jsonschema' 2>/dev/null ;;
    mpi) have mpirun && library ompi-c 3 ;;
    python3) have python3 && python3 -c 'import sys; sys.exit(sys.version_info < (3, 7))' 2>/dev/null ;;
    pip) have python3 && python3 -c 'import pip' 2>/dev/null ;;
    pycparser) have python3 && python3 -c 'import pycparser' 2>/dev/null ;;
    python-venv) have python3 && python3 -c 'import venv, ensurepip' 2>/dev/null ;;
    python-dev)
        have python3 &&
            [ -f "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ] ;;
    binutils) have nm && have readelf && have objcopy ;;
    sanitizers) links_sanitizers ;;
    cuda) at_least "$(cuda_version)" 12.4 ;;
    cmake) have cmake && have make ;;
    git | doxygen | abidiff | valgrind | debootstrap | rustc | gfortran) have "$1" ;;
    libfuzzer) links_libfuzzer ;;
    arm64) compiles aarch64-linux-gnu-gcc c stdlib.h && have qemu-aarch64 ;;
    qemu-user) have qemu-x86_64 ;;
    musl) have musl-gcc || have zig ;;
    *) say "tools/setup.sh: unknown thing '$1'"; exit 2 ;;
    esac
}

describe() {
    case $1 in
    cc) echo "a C compiler (gcc or clang)" ;;
    c++) echo "a C++ compiler" ;;
    meson) echo "meson >= 1.0.1" ;;
    libffi) echo "libffi >= 3.4 with headers" ;;
    jansson) echo "jansson >= 2.11 with headers" ;;
    onednn) echo "oneDNN >= 2 with headers" ;;
    zlib) echo "zlib with headers" ;;
    check) echo "check (the C test framework)" ;;
    dlpack) echo "<dlpack/dlpack.h>" ;;
    cblas) echo "<cblas.h>" ;;
    jsonschema) echo "Python's jsonschema" ;;
    mpi) echo "Open MPI with headers" ;;
    python3) echo "python3 >= 3.7" ;;
    pip) echo "Python's pip" ;;
    pycparser) echo "Python's pycparser" ;;
    python-venv) echo "Python's venv and ensurepip" ;;
    python-dev) echo "<Python.h>" ;;
    binutils) echo "nm, readelf and objcopy" ;;
    arm64) echo "a cross compiler for arm64, and qemu-aarch64" ;;
    doxygen) echo "doxygen >= 1.9" ;;
    abidiff) echo "abidiff and abidw (libabigail)" ;;
    sanitizers) echo "gcc's sanitizers" ;;
    libfuzzer) echo "clang's libFuzzer" ;;
    cmake) echo "CMake and make" ;;
    musl) echo "a compiler for musl" ;;
    *) echo "$1" ;;
    esac
}

# packages THING MANAGER: apt-get is tried in CI, the others are given as best we know.
packages() {
    case $2:$1 in
    apt-get:cc | apt-get:gcc | apt-get:sanitizers) echo gcc libc6-dev ;;
    apt-get:clang) echo clang libc6-dev ;;
    apt-get:libfuzzer) echo "clang libclang-rt-$(clang_major)-dev" ;;
    dnf:libfuzzer | pacman:libfuzzer | apk:libfuzzer) echo clang compiler-rt ;;
    apt-get:c++) echo g++ ;;
    apt-get:arm64) echo gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user ;;
    apt-get:ninja) echo ninja-build ;;
    apt-get:musl) echo musl-tools ;;
    dnf:musl) echo musl-gcc ;;
    *:cmake) echo cmake make ;; # which is only recommended
    pacman:pip) echo python-pip ;;
    apk:pip) echo py3-pip ;;
    *:pip) echo python3-pip ;;
    pacman:pycparser) echo python-pycparser ;;
    apk:pycparser) echo py3-pycparser ;;
    *:pycparser) echo python3-pycparser ;;
    apt-get:python-venv) echo python3-venv ;;
    apt-get:python-dev) echo python3-dev ;;
    dnf:python-dev | zypper:python-dev) echo python3-devel ;;
    apk:python-dev) echo python3-dev ;;
    pacman:python-venv | pacman:python-dev) echo python ;;
    *:python-venv) echo python3 ;;
    apt-get:libffi) echo libffi-dev ;;
    apt-get:jansson) echo libjansson-dev ;;
    apt-get:onednn) echo libdnnl-dev ;;
    dnf:onednn) echo onednn-devel ;;
    zypper:onednn) echo onednn-devel ;;
    apk:onednn) echo onednn-dev ;;
    zypper:jansson) echo libjansson-devel ;;
    apt-get:zlib) echo zlib1g-dev ;;
    apt-get:dlpack) echo libdlpack-dev ;;
    apt-get:cblas) echo libblas-dev ;;
    dnf:cblas | zypper:cblas) echo blas-devel ;;
    pacman:cblas) echo cblas ;;
    apk:cblas) echo openblas-dev ;;
    pacman:jsonschema) echo python-jsonschema ;;
    apk:jsonschema) echo py3-jsonschema ;;
    *:jsonschema) echo python3-jsonschema ;;
    apt-get:mpi) echo libopenmpi-dev openmpi-bin ;;
    dnf:mpi) echo openmpi-devel ;;
    pacman:mpi) echo openmpi ;;
    zypper:mpi) echo openmpi4-devel ;;
    apk:mpi) echo openmpi-dev openmpi ;;
    dnf:cc | dnf:gcc) echo gcc glibc-devel ;;
    dnf:sanitizers) echo libasan libubsan ;;
    dnf:ninja) echo ninja-build ;;
    dnf:pkg-config) echo pkgconf-pkg-config ;;
    pacman:cc | pacman:c++ | pacman:sanitizers) echo gcc ;;
    pacman:libffi) echo libffi ;;
    pacman:pkg-config) echo pkgconf ;;
    pacman:python3) echo python ;;
    pacman:zlib | pacman:check | pacman:jansson) echo "$1" ;;
    zypper:cc | zypper:gcc | zypper:sanitizers) echo gcc glibc-devel ;;
    dnf:c++ | zypper:c++) echo gcc-c++ ;;
    apk:cc | apk:gcc | apk:sanitizers) echo gcc musl-dev ;;
    apk:c++) echo g++ ;;
    apk:ninja) echo samurai ;;
    apk:pkg-config) echo pkgconf ;;
    dnf:libffi | zypper:libffi | dnf:zlib | zypper:zlib | dnf:check | zypper:check | dnf:dlpack) echo "$1-devel" ;;
    dnf:jansson) echo jansson-devel ;;
    apk:libffi | apk:zlib | apk:check | apk:jansson) echo "$1-dev" ;;
    apt-get:abidiff) echo abigail-tools ;;
    dnf:rustc | pacman:rustc | zypper:rustc | apk:rustc) echo rust ;;
    dnf:gfortran) echo gcc-gfortran ;;
    pacman:gfortran | zypper:gfortran) echo gcc-fortran ;;
    dnf:abidiff | pacman:abidiff | zypper:abidiff | apk:abidiff) echo libabigail ;;
    *) echo "$1" ;;
    esac
}

# A compiler that the user chose is respected: if it does not work, that is an error, not a reason to take another.
find_cc() {
    if [ -n "${CC:-}" ]; then
        compiles "$CC" c stdlib.h && return
        say "the compiler named by CC does not work: CC='$CC'. Correct or unset CC."
        exit 2
    fi
    for candidate in cc gcc clang; do
        if compiles "$candidate" c stdlib.h; then
            CC=$candidate
            export CC
            return
        fi
    done
    return 1
}

# Of nvcc where Meson looks for it; 0: there is none.
cuda_version() {
    for nvcc in nvcc /usr/local/cuda/bin/nvcc /opt/cuda/bin/nvcc; do
        if have "$nvcc"; then
            "$nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\),.*/\1/p'
            return
        fi
    done
    echo 0
}

clang_major() { clang -dumpversion 2>/dev/null | cut -d. -f1; }

links_libfuzzer() {
    scratch=$(mktemp) || return 1
    if echo '#include <stddef.h>
int LLVMFuzzerTestOneInput(const char *data, size_t size); int LLVMFuzzerTestOneInput(const char *data, size_t size) {
return data && size > (size_t)-2; }' |
        clang -fsanitize=fuzzer,address,undefined -x c -o "$scratch" - >/dev/null 2>&1; then code=0; else code=1; fi
    rm -f "$scratch"
    return $code
}

links_sanitizers() {
    scratch=$(mktemp) || return 1
    if echo 'int main(void) { return 0; }' |
        gcc -fsanitize=address,undefined -x c -o "$scratch" - >/dev/null 2>&1; then code=0; else code=1; fi
    rm -f "$scratch"
    return $code
}

# ---- installing ------------------------------------------------------------------------------------------------------

missing_of() {
    for thing; do
        present "$thing" || echo "$thing"
    done
}

package_manager() {
    for manager in apt-get dnf pacman zypper apk; do
        if have "$manager"; then
            echo "$manager"
            return
        fi
    done
}

# The commands a user would type, with `prefix` ("sudo " or nothing) before each.
install_command() { # MANAGER PACKAGE...
    manager=$1
    shift
    case $manager in
    apt-get) echo "${prefix}apt-get update && ${prefix}apt-get install -y --no-install-recommends $*" ;;
    dnf) echo "${prefix}dnf install -y $*" ;;
    pacman) echo "${prefix}pacman -S --needed --noconfirm $*" ;;
    zypper) echo "${prefix}zypper --non-interactive install $*" ;;
    apk) echo "${prefix}apk add $*" ;;
    esac
}

# sudo asks for the password on a terminal and fails at once elsewhere.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif ! have sudo; then
        echo "not root, and there is no sudo"
        return 1
    elif [ -t 0 ]; then
        sudo "$@"
    else
        sudo -n "$@"
    fi
}

updated='' # the lists of packages are fetched once a run
install_packages() { # MANAGER PACKAGE...
    manager=$1
    shift
    case $manager in
    apt-get)
        if [ -z "$updated" ]; then
            as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 update || true
            updated=true
        fi
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 \
            install -y --no-install-recommends "$@"
        ;;
    dnf) as_root dnf install -y "$@" ;;
    pacman) as_root pacman -S --needed --noconfirm "$@" ;;
    zypper) as_root zypper --non-interactive install "$@" ;;
    apk) as_root apk add "$@" ;;
    esac
}

# Installs what of THING... is missing; leaves in `still` what is missing afterwards and in `hint` the exact command.
setup_install() {
    still=$(missing_of "$@")
    if [ -z "$still" ]; then return; fi
    manager=$(package_manager)
    names=$(for thing in $still; do packages "$thing" "${manager:-apt-get}"; done | tr ' ' '\n' | sort -u | tr '\n' ' ')
    names=${names% }
    prefix=
    if [ "$(id -u)" != 0 ]; then prefix='sudo '; fi
    # shellcheck disable=SC2086 # $names is a list
    hint=$(install_command "${manager:-apt-get}" $names)
    if [ -z "$manager" ]; then
        reason="there is no package manager that this script knows; with Debian's names the command is"
        return
    fi
    mkdir -p "$root/build"
    install_log=$root/build/install.log
    say "installing: $names"
    # shellcheck disable=SC2086
    if install_packages "$manager" $names >"$install_log" 2>&1; then
        reason="$manager succeeded, but what it has is missing or too old; the command was"
    else
        reason="$manager failed ($(tail -n 1 "$install_log"); all of it in $install_log); run"
    fi
    still=$(missing_of "$@")
}

describe_all() {
    list=
    for thing; do
        list="$list${list:+, }$(describe "$thing")"
    done
    echo "$list"
}

setup_need() {
    if ! have awk || ! have id; then
        say "awk and id are needed, which every system has: is PATH right? PATH='$PATH'"
        exit 2
    fi
    if wants_cc "$@"; then find_cc || true; fi # here, not in a subshell: it sets CC, or stops
    setup_install "$@"
    if [ -n "$still" ]; then
        # shellcheck disable=SC2086
        say "missing: $(describe_all $still)"
        say "$reason:"
        printf '    %s\n' "$hint" >&2
        exit 2
    fi
    if wants_cc "$@"; then find_cc; fi
}

wants_cc() {
    case " $* " in *' cc '*) return 0 ;; *) return 1 ;; esac
}

# All at once, which is quicker; then, since one that cannot be had fails all, what is left one by one.
setup_want() {
    setup_install "$@"
    if [ -z "$still" ]; then return; fi
    left=$still
    for thing in $left; do
        if [ "$left" != "$thing" ]; then setup_install "$thing"; fi
        if [ -n "$still" ]; then
            say "going on without $(describe "$thing") (to have it: $hint)"
        fi
    done
}

# CUDA's compiler is too old in the distributions, or not there: it is never installed, only spoken of.
setup_cuda() {
    if ! present cuda; then
        say "going on without nvcc 12.4 or later, which is optional: libamp_cuda.so is not built, its tests are" \
            "skipped (to have it: NVIDIA's CUDA toolkit, in /usr/local/cuda, or its nvcc on PATH)"
    fi
}

# nvcc takes minutes for every kind.
setup_gpu() {
    archs=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d '. ' | sort -u |
        paste -sd, - || true)
    # shellcheck disable=SC2034 # the callers'
    case $archs in
    '' | *[!0-9,]*) cuda=-Dcuda=disabled ;;
    *) cuda=-Dgpu_archs=$archs ;;
    esac
}

# Toolkits are installed without it where space is scarce. NVIDIA's package on PyPI has it, and reads what older
# toolkits made.
setup_disassembler() {
    tools=$root/build/cuda-tools log=$root/build/cuda-tools.log
    if ! present cuda || { have cuobjdump && have nvdisasm; } || [ -x /usr/local/cuda/bin/cuobjdump ]; then return; fi
    if ! disassembler_there; then
        say "installing: nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm (in build/cuda-tools)"
        mkdir -p "$root/build"
        rm -rf "$tools"
        { python3 -m venv "$tools" && "$tools/bin/python" -m pip install --disable-pip-version-check --no-input \
            nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm; } >"$log" 2>&1 || rm -rf "$tools"
    fi
    if disassembler_there; then
        PATH=$disassembler:$PATH
        export PATH
    else
        say "going on without cuobjdump: of the kernels PTX is tested, and not the instructions" \
            "(the installation's log is $log)"
    fi
}

# Its folder in `disassembler`.
disassembler_there() {
    for disassembler in "$tools"/lib/python3*/site-packages/nvidia/*/bin; do
        if [ -x "$disassembler/cuobjdump" ] && [ -x "$disassembler/nvdisasm" ]; then return; fi
    done
    return 1
}

# fetched NAME FILE WORDS SKIPPED REMEDY: is FILE there? Else fetch_NAME makes it, in build/NAME.
fetched() {
    if [ ! -f "$2" ]; then
        say "fetching: $3 (in build/$1)"
        rm -rf "$root/build/$1"
        mkdir -p "$root/build/$1"
        "fetch_$1" >"$root/build/$1.log" 2>&1 || rm -rf "$root/build/$1"
    fi
    if [ -f "$2" ]; then return; fi
    say "going on without $3, which is optional: $4 (to have it: $5)"
    return 1
}

# Debian's package brings OpenCV, 75 MB and a minute for the sake of windows and pictures. So it is only unpacked, and
# finds empty libraries by those names: calls into them are bound when they are made, and a training makes none.
setup_darknet() {
    darknet='' unpacked=$root/build/darknet/usr/lib/darknet
    if [ ! -f /usr/lib/darknet/include/darknet.h ] && fetched darknet "$unpacked/include/darknet.h" darknet \
        "libamp_darknet.so is not built, its tests are skipped" "Debian's package darknet"; then
        # shellcheck disable=SC2034 # the callers'
        darknet=$unpacked
    fi
}

fetch_darknet() {
    (cd "$root/build/darknet" && apt-get download darknet && dpkg-deb -x darknet_*.deb .) || return
    for name in $(LC_ALL=C readelf -d "$unpacked/libdarknet.so" | sed -n 's/.*(NEEDED).*\[\(libopencv_.*\)\]/\1/p'); do
        ${CC:-cc} -shared -x c /dev/null -o "$unpacked/$name" "-Wl,-soname,$name" || return
    done
}

# Debian 12 has no ggml. The source package of ggml-python has it: 3.4 MB. GGML_LLAMAFILE: FP32 products of llama.cpp.
setup_ggml() {
    ggml='' ggml_python=0.0.45 there=$root/build/ggml
    if fetched ggml "$there/lib/src/libggml.a" "ggml-python $ggml_python" "the tests of amp_ggml.hpp are skipped" \
        "a package index for pip, CMake and a C++ compiler"; then
        # shellcheck disable=SC2034 # the callers'
        ggml=$there
    fi
}

fetch_ggml() (
    python3 -m pip download --disable-pip-version-check --no-input --no-deps --no-binary ggml-python -d "$there" \
        "ggml-python==$ggml_python" && cd "$there" &&
        tar -xzf ggml_python-*.tar.gz --strip-components=3 "ggml_python-$ggml_python/vendor/ggml" &&
        cmake -S "$there" -B "$there/lib" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
            -DGGML_OPENMP=OFF -DGGML_LLAMAFILE=ON -DGGML_CPU_REPACK=OFF -DGGML_BUILD_TESTS=OFF \
            -DGGML_BUILD_EXAMPLES=OFF &&
        cmake --build "$there/lib" --target ggml
)

# ---- building --------------------------------------------------------------------------------------------------------

logged() {
    log=$1
    shift
    if "$@" >"$log" 2>&1 </dev/null; then return; fi
    if grep -q 'KeyboardInterrupt\|interrupted by user' "$log"; then # Ctrl-C: Meson's traceback says nothing more
        say "interrupted: $*"
        exit 130
    fi
    tail -n 40 "$log" >&2
    say "failed: $*"
    say "the whole log is $log"
    return 1
}

# A build folder is used again as long as sources, compiler, Meson and options are what it was configured with; Meson
# itself notices changed build files.
configure() {
    dir=$1
    shift
    stamp="$root|${CC:-}|${CXX:-}|${CFLAGS:-}|${LDFLAGS:-}|${PKG_CONFIG_PATH:-}|$(meson --version)"
    stamp="$stamp|$(command -v cuobjdump || true)|$*"
    if [ -f "$dir/build.ninja" ] && [ "$(cat "$dir/.configured-with" 2>/dev/null)" = "$stamp" ]; then return; fi
    rm -rf "$dir"
    mkdir -p "$dir"
    # Without dpkg-dev Meson takes Debian for a system with lib64, where its CMake and linker do not look.
    if [ -e /etc/debian_version ] && ! have dpkg-architecture; then set -- --libdir=lib "$@"; fi
    logged "$dir/setup.log" meson setup "$dir" "$root" "$@" || return
    printf '%s\n' "$stamp" >"$dir/.configured-with"
}
