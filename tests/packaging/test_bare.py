#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tests that are scripts, once more with the programs of a bare Debian alone: test_bare.py SOURCE BUILD

What Debian's minimal variant has, and what tools/test cannot do without, stays on PATH; compilers of other languages,
emulators, valgrind and the like are gone. Such tests may skip points, with a reason; none may fail. test_tools.py runs
nowhere else.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

from support import Tap, expect, run, scratch

FOLDERS = ("/bin", "/sbin", "/usr/bin", "/usr/sbin")
NEEDED = re.compile(r"^setup_need (cc python3 .*)$", re.MULTILINE)
# They run for long, and nothing but what the build made or found; what registers may lack symbol-trampolines lacks too.
LEFT_OUT = {"train-program", "bench", "cuda-bench", "cuda-emulator-mutants", "cuda-pack", "cuda-sass", "kernels-sets",
            "darknet", "reference", "registers", "tableless"}


def needed_packages(source):
    things = NEEDED.search((source / "tools" / "test").read_text(encoding="utf-8")).group(1)
    script = 'me=test; . "$root/tools/setup.sh"; for thing; do packages "$thing" apt-get; done'
    return run("sh", "-c", script, "sh", *things.split(), env={"root": str(source)}).split()


def bare_packages(source):
    """Names of the essential and required packages, of what tools/test needs, and of all that these depend on."""
    shown = run("dpkg-query", "-W", "-f", "${Package}|${Essential}|${Priority}|${Pre-Depends},${Depends}\n")
    rows = {row[0]: row for row in (line.split("|", 3) for line in shown.splitlines())}
    waiting = [name for name, row in rows.items() if row[1] == "yes" or row[2] == "required"] + needed_packages(source)
    found = set()
    while waiting:
        name = waiting.pop()
        if name in rows and name not in found:
            found.add(name)
            waiting += re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9+.-]+)", rows[name][3])
    return found


def bare_path(source, folder):
    """A folder of links to the programs of those packages, alternatives as cc and awk included."""
    files = set(run("dpkg", "-L", *sorted(bare_packages(source))).split("\n"))
    files.add("/usr/bin/ccache")  # the build may have been configured to call its compiler through it
    folder.mkdir()
    for place in map(pathlib.Path, FOLDERS):
        for program in place.iterdir():
            link, target = folder / program.name, program.resolve()
            known = program.name == "awk" or {str(program), str(target), f"/usr{program}"} & files  # awk may be gawk
            if known and not link.exists():
                link.symlink_to(target if program.name.startswith("python3") else program)
    return folder


def scripts(build):
    """Those of the quick tests that Python runs."""
    tests = json.loads(run("meson", "introspect", "--tests", build))
    for test in tests:
        suites = {name.rsplit(":", 1)[-1] for name in test["suite"]}
        if not suites & {"slow", "fuzzing", "packaging"} and test["name"] not in LEFT_OUT:
            if any(word.endswith(".py") for word in test["cmd"][:2]):
                yield test


def main():
    tap = Tap()
    source, build = map(pathlib.Path, sys.argv[1:3])
    if not shutil.which("dpkg-query"):
        tap.skip_all("what a bare system has is asked of dpkg, which is not here")
    with scratch() as folder:
        path = bare_path(source, folder / "bin")
        with tap.test("the bare system has what is needed, and not what is optional"):
            for name in ("sh", "cc", "gcc", "python3", "meson", "ninja", "pkg-config", "awk", "nm"):
                expect((path / name).exists(), f"no {name}")
            for name in ("valgrind", "doxygen", "abidiff", "qemu-x86_64", "mpirun", "aarch64-linux-gnu-gcc", "g++",
                         "pip"):
                expect(not (path / name).exists(), name)
        number = tap.number
        environment = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
        for test in scripts(build):
            with tap.test(f"{test['name']} fails nowhere"):
                done = subprocess.run(test["cmd"], cwd=test["workdir"] or build, stdin=subprocess.DEVNULL,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                      env={**environment, **test["env"], "PATH": str(path)}, check=False)
                expect(done.returncode in (0, 77) and not re.search("^not ok", done.stdout, re.MULTILINE), done.stdout)
        expect(tap.number > number, "no test is a script")
    tap.done()


if __name__ == "__main__":
    main()
