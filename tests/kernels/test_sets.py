#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The kernels' tests with each instruction set alone, and on emulated old processors. Prints TAP.

    test_sets.py PROGRAM SETS [SANITIZER]       SETS: those that it was built with, "sse2,avx2", or "none"

What goes through the process's table (lists, environments, matmul) uses the best set of the machine: here each of them
in turn, by AMP_CPU_MASK. Under qemu-user an instruction that a processor does not have is a signal, so that a kernel
chosen wrongly, or compiled for too much, shows. What is not here is a skip with its reason.
"""
import os
import platform
import re
import shutil
import subprocess
import sys

CPU_FLAGS = {"sse2": {"sse2"}, "avx2": {"avx2", "fma", "f16c"},
             "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl"}}
# Processors, oldest first: SSE2 and SSE3; more of its sort; AVX without AVX2; AVX2.
PROCESSORS = ["Opteron_G1", "Conroe", "Nehalem", "SandyBridge", "Haswell"]


def run(command, suite, **variables):
    env = {**os.environ, "CK_RUN_CASE": suite, "CK_VERBOSITY": "normal", **variables}
    env["CK_TIMEOUT_MULTIPLIER"] = "50"  # an emulator is slow; Meson has a limit of its own
    env.pop("CK_TAP_LOG_FILE_NAME", None)
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    checks = re.search(r"Checks: (\d+)", done.stdout)
    return done.returncode == 0 and checks is not None and int(checks.group(1)) > 0, done.stdout


def missing(name):
    if name == "none" or platform.machine() != "x86_64":
        return None
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        flags = set(re.search(r"^flags\s*:(.*)$", info.read(), re.MULTILINE).group(1).split())
    return None if CPU_FLAGS[name] <= flags else "this processor has no " + name


class Tap:
    def __init__(self):
        self.number, self.good = 0, True

    def point(self, text, ok, output):
        for line in [] if ok else output.splitlines()[-20:]:
            print("#", line)
        self.good &= ok
        self.line(f"{'ok' if ok else 'not ok'} {self.number + 1} - {text}")

    def skip(self, text, why):
        self.line(f"ok {self.number + 1} - {text} # SKIP {why}")

    def line(self, text):
        self.number += 1
        print(text, flush=True)


def main():
    program, tap = sys.argv[1], Tap()
    instrumented = len(sys.argv) > 3
    short = os.environ.get("AMP_TEST_SHORT")
    for name in ["none", *(name for name in sys.argv[2].split(",") if name != "none")]:
        why = missing(name)
        if why:
            tap.skip(f"set {name}", why)
            continue
        for suite in ["lists"] if instrumented else ["lists", "matmul", "threads"]: # a minute for each of those
            tap.point(f"set {name}: {suite}", *run([program], f"test_{suite}.c", AMP_CPU_MASK=name))
    emulator = shutil.which("qemu-x86_64")
    for cpu in PROCESSORS if platform.machine() == "x86_64" else []:
        if not emulator:
            tap.skip(f"processor {cpu}", "there is no qemu-x86_64")
            continue
        if short and not instrumented:
            tap.skip(f"processor {cpu}", "AMP_TEST_SHORT: another build runs there")
            continue
        if instrumented: # shadow memory and an emulator are gigabytes and minutes
            tap.skip(f"processor {cpu}", "a build with " + sys.argv[3] + " does not run under an emulator")
            continue
        for suite in ["lists", "cpu"]:
            tap.point(f"processor {cpu}: {suite}", *run([emulator, "-cpu", cpu, program], f"test_{suite}.c"))
    print(f"1..{tap.number}")
    sys.exit(0 if tap.good else 1)


if __name__ == "__main__":
    main()
