#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the lines of "From source" in docs/start/install.md as they are written there, around a program of ours. For a
# Debian that may be changed: as root, with a network. tools/test runs it in one of its own (tools/bare.sh).
set -eu
source=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
cd "$source"
lines=$(sed -n '/^## From source$/,/^Keep /s/^    //p' docs/start/install.md)
case $lines in
*'meson install'*'cc program.c'*) ;;
*)
    echo "docs/start/install.md has other lines than this script knows: $lines"
    exit 1
    ;;
esac
apt-get update # its lists may be older than the mirror
cp tests/packaging/consumer.c program.c
sh -euxc "$lines" </dev/null
said=$(./a.out)
rm -f program.c a.out
expected=$(pkg-config --modversion libamp)
if [ "$said" != "$expected" ]; then
    echo "the program says '$said', pkg-config '$expected'"
    exit 1
fi
