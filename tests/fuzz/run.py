#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs one fuzzer for AMP_FUZZ_SECONDS (default 5) on its corpus: run.py FUZZER CORPUS FOLDER

New inputs stay in FOLDER/new, where the next run goes on; what fails is FOLDER/crash-... and fails this test. The seed
is AMP_FUZZ_SEED's, by default that of the commit: a commit tries what the last one did not, and about the first 4,000
inputs are the same each time. 0 is another run each time, for long ones."""

import base64
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from commit_seed import commit_seed  # noqa: E402  pylint: disable=wrong-import-position


def fixed_addresses():
    """What a fuzzer learns from an input depends on addresses: these are the same each time, where that is allowed."""
    command = [shutil.which("setarch"), "-R"]
    if not command[0] or subprocess.run([*command, "true"], capture_output=True, check=False).returncode != 0:
        return []
    return command


def again(fuzzer, command, output):
    """The command that repeats a failure on any machine that built the fuzzer: the input is in it, because a log of CI
    is all that is left of a run there. Without an input it is the whole run's."""
    written = re.search(r"Test unit written to (.+)", output)
    if not written:
        return shlex.join(command)
    data = base64.b64encode(pathlib.Path(written.group(1)).read_bytes()).decode()
    return f"echo {data} | base64 -d >input; {shlex.quote(fuzzer)} input"


def main():
    fuzzer, corpus, folder = sys.argv[1:]
    seconds = os.environ.get("AMP_FUZZ_SECONDS") or "5"
    if not seconds.isdecimal():
        print(f"1..1\nnot ok 1 - AMP_FUZZ_SECONDS is '{seconds}', which is no number of seconds")
        return 1
    seed = os.environ.get("AMP_FUZZ_SEED") or str(commit_seed())
    if not seed.isdecimal():
        print(f"1..1\nnot ok 1 - AMP_FUZZ_SEED is '{seed}', which is no number")
        return 1
    if int(seconds) == 0:
        print("1..0 # SKIP AMP_FUZZ_SECONDS is 0")
        return 0
    new = os.path.join(folder, "new")
    os.makedirs(new, exist_ok=True)
    command = [] if seed == "0" else fixed_addresses()
    command += [fuzzer, f"-max_total_time={seconds}", f"-seed={seed}", "-max_len=4096", "-timeout=60",
                "-rss_limit_mb=4096", "-print_final_stats=1", f"-artifact_prefix={folder}{os.sep}", new, corpus]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace", check=False)
    done = re.search(r"number_of_executed_units: (\d+)", run.stdout)
    edges = re.findall(r"cov: (\d+)", run.stdout)
    ok = run.returncode == 0 and done and int(done.group(1)) > 0
    print(f"1..1\n{'ok' if ok else 'not ok'} 1 - {done.group(1) if done else 0} inputs in {seconds} s from seed "
          f"{seed}, {edges[-1] if edges else 0} edges")
    if not ok:
        lines = run.stdout.splitlines()
        said = next((i for i, line in enumerate(lines) if re.match(r"==\d+== ?ERROR", line)), len(lines))
        lines = lines[-60:] + lines[max(said - 2, 0):said + 1]  # the reason at the end, where a long log is cut least
        print("\n".join("# " + line[:500] for line in lines))
        print(f"# again: {again(fuzzer, command, run.stdout)}")
        print(f"# all of it: AMP_FUZZ_SEED={seed} AMP_FUZZ_SECONDS={seconds} {shlex.join([sys.executable, *sys.argv])}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
