#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""run.py around fuzzers that are scripts: whose seed it takes, and does what it prints repeat a failure?"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "packaging"), str(HERE.parent / "support")]
from commit_seed import FIXED, commit_seed  # noqa: E402  pylint: disable=wrong-import-position
from support import Tap, expect, scratch  # noqa: E402  pylint: disable=wrong-import-position

GOOD = 'echo "#2 INITED cov: 7 ft: 8"; echo stat::number_of_executed_units: 9'
# As libFuzzer: what fails is written to a file, as long as inputs may be. Given that file alone it fails as well.
BAD = """case $1 in
-*) for each; do case $each in -artifact_prefix=*) folder=${each#*=} ;; -seed=*) seed=${each#*=} ;; esac; done ;;
*) grep -q "fails" "$1" && echo the same failure && exit 77; exit 0 ;;
esac
{ head -c 4000 /dev/zero; echo "fails with $seed"; } >"${folder}crash-1"
echo "Test unit written to ${folder}crash-1"
echo "the reason"; echo "==1== ERROR: deadly signal"; seq 200
"""


def fuzz(folder, name, text, **environment):
    program = folder / name
    program.write_text(f"#!/bin/sh\n{text}\nexit {0 if text == GOOD else 77}\n", encoding="utf-8")
    program.chmod(0o755)
    env = {name: value for name, value in os.environ.items() if not name.startswith("AMP_FUZZ")}
    done = subprocess.run([sys.executable, HERE / "run.py", program, folder, folder / name.upper()],
                          env={**env, **environment}, stdout=subprocess.PIPE, text=True, check=False)
    expect((done.returncode == 0) == (text == GOOD), done.stdout)
    return done.stdout


def test_seeds(tap, folder):
    with tap.test("the seed is the commit's"):
        expect(f"ok 1 - 9 inputs in 5 s from seed {commit_seed()}, 7 edges" in fuzz(folder, "good", GOOD),
               "another seed")
    with tap.test("AMP_FUZZ_SEED comes first"):
        expect("from seed 11, " in fuzz(folder, "good", GOOD, AMP_FUZZ_SEED="11"), "another seed")
    with tap.test("where there is no git it is a fixed one"):
        expect(commit_seed("/") == FIXED, f"{commit_seed('/')}")
    if not shutil.which("git"):
        tap.skip("two commits have two seeds", "there is no git")
        return
    with tap.test("two commits have two seeds, the digits that they begin with"):
        def git(*words):
            return subprocess.run(["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@b", *words], text=True,
                                  stdout=subprocess.PIPE, check=True).stdout
        git("init", "--quiet")
        seeds = []
        for message in "ab":
            git("commit", "--quiet", "--allow-empty", "--no-gpg-sign", "-m", message)
            seeds.append(commit_seed(folder))
            expect(seeds[-1] == int(git("rev-parse", "--short=7", "HEAD")[:7], 16), f"{seeds}")
        expect(seeds[0] != seeds[1], f"{seeds}")


def test_failures(tap, folder):
    with tap.test("the command that is printed for a failure repeats it, without the file"):
        said = fuzz(folder, "bad", BAD, AMP_FUZZ_SEED="3")
        expect(re.search(r"^# the reason$", said, re.MULTILINE), said)
        written = folder / "BAD" / "crash-1"
        kept = written.read_bytes()
        written.unlink()
        command = re.search(r"^# again: (echo \S+ \| base64 -d >input; \S+ input)$", said, re.MULTILINE)
        expect(command, said)
        done = subprocess.run(command.group(1), shell=True, cwd=folder, stdout=subprocess.PIPE, text=True, check=False)
        expect(done.returncode == 77 and "the same failure" in done.stdout, done.stdout)
        expect((folder / "input").read_bytes() == kept, "another input")
    with tap.test("and so does the whole run's"):
        command = re.search(r"^# all of it: (.*)$", said, re.MULTILINE).group(1)
        done = subprocess.run(command, shell=True, stdout=subprocess.PIPE, text=True, check=False)
        expect(done.returncode == 1 and "from seed 3, " in done.stdout, done.stdout)


def main():
    tap = Tap()
    with scratch() as folder:
        test_seeds(tap, folder)
        test_failures(tap, folder)
    tap.done()


if __name__ == "__main__":
    main()
