#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the seed of the fuzzers and of the model's sequences: the first seven hex digits of the commit, so that each
commit tries other inputs and repeats its own. Without git it is FIXED."""
import pathlib
import subprocess

FIXED = 2


def commit_seed(folder=pathlib.Path(__file__).parent):
    command = ["git", "-c", "safe.directory=*", "-C", str(folder), "rev-parse", "HEAD"]
    try:
        said = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return FIXED
    return int(said[:7], 16) or FIXED  # libFuzzer takes 32 bits, and 0 for another seed each time


if __name__ == "__main__":
    print(commit_seed())
