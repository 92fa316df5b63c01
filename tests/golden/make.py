#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The golden files of a release: make.py [COMMIT] [--python PYTHON]

Builds COMMIT (HEAD) apart and lets its program.c write tests/golden/VERSION, beside the program's assembler. Each
release does it once, adds its folder to meson.build and never changes it again. Before the release is tagged it may be
made anew: so a change of trained bits renews the numbers of the release in which it will be. Those of earlier minor
versions stay, and test_golden.py compares what was loaded with them, no longer what was trained.

    program.s, calls.s   compiled against the release's headers, x86-64. Assembler and not an executable: it has the
                         sizes, offsets and constants that a compiler took from the headers, and each symbol's version
                         (.symver); it can be read, and the system's linker joins it to any C library.
    *.safetensors, .json checkpoints; *.jsonl traces
    numbers.txt          of each case after it was saved, and after it was trained on
    calls.txt            results of calls.c
    python/              state_dicts, by state_dicts.py, with a PYTHON that has COMMIT's package: else they are left out
"""
import argparse
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ASSEMBLER = ["-S", "-Os", "-std=c11", "-fPIE", "-ffp-contract=off", "-fno-asynchronous-unwind-tables",
             "-fno-stack-protector", "-fcf-protection=none", "-fno-ident", "-U_FORTIFY_SOURCE",
             "-D_FILE_OFFSET_BITS=64"]


def run(*command, **options):
    return subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, **options).stdout


def versions(source):
    """Of each symbol, as the library's map says."""
    node, found = None, {}
    for line in (source / "src" / "libamp.map").read_text(encoding="utf-8").splitlines():
        begin, name = re.match(r"([\w.]+) \{", line), re.match(r"\s+(amp_\w+);", line)
        node = begin.group(1) if begin else node
        if name:
            found[name.group(1)] = node
    return found


def assemble(source, name, folder, commit):
    golden = source / "tests" / "golden"
    text = run("gcc", *ASSEMBLER, "-I", source / "include", golden / f"{name}.c", "-o", "-").decode("utf-8")
    used = set(re.findall(r"\b(amp_\w+)@", text))
    symbols = {name: node for name, node in versions(source).items() if name in used}
    pinned = "".join(f"\t.symver {name}, {name}@{node}\n" for name, node in sorted(symbols.items()))
    (folder / f"{name}.s").write_text(f"# SPDX-License-Identifier: Apache-2.0\n# {name}.c of {commit}\n{pinned}{text}",
                                      encoding="utf-8")


def make(source, commit, version, folder):
    build = source / "build"
    run("meson", "setup", build, source, "--buildtype=release", "-Dextras=false", "-Dtests=disabled",
        "-Dexamples=disabled", "-Dcuda=disabled")
    run("ninja", "-C", build, f"src/libamp.so.{version}")
    for name in ("program", "calls"):
        assemble(source, name, folder, commit)
    program = build / "golden"
    run("gcc", folder / "program.s", folder / "calls.s", "-o", program, "-L", build / "src", "-lamp",
        f"-Wl,-rpath,{build / 'src'}")
    env = {**os.environ, "AMP_LOG": "off"}
    (folder / "numbers.txt").write_bytes(run(program, "make", folder, env=env))
    (folder / "calls.txt").write_bytes(run(program, "calls", env=env))


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("commit", nargs="?", default="HEAD")
    options.add_argument("--python")
    said = options.parse_args()
    if platform.machine() != "x86_64":
        sys.exit("the program is kept in assembler of x86-64: make it there")
    commit = run("git", "-C", ROOT, "rev-parse", "--short=12", said.commit).decode().strip()
    with tempfile.TemporaryDirectory(prefix="amp-golden-") as scratch:
        source, new = pathlib.Path(scratch, "source"), pathlib.Path(scratch, "new")
        source.mkdir(), new.mkdir()
        run("tar", "-x", "-C", source, input=run("git", "-C", ROOT, "archive", commit))
        header = (source / "include" / "amp.h").read_text(encoding="utf-8")
        version = ".".join(re.search(rf"AMP_VERSION_{part} (\d+)", header).group(1)
                           for part in ("MAJOR", "MINOR", "PATCH"))
        if run("git", "-C", ROOT, "tag", "--list", f"v{version}"):
            sys.exit(f"v{version} is released: its files stay as they are")
        make(source, commit, version, new)
        if said.python:
            (new / "python").mkdir()
            run(said.python, source / "tests" / "golden" / "state_dicts.py", "make", new / "python")
        folder = HERE / version
        if (folder / "python").is_dir() and not said.python:
            shutil.copytree(folder / "python", new / "python")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(new, folder)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(f"{folder.relative_to(ROOT)}: {size} bytes, of {commit}")


if __name__ == "__main__":
    main()
