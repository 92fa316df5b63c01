#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What needs a GPU and finds none is skipped, and fails with AMP_TEST_GPU=required: test_required.py SANITIZED
PROGRAM... Prints TAP."""
import os
import pathlib
import subprocess
import sys
import tempfile


def run(command, folder, required):
    environment = {**os.environ, "LD_LIBRARY_PATH": folder, "AMP_TEST_GPU": "required" if required else ""}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    skipped, failed = "1..0 # SKIP" in done.stdout, "not ok 1 - AMP_TEST_GPU=required" in done.stdout
    return (failed and not skipped) if required else (skipped and not failed and done.returncode == 0)


def main():
    sanitized, *programs = sys.argv[1:]
    commands = [[program, "gpu"] for program in programs]
    commands += [[sys.executable, sanitized, "-there is no compute-sanitizer", "memcheck", programs[0]],
                 [sys.executable, sanitized, "compute-sanitizer", "memcheck", programs[0]]]
    cases = [(command, required) for command in commands for required in (False, True)]
    print(f"1..{len(cases)}")
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "libcuda.so.1").write_text("no driver", encoding="utf-8")  # found first, and not loaded
        for number, (command, required) in enumerate(cases, 1):
            good = run(command, folder, required)
            what = " ".join(os.path.basename(word) for word in command)
            print(f"{'ok' if good else 'not ok'} {number} - {what}, {'required' if required else 'skipped'}")


if __name__ == "__main__":
    main()
