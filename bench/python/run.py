#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures libamp in Python beside PyTorch:

    run.py [--quick] [--group NAME] [--device cuda] [--cpu NAME]... [--json FILE] [--check]

A group is a file beside this one with a function measure(bench); harness.py says what bench can do.
"""
import argparse
import importlib
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile

from harness import CPU, HEADER, Bench

HERE = pathlib.Path(__file__).resolve().parent
NOT_GROUPS = {"harness", "run", "sides"}


def limited(onednn, mkl, torchs, libamps):
    """MKL, torch's FP32 matrix products, obeys on Intel's processors alone."""
    return {"ONEDNN_MAX_CPU_ISA": onednn, "MKL_ENABLE_INSTRUCTIONS": mkl, "ATEN_CPU_CAPABILITY": torchs,
            "AMP_CPU_MASK": libamps}


CPUS = {  # instruction sets that a process may use; "all": of this machine
    "all": {},
    "avx512-bf16": limited("AVX512_CORE_BF16", "AVX512", "avx512", "sse2,avx2,avx512"),
    "avx512": limited("AVX512_CORE", "AVX512", "avx512", "sse2,avx2,avx512"),
    "avx2": limited("AVX2", "AVX2", "avx2", "sse2,avx2"),
}


def groups():
    return sorted(path.stem for path in HERE.glob("*.py") if path.stem not in NOT_GROUPS)


def processor():
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def describe_machine():
    import libamp
    import torch

    limits = "".join(f", {name}={value}" for name, value in CPUS.get(os.environ.get(CPU, ""), {}).items())
    print(f"processor: {processor()}, {os.cpu_count()} cores{limits}")
    print(f"GPU: {torch.cuda.get_device_name() if torch.cuda.is_available() else 'none: its lines are left out'}")
    print(f"Python {platform.python_version()}, torch {torch.__version__}, libamp {libamp.__version__} "
          f"{os.environ.get('AMP_BENCH_COMMIT', '')}".rstrip())
    print(f"load: {' '.join(f'{load:.2f}' for load in os.getloadavg())}\n")


def on_cpus(names, words, json_file):
    """Runs this program once for each set of instructions, in a process of its own. Returns the worst status."""
    statuses, lines = [], []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            file = pathlib.Path(folder) / name
            command = [sys.executable, __file__, *words, "--json", str(file)]
            statuses.append(subprocess.run(command, env=os.environ | CPUS[name] | {CPU: name}, check=False).returncode)
            print(flush=True)
            lines += json.loads(file.read_text(encoding="utf-8") or "[]") if file.exists() else []
    if json_file:
        pathlib.Path(json_file).write_text(json.dumps(lines, indent=1) + "\n", encoding="utf-8")
    return max(statuses, key=abs)


def main():
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description="what libamp claims about speed in Python, measured")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--rounds", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--group", choices=groups(), help="only this group")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="of the group train; others use both")
    parser.add_argument("--seconds", type=float, default=0.0, help="what the group train may take (no limit)")
    parser.add_argument("--cpu", choices=list(CPUS), action="append", default=[],
                        help="only with these instruction sets, in a process of its own; may be repeated")
    parser.add_argument("--json", metavar="FILE", help="write the lines to FILE too")
    parser.add_argument("--check", action="store_true", help="status 1 if a ratio is below its goal")
    arguments = parser.parse_args()
    if arguments.json:
        try:
            pathlib.Path(arguments.json).touch()
        except OSError as error:
            parser.error(f"--json: {error}")

    if arguments.cpu:
        ours = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        ours.add_argument("--cpu", action="append")
        ours.add_argument("--json")
        return on_cpus(arguments.cpu, ours.parse_known_args()[1], arguments.json)

    import torch

    if arguments.device == "cuda" and not torch.cuda.is_available():
        print(f"skipped: torch {torch.__version__} sees no GPU")
        return 0
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 4):
        parser.error(f"PyTorch 2.4 or later is what libamp is measured beside, and this is {torch.__version__}")
    torch.set_num_threads(1)
    describe_machine()
    print(HEADER)
    lines, failed = [], 0
    for name in [arguments.group] if arguments.group else groups():
        bench = Bench(name, arguments.quick, arguments.rounds, arguments.device, arguments.seconds)
        importlib.import_module(name).measure(bench)
        lines, failed = lines + bench.lines, failed + bench.failed
    missed = [line for line in lines if line["ratio"] < line["goal"]]
    print(f"\n{len(lines)} lines, {len(missed)} below their goal")
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(lines, indent=1) + "\n", encoding="utf-8")
    return 1 if failed or (arguments.check and missed) else 0


if __name__ == "__main__":
    sys.exit(main())
