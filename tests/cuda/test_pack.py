#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/gpu: a pack of this build, moved, and run over the emulator in the place of a GPU. Prints TAP.

test_pack.py TOOLS_GPU BUILD SUITE... -- EMULATED FAKE DRIVER FAKE_BLAS BENCH TRAIN -- (what test_mutants.py takes):
what a GPU's machine has is a plugin with the kernels' PTX, the one that counts waits, a driver and a cuBLASLt; bench
and train have NVIDIA's runtime inside, so that those over the tests' own stand in their place. "-REASON": skipped.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "emulator"))
from test_mutants import MUTANTS, build, split  # noqa: E402  pylint: disable=wrong-import-position

MOST = 32 << 20
OF_THE_SYSTEM = ("linux-vdso", "ld-linux", "libc.so", "libm.so", "libdl.so", "librt.so", "libpthread.so", "libgcc_s.so")
CASES = {"test_cuda_device": "test_products.c",
         "test_cuda_host": "test_host_calls.c"}  # the suites have runs of their own
QUICK = ["machine", "device", "host", "bench-quick", "demo-quick"]


def must(condition, message):
    if not condition:
        raise AssertionError(message)


def script(path, text):
    path.write_text("#!/bin/sh\n" + text + "\n", encoding="utf-8")
    path.chmod(0o755)


class Rig:
    def __init__(self, folder, tool, built, emulated, fake, driver, blas, bench, train, mutant):
        self.folder, self.tool, self.built, self.mutant, self.blas = folder, tool, built, mutant, os.path.abspath(blas)
        self.parts = {"libamp_cuda.so": emulated, "waits/libamp_cuda.so": fake, "libcuda.so.1": driver,
                      "bench.program": bench, "train.program": train}
        self.number, self.failed = 0, 0
        self.no_driver = folder / "no driver"
        self.no_driver.mkdir()
        (self.no_driver / "libcuda.so.1").write_text("no driver\n", encoding="utf-8")  # found first, and not loaded

    def point(self, what, test):
        self.number += 1
        try:
            test(self)
            print(f"ok {self.number} - {what}", flush=True)
        except (AssertionError, OSError, subprocess.SubprocessError, LookupError, ValueError) as failure:
            self.failed += 1
            print(f"not ok {self.number} - {what}")
            print("# " + str(failure).replace("\n", "\n# "), flush=True)

    def run(self, pack, *arguments, status=0, tools=None):
        environment = {key: value for key, value in os.environ.items()
                       if not key.startswith(("AMP_", "CK_", "EMULATOR_"))}
        environment.update(LD_LIBRARY_PATH=str(self.no_driver), CUDA_VISIBLE_DEVICES="", AMP_CUBLASLT=self.blas,
                           RUN_PATIENCE="20", AMP_BACKEND_PATH="/no/such/folder")
        if tools:
            environment["PATH"] = f"{tools}:{environment['PATH']}"
        done = subprocess.run([pack / "run", *arguments], env=environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/", check=False)
        said = done.stdout
        if done.returncode != status:
            for log in sorted((pack / "results").glob("*.log")):
                said += f"\n== {log.name}\n" + "\n".join(log.read_text(encoding="utf-8",
                                                                       errors="replace").splitlines()[-5:])
        must(done.returncode == status, f"{arguments}: status {done.returncode}, not {status}:\n{said}")
        return said

    def emulated(self):
        """A copy in which a GPU is emulated."""
        pack = self.folder / "a GPU's machine"
        if pack.exists():
            return pack
        shutil.copytree(self.folder / "moved here", pack, ignore=shutil.ignore_patterns("results*"))
        for program in (*CASES, "bench", "train"):
            (pack / program).rename(pack / f"{program}.program")
        for name, file in self.parts.items():
            shutil.copyfile(file, pack / name)
            (pack / name).chmod(0o755)
        for program, case in CASES.items():
            script(pack / program,
                   f'AMP_BACKEND_PATH=$PWD CK_RUN_CASE=${{ONE_CASE-{case}}} exec ./{program}.program "$@"')
        script(pack / "bench", 'AMP_BACKEND_PATH=$PWD/waits exec ./bench.program "$@" --bytes 16384')
        script(pack / "train", 'AMP_BACKEND_PATH=$PWD/waits exec ./train.program "$@" --epochs 1 --seeds 1 --batch 256')
        expected = (pack / "expected.tsv").read_text(encoding="utf-8")
        (pack / "expected.tsv").write_text(expected.replace("accuracy in %\t95", "accuracy in %\t1"), encoding="utf-8")
        return pack


def made(rig):
    out, wheel = rig.folder / "out", rig.folder / "libamp-0-py3-none-any.whl"
    wheel.write_text("a wheel\n", encoding="utf-8")
    subprocess.run([rig.tool, "pack", "--from", rig.built, "--output", out, "--wheel", wheel], check=True,
                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    must((out / "libamp-gpu.tar.gz").stat().st_size > 0, "no archive")
    (out / "libamp-gpu").rename(rig.folder / "moved here")
    shutil.rmtree(out)


def files(rig):
    return [file for file in (rig.folder / "moved here").rglob("*") if file.is_file() and "results" not in file.parts]


def small(rig):
    size = sum(file.stat().st_size for file in files(rig))
    must(len(files(rig)) >= 14 and size < MOST, f"{len(files(rig))} files of {size} bytes")


def no_paths(rig):
    source = os.path.dirname(os.path.dirname(os.path.abspath(rig.tool)))
    for file in files(rig):
        for path in (source + "/", os.path.abspath(rig.built)):
            must(path.encode() not in file.read_bytes(), f"{file.name} has {path}")


def libraries(rig):
    pack = rig.folder / "moved here"
    for program in ("bench", "train", *CASES, "libamp_cuda.so", "waits/libamp_cuda.so"):
        for line in rig.run(pack, "with", "ldd", "./" + program).splitlines():
            name, _, file = line.strip().partition(" => ")
            carried = file.startswith(str(pack) + "/")
            must("dnnl" not in line and (carried or os.path.basename(name).startswith(OF_THE_SYSTEM)),
                 f"{program}: {line}")


def no_device(rig):
    pack = rig.folder / "moved here"
    said = rig.run(pack, "quick", status=1)
    must("no device: there is no NVIDIA driver" in said and "\n0 ok, 5 FAILED or not run" in said, said)
    must(not (pack / "results" / "device.result").exists(), "what needs a device was run")


def green(rig):
    said = rig.run(rig.emulated(), "quick")
    must("\n5 ok, 0 FAILED" in said, said)
    figures = json.loads((rig.emulated() / "results" / "figures.json").read_text(encoding="utf-8"))
    must([(step["name"], step["result"]) for step in figures["steps"]] == [(name, "ok") for name in QUICK],
         figures["steps"])
    must("a fake GPU" in figures["gpu"] and "commit: " in figures["pack"], figures)
    must([line["level"] for line in figures["demo"]] == ["FP32", "O1", "O2"], figures["demo"])
    expected = (rig.emulated() / "expected.tsv").read_text(encoding="utf-8")
    rows = [line.split("\t") for line in expected.splitlines() if line[0] != "#"]
    wanted = {(row[0], row[1]): [float(row[2]), float(row[3])] for row in rows if row[0] != "demo"}
    found = {(line["group"], line["name"]): line["expected"] for line in figures["figures"] if line["expected"]}
    must(wanted and found == wanted, f"{found}\n{wanted}")
    groups = {"bench-" + line["group"] for line in figures["figures"]}
    steps = {name for name in rig.run(rig.emulated(), "list").split() if name.startswith("bench-")}
    must(steps == groups | {"bench-quick"}, f"{groups}\n{steps}")
    must(len(figures["figures"]) > 40 and all(line["ratio"] > 0 for line in figures["figures"]), figures["figures"])


def resumed(rig):
    results = rig.emulated() / "results"
    before = {name: (results / f"{name}.log").stat().st_mtime_ns for name in QUICK}
    (results / "device.result").unlink()
    must("\n5 ok, 0 FAILED" in rig.run(rig.emulated(), "quick"), "not green")
    after = {name: (results / f"{name}.log").stat().st_mtime_ns for name in QUICK}
    must([name for name in QUICK if before[name] != after[name]] == ["device"], f"{before}\n{after}")


PYTHON = """case $1 in
-c) case "$2" in *torch*) exit {torch} ;; esac; exec {python} "$@" ;;
-m) mkdir -p "$5" && cp "$4" "$5" ;;
*) echo "$*" "$PYTHONPATH" "${{AMP_CUBLASLT-}}"
    while [ "$1" != --json ]; do shift; done
    echo '{{"results": 1}}' >"$2"; {end} ;;
esac"""


def torch(rig):
    """A Python that plays one with PyTorch: its training passes, a mode of it fails, it has no PyTorch."""
    tools, pack = rig.folder / "a Python", rig.emulated()
    tools.mkdir()
    for missing, end, status, word in ((0, "exit 0", 0, "1 ok, 0 FAILED"),
                                       (0, "echo 'FAILED: mlp O2: why'; exit 1", 1, "mlp O2"),
                                       (1, "exit 0", 1, "has no PyTorch")):
        script(tools / "python3", PYTHON.format(python=sys.executable, torch=missing, end=end))
        said = rig.run(pack, "torch", status=status, tools=tools)
        must(word in said, said)
        if status == 0:
            log = (pack / "results" / "torch.log").read_text(encoding="utf-8")
            must("train.py --device cuda" in log and f"{pack}/results/site" in log and rig.blas not in log, log)
            must((pack / "results" / "site" / "libamp-0-py3-none-any.whl").exists(), "the wheel was not unpacked")
            figures = json.loads((pack / "results" / "figures.json").read_text(encoding="utf-8"))
            must(figures["training"] == {"results": 1}, figures["training"])


def sanitizer(rig):
    """One that passes, one that finds something, one that does not know the GPU."""
    tools = rig.folder / "tools"
    tools.mkdir()
    for text, status, word in (('shift 4; exec "$@"', 0, "1 ok, 0 FAILED"), ("exit 99", 1, "memcheck found something"),
                               ("echo '========= Error: Device not supported'; exit 1", 1, "Device not supported")):
        script(tools / "compute-sanitizer", text)
        said = rig.run(rig.emulated(), "memcheck-device", status=status, tools=tools)
        must(word in said, said)


def not_green(rig):
    """What tests nothing, ends early or fails is red."""
    program, kept = rig.emulated() / "test_cuda_device", rig.folder / "kept"
    program.rename(kept)
    for output, word in (("1..0 # SKIP no GPU", "skipped: "), ("ok 1 - a", "no plan"), ("1..0", "0 planned"),
                         ("1..2\nok 1 - a", "2 planned, 1 run"), ("1..1\nok 1 - a # SKIP why", "skipped: "),
                         ("not ok 1 - a\n1..1", "1 of 1 failed: a")):
        script(program, f"cat <<'END'\n{output}\nEND")
        said = rig.run(rig.emulated(), "device", status=1)
        must(word in said and re.search(r"^device +FAILED", said, re.MULTILINE), said)
    program.unlink()
    kept.rename(program)


def red(rig):
    mutant = next(row for row in MUTANTS if row[0] == "an index is off by one")
    folder = rig.folder / "mutant"
    folder.mkdir()
    build(folder, mutant, *rig.mutant)
    shutil.copyfile(folder / "libamp_cuda.so", rig.emulated() / "libamp_cuda.so")
    said = rig.run(rig.emulated(), "device", status=1)
    must(re.search(r"^device +FAILED", said, re.MULTILINE) and "0 ok, 1 FAILED" in said, said)


def main():
    if sys.argv[1].startswith("-"):
        print(f"1..0 # SKIP {sys.argv[1][1:]}")
        return 0
    (tool, built), parts, (archive, source, *objects), nvcc, cxx, link = split(sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        rig = Rig(pathlib.Path(folder), tool, built, *parts, (archive, source, objects, nvcc, cxx, link))
        for what, test in (("tools/gpu makes a pack", made), ("it is small", small),
                           ("it has no path of this machine", no_paths),
                           ("it carries its libraries", libraries), ("without a device it is red", no_device),
                           ("over the emulator it is green", green), ("it goes on where it stopped", resumed),
                           ("PyTorch", torch), ("compute-sanitizer", sanitizer),
                           ("what tests nothing is red", not_green), ("a mutant is red", red)):
            rig.point(what, test)
        print(f"1..{rig.number}")
    return rig.failed != 0


if __name__ == "__main__":
    sys.exit(main())
