#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The figures of README.md: a trainer of darknet's on the digits, as it is and under levels of libamp.
#
#     tests/darknet/show.sh [STEPS [SEED [LEVEL...]]]
#
# Without arguments 200 steps, seed 1, level O4: 20 seconds. Installs and builds what is missing, in build/show;
# AMP_SHOW_BUILD names another build, which has libamp_darknet.so already, and AMP_SHOW_DARKNET the folder of its
# libdarknet.so.
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
me=tests/darknet/show.sh
# shellcheck source=tools/setup.sh
. "$root/tools/setup.sh"

steps=${1:-200} seed=${2:-1}
shift $(($# < 2 ? $# : 2))
if [ $# -eq 0 ]; then set -- O4; fi

work=$root/build/show build=${AMP_SHOW_BUILD:-} darknet=${AMP_SHOW_DARKNET:-}
if [ -z "$build" ]; then
    build=$work
    setup_need cc python3 meson ninja pkg-config libffi jansson
    setup_want onednn
    setup_darknet
    if [ ! -f "${darknet:-/usr/lib/darknet}/include/darknet.h" ]; then exit 2; fi
    if [ ! -e "$build/adapters/darknet/libamp_darknet.so" ]; then say "building in build/show"; fi
    configure "$build" --buildtype=release -Dtests=disabled -Dexamples=disabled -Dcuda=disabled \
        ${darknet:+"-Ddarknet_root=$darknet"}
    logged "$build/build.log" meson compile -C "$build"
else
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
fi
: "${darknet:=/usr/lib/darknet}"

cd "$work"
python3 -c 'import gzip, sys; sys.stdout.buffer.write(gzip.open(sys.argv[1]).read())' \
    "$root/examples/data/digits.csv.gz" >digits.csv
cp "$root/tests/darknet/wide.cfg" digits.cfg
${CC:-cc} -O2 -o digits "$root/tests/darknet/digits.c" -isystem "$darknet/include" "-L$darknet" -ldarknet \
    "-Wl,-rpath,$darknet,--disable-new-dtags,--allow-shlib-undefined" -lm

# train [LEVEL]. darknet lists the network's layers on standard error, libamp_darknet what it did.
train() {
    echo "\$ ${1:+AMP_LEVEL=$1 LD_PRELOAD=libamp_darknet.so }./digits digits.cfg digits.csv $steps $seed"
    if [ $# -gt 0 ]; then set -- AMP_LEVEL="$1" LD_PRELOAD="$build/adapters/darknet/libamp_darknet.so"; fi
    # shellcheck disable=SC2016 # for the shell inside
    env LD_LIBRARY_PATH="$darknet" "$@" sh -c './digits digits.cfg digits.csv "$1" "$2" && times' sh "$steps" "$seed" \
        >said 2>errors || { cat errors; exit 1; }
    sed -n '/^libamp/p' errors
    sed -n '1p' said
    sed -n '$s/^\([0-9]*m[0-9]*[.][0-9][0-9]\).*/user \1s/p' said
}

train
for level; do train "$level"; done
