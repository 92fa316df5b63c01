#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Takes the ABI as it is for the one that is promised: update_baseline.sh SOURCE_ROOT LIBRARY CC...
set -eu
root=$1 library=$2
shift 2
python3 "$root/tests/abi/check_layout.py" "$root/include" "$@" --update
python3 "$root/tests/abi/check_abi.py" "$root" "$library" --update
