#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bytes that two ranks send for an average, counted by Open MPI: test_bytes.py BENCH_FOLDER PROGRAM. Prints TAP.

Those of a ring: half of the gradients' to the other rank, twice; in 16 bits half as many. Beyond them a mark for each
of the 16 gradients and the measurement's own numbers: less than 256 bytes.
"""
import os
import shutil
import sys

sys.path.insert(0, sys.argv[1])
from run import counted, measure  # noqa: E402

WIDTH, SLACK = "64", 256


def main():
    if os.environ.get("AMP_TEST_SHORT"):
        print("1..0 # SKIP the build without sanitizers runs it")
        return
    if not shutil.which("mpirun"):
        print("1..0 # SKIP no mpirun: openmpi-bin on Debian")
        return
    works = measure(sys.argv[2], WIDTH, "1", 2)
    print(f"{'ok' if len(works) == 9 else 'not ok'} 1 - nine works are measured")
    number = 1
    for work in (1, 3):
        number += 1
        sends, theory = counted(sys.argv[2], WIDTH, 2, work), float(works[work][3])
        good = theory > 0.0 and theory <= sends < theory + SLACK
        print(f"{'ok' if good else 'not ok'} {number} - {works[work][0]}: {sends:.0f} bytes, {theory:.0f} in theory")
    print(f"1..{number}")


if __name__ == "__main__":
    main()
