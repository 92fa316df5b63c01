#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The kernels' tests on arm64, cross-compiled and run by qemu-user: test_arm64.py SOURCE_ROOT SANITIZER [-Werror].

All kernels, lengths, misalignments and patterns, as on this machine: the rooms common and kernels and the programs of
this folder stand alone, but for Check, which check/check.h replaces. The processor is one that has nothing beyond the
baseline: an instruction that it lacks is a signal. Prints TAP.
"""
import concurrent.futures
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile

from test_sets import Tap, run

COMPILER, EMULATOR, PROCESSOR = "aarch64-linux-gnu-gcc", "qemu-aarch64", "cortex-a57"
FLAGS = ("-std=c11 -O2 -Wall -Wextra -Wshadow -Wconversion -ffp-contract=off -fno-math-errno -fexceptions "
         "-D_GNU_SOURCE -DAMP__ARM_KERNELS -DAMP__ISA_H=\"kernels/arm/neon.h\"").split()
ROOMS = ["src/common", "src/system", "src/kernels", "src/kernels/ref", "src/kernels/vector", "src/kernels/arm",
         "tests/kernels"]
ALONE = {"exhaustive.c": ["oracle.c"]}  # programs of their own, and what they need from their room
# Lists, which go through the process's table, with each set alone; the suites before them see all sets by themselves.
# An emulator is slow: a third of the patterns, of which another machine's tests see all, and the slow tier here too.
SHORT = {} if os.environ.get("AMP_TEST_SLOW") else {"AMP_TEST_SHORT": "1"}
RUNS = [("table", SHORT), ("convert", SHORT), ("fpenv", {}), ("cpu", {}), ("matmul", SHORT), ("split", {}),
        ("lists", {"AMP_CPU_MASK": "none", **SHORT}), ("lists", {"AMP_CPU_MASK": "neon", **SHORT})]
# of other rooms, for suites that do not run here
ELSEWHERE = {"amp_pack", "amp_optim_defaults", "amp_optim_list"}
STRETCH = "255"  # exhaustive.c's argument


def why_not(sanitizer):
    if platform.machine() == "aarch64":
        return "this machine is one: the other tests are its own"
    if sanitizer != "none":
        return f"a build with {sanitizer} changes nothing in what another compiler makes"
    if os.environ.get("AMP_TEST_SHORT"):
        return "AMP_TEST_SHORT: it is the same whatever this build is, and runs in another one"
    gone = [tool for tool in (COMPILER, EMULATOR) if not shutil.which(tool)]
    return f"{' and '.join(gone)} not installed" if gone else None


def compile_all(root, folder, flags, workers):
    """(program of the tests, program of exhaustive.c)"""
    def compile_one(source):
        made = folder / "_".join(source.relative_to(root).with_suffix(".o").parts)
        includes = [f"-I{root / name}" for name in ("include", "src", "tests/kernels/check", "tests/support")]
        subprocess.run([COMPILER, *FLAGS, *flags, *includes, "-c", source, "-o", made], check=True)
        return source, made

    def link(name, objects):
        # without a loader, so that no arm64 library is needed: the linker warns of dlopen, which no suite here calls
        command = [COMPILER, "-static", "-Wl,--warn-unresolved-symbols", *objects, "-o", folder / name, "-lm",
                   "-pthread"]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                              env={**os.environ, "LC_ALL": "C"})
        nowhere = set(re.findall(r"undefined references? to `(\w+)'", done.stderr)) - ELSEWHERE
        if done.returncode or nowhere:
            sys.exit(f"{name} cannot be linked: {', '.join(sorted(nowhere)) or done.stderr}")
        return folder / name

    sources = [source for room in ROOMS
               for source in sorted((root / room).glob("*.c"))] + [root / "tests/support/suite.c"]
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        made = list(pool.map(compile_one, sources))
    tests = root / ROOMS[-1]
    needed = ["exhaustive.c", *ALONE["exhaustive.c"]]
    return (link("tests", [o for s, o in made if s.name not in ALONE]),
            link("exhaustive", [o for s, o in made if s.parent != tests or s.name in needed]))


def main():
    root, tap = pathlib.Path(sys.argv[1]), Tap()
    why = why_not(sys.argv[2])
    if why:
        print(f"1..0 # SKIP {why}")
        return
    workers = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as name:
        program, exhaustive = compile_all(root, pathlib.Path(name), sys.argv[3:], workers)
        emulator = [EMULATOR, "-cpu", PROCESSOR]
        jobs = [(" ".join([suite, *variables.values()]), [*emulator, program], f"test_{suite}.c", variables)
                for suite, variables in RUNS]
        jobs.append(("a sample of all casts", [*emulator, exhaustive, STRETCH], "exhaustive.c", {}))
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            results = [(what, pool.submit(run, command, suite, **variables))
                       for what, command, suite, variables in jobs]
            for what, result in results:
                tap.point("arm64: " + what, *result.result())
    print(f"1..{tap.number}")
    sys.exit(0 if tap.good else 1)


if __name__ == "__main__":
    main()
