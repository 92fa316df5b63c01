#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes docs/images/report.png and report-phone.png, which is dark: trains the demo's network, writes the report and
# looks at it in headless Chromium. Needs tools/demo and Chromium.
set -eu
cd -- "$(dirname -- "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
AMP_TRACE=$work/run.jsonl AMP_OBSERVE=every=20 tools/demo --level O2 --seeds 1 --epochs 8 --init-scale 16777216 --quiet
root=$PWD
(cd "$work" && PYTHONPATH=$root/bindings/python/libamp ${PYTHON:-python3} -c \
    'import sys; from _report.program import main; sys.exit(main())' run.jsonl -o report.html)

# shot FILE WIDTH HEIGHT SCHEME, 0 is dark and 1 is light
shot() {
    ${CHROMIUM:-chromium} --headless --no-sandbox --disable-gpu --hide-scrollbars --virtual-time-budget=4000 \
        --blink-settings=preferredColorScheme="$4" --window-size="$2,$3" --screenshot="$PWD/docs/images/$1" \
        "file://$work/report.html" 2>"$work/chromium.log" || { cat "$work/chromium.log" >&2; exit 1; }
}
shot report.png 1100 1900 1
shot report-phone.png 390 1900 0
