#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs one fuzzer for AMP_FUZZ_SECONDS (default 5) on its corpus: run.py FUZZER CORPUS FOLDER

New inputs stay in FOLDER/new, where the next run goes on; what fails is FOLDER/crash-... and fails this test. AMP_FUZZ_SEED
(default 2) makes a short run repeatable, so that it speaks of the change and not of luck: about the first 4,000 inputs are the
same each time. 0 is another run each time, for long ones."""

import os
import re
import shutil
import subprocess
import sys


def fixed_addresses():
    """What a fuzzer learns from an input depends on addresses: these are the same each time, where that is allowed."""
    command = [shutil.which("setarch"), "-R"]
    if not command[0] or subprocess.run([*command, "true"], capture_output=True, check=False).returncode != 0:
        return []
    return command


def main():
    fuzzer, corpus, folder = sys.argv[1:]
    seconds = os.environ.get("AMP_FUZZ_SECONDS") or "5"
    if not seconds.isdecimal():
        print(f"1..1\nnot ok 1 - AMP_FUZZ_SECONDS is '{seconds}', which is no number of seconds")
        return 1
    seed = os.environ.get("AMP_FUZZ_SEED") or "2"
    if not seed.isdecimal():
        print(f"1..1\nnot ok 1 - AMP_FUZZ_SEED is '{seed}', which is no number")
        return 1
    if int(seconds) == 0:
        print("1..0 # SKIP AMP_FUZZ_SECONDS is 0")
        return 0
    new = os.path.join(folder, "new")
    os.makedirs(new, exist_ok=True)
    command = [] if seed == "0" else fixed_addresses()
    command += [fuzzer, f"-max_total_time={seconds}", f"-seed={seed}", "-max_len=4096", "-timeout=60", "-rss_limit_mb=4096",
                "-print_final_stats=1", f"-artifact_prefix={folder}{os.sep}", new, corpus]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace", check=False)
    done = re.search(r"number_of_executed_units: (\d+)", run.stdout)
    edges = re.findall(r"cov: (\d+)", run.stdout)
    ok = run.returncode == 0 and done and int(done.group(1)) > 0
    print("1..1")
    if not ok:
        print("\n".join("# " + line for line in run.stdout.splitlines()[-60:]))
    print(f"{'ok' if ok else 'not ok'} 1 - {done.group(1) if done else 0} inputs in {seconds} s, "
          f"{edges[-1] if edges else 0} edges")
    return 0 if ok else 1


sys.exit(main())
