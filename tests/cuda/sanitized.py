#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A program of the tests on a GPU under compute-sanitizer: sanitized.py COMPUTE_SANITIZER TOOL PROGRAM. Prints TAP.

TOOL: memcheck, racecheck, initcheck, synccheck. "-REASON" in place of compute-sanitizer: skipped; without a GPU too.
With AMP_TEST_GPU=required both are failures.
"""
import os
import subprocess
import sys

FOUND = 99  # the status where the tool found something


def main():
    sanitizer, tool, program = sys.argv[1:]
    if sanitizer.startswith("-") and os.environ.get("AMP_TEST_GPU") == "required":
        print(f"1..1\nnot ok 1 - AMP_TEST_GPU=required, and {sanitizer[1:]}")
        return
    if sanitizer.startswith("-"):
        print(f"1..0 # SKIP {sanitizer[1:]}")
        return
    there = subprocess.run([program, "gpu"], stdout=subprocess.PIPE, text=True, check=False)
    if "1..0 # SKIP" in there.stdout:
        print(there.stdout.strip().splitlines()[-1])
        return
    if "not ok 1 - AMP_TEST_GPU=required" in there.stdout:
        print(there.stdout, end="")
        return
    done = subprocess.run([sanitizer, "--tool", tool, "--error-exitcode", str(FOUND), program, "gpu"],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    print(f"1..1\n{'not ok' if done.returncode else 'ok'} 1 - {tool} finds nothing")
    for line in done.stdout.splitlines() if done.returncode else ():
        print(f"# {line}")


if __name__ == "__main__":
    main()
