#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the packages of debian/, shows them to lintian, installs them, and compiles and runs the programs that came
# with them. For a Debian that may be changed: as root, with a network. tools/test --bare runs it in one of its own.
set -eu
export DEBIAN_FRONTEND=noninteractive
source=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
work=$(mktemp -d)
mkdir "$work/libamp" # packages are left beside their source
tar -C "$source" --exclude=./build --exclude=./.git -cf - . | tar -C "$work/libamp" -xf -

apt-get update
apt-get install -y --no-install-recommends dpkg-dev lintian
apt-get build-dep -y --no-install-recommends "$work/libamp"
cd "$work/libamp"
dpkg-buildpackage -us -uc
lintian --fail-on error,warning --allow-root ../libamp_*.changes
apt-get install -y --no-install-recommends ../libamp0_*.deb ../libamp-dev_*.deb ../libamp-plugins_*.deb g++ pkg-config
sh debian/tests/examples
rm -rf "$work"
