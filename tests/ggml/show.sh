#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The figures of docs/start/ggml.md: examples/ggml/stories.cpp with ggml alone and under levels of libamp, in turns.
#
#     tests/ggml/show.sh [TURNS]
#
# Without arguments 5 turns: 3 minutes. The medians of processor time come last. Installs and builds what is missing, in
# build/show; AMP_SHOW_BUILD names another build of libamp.
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
me=tests/ggml/show.sh
# shellcheck source=tools/setup.sh
. "$root/tools/setup.sh"

turns=${1:-5} build=${AMP_SHOW_BUILD:-}
setup_need cc c++ python3 pip cmake meson ninja pkg-config libffi jansson
setup_want onednn
setup_ggml
if [ -z "$ggml" ]; then exit 2; fi
if [ -z "$build" ]; then
    build=$root/build/show
    configure "$build" --buildtype=release -Dtests=disabled -Dexamples=disabled -Dcuda=disabled
    logged "$build/build.log" meson compile -C "$build"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
${CXX:-c++} -std=c++17 -O2 -o "$work/stories" "$root/examples/ggml/stories.cpp" "-I$root/include" \
    "-I$root/adapters/ggml" -isystem "$ggml/include" -isystem "$ggml/src" "$ggml/lib/src/libggml.a" \
    "$ggml/lib/src/libggml-cpu.a" "$ggml/lib/src/libggml-base.a" "-L$build/src" -lamp "-Wl,-rpath,$build/src" -lpthread

cd "$work"
i=0
while [ $i -lt "$turns" ]; do
    i=$((i + 1))
    while read -r options; do
        # shellcheck disable=SC2086 # words
        ./stories $options --epochs 2 --stories 16 | sed -n "s/^loss/$options|loss/p" >>said
    done <<'TEXT'

--level O0
--level O1
--level O4
--level O2 --half 1
--level O3 --half 1
--level O4 --half 1
TEXT
done
python3 - <<'TEXT'
import re, statistics
rows = {}
for line in open("said"):
    options, _, rest = line.partition("|")
    rows.setdefault(options, []).append(re.findall(r"[\d.]+(?= ms)|[\d.]+(?= MB)|(?<=loss )[\d.]+", rest))
alone = statistics.median(float(row[1]) for row in rows[""])
for options, of in rows.items():
    time = statistics.median(float(row[1]) for row in of)
    print(f"{options or 'ggml alone'}: {time:.0f} ms a step, {alone / time:.2f} times as fast, loss {of[0][0]}, "
          f"weights {of[0][2]} MB, activations {of[0][3]} MB")
TEXT
