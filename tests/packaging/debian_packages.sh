#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the packages of debian/, shows them to lintian, installs them, and compiles and runs the programs that came
# with them. For a Debian that may be changed: as root, with a network. tools/test --bare runs it in one of its own,
# tools/release each half in another.
#
#   debian_packages.sh               both, and nothing is left
#   debian_packages.sh build FOLDER  leaves in FOLDER what dpkg-buildpackage makes
#   debian_packages.sh try FOLDER    installs the packages in FOLDER
set -eu
export DEBIAN_FRONTEND=noninteractive
source=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)

# In a folder of one name, so that no path differs.
build() {
    work=$1/work
    mkdir -p "$work/libamp" # packages are left beside their source
    tar -C "$source" --exclude=./build --exclude=./.git -cf - . | tar -C "$work/libamp" -xf -
    apt-get update
    apt-get install -y --no-install-recommends dpkg-dev lintian
    apt-get build-dep -y --no-install-recommends "$work/libamp"
    (
        cd "$work/libamp"
        dpkg-buildpackage -us -uc
        lintian --fail-on error,warning --allow-root ../libamp_*.changes
    )
    mv "$work"/libamp*_* "$1/"
    rm -rf "$work"
}

try() {
    apt-get update
    apt-get install -y --no-install-recommends "$1"/libamp0_*.deb "$1"/libamp-dev_*.deb "$1"/libamp-plugins_*.deb g++ \
        pkg-config
    sh "$source/debian/tests/examples"
}

case ${1:-both} in
build) build "$2" ;;
try) try "$2" ;;
both)
    folder=$(mktemp -d)
    build "$folder"
    try "$folder"
    rm -rf "$folder"
    ;;
esac
