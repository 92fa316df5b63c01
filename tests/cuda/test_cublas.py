#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where cuBLASLt comes from, and what is said where it does not: test_cublas.py PROBE PLUGIN FAKE FAKE_OLD LOADED
OTHER. TAP.

FAKE: a cuBLASLt of the tests'; FAKE_OLD: of a version that is too old; LOADED: one under NVIDIA's name (its SONAME), of
the major version that the plugin was built with; OTHER: of the other of 12 and 13. In every case the rest of the plugin
works on.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

OK, BACKEND = "0", "-16"
RIGHT = "19 22 43 50"


def must(condition, message):
    if not condition:
        raise AssertionError(message)


class Rig:
    def __init__(self, *paths):
        paths = map(os.path.abspath, paths)
        self.probe, self.plugin, self.fake, self.old, self.loaded, self.other = paths

    def run(self, named=None, before=None, beside=None, environment=None):
        """named: AMP_CUBLASLT; before: a library that the process has loaded; beside: {path from the plugin's folder:
        file}."""
        with tempfile.TemporaryDirectory() as root:
            folder = pathlib.Path(root, "site-packages", "libamp")
            folder.mkdir(parents=True)
            shutil.copy(self.plugin, folder / "libamp_cuda.so")
            for path, file in (beside or {}).items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, folder / path)
            clean = {k: v for k, v in os.environ.items() if not k.startswith("AMP_")}
            clean |= {"AMP_BACKEND_PATH": str(folder), **({"AMP_CUBLASLT": named} if named else {}),
                      **(environment or {})}
            done = subprocess.run([self.probe] + ([before] if before else []), env=clean, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True, check=False)
        must(done.returncode == 0, f"the probe ended with {done.returncode}: {done.stderr}")
        said = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
        must(said["again"] == said["product"], f"two answers: {said}")
        must(said["cast"] == OK, f"the rest of the plugin does not work: {said}")
        if said["product"] == OK:
            must(said["d"] == RIGHT, f"a wrong product: {said}")
        return said


def refused(said, *words):
    must(said["product"] == BACKEND, f"not refused: {said}")
    for word in words:
        must(word in said["error"], f"the error does not say {word!r}: {said['error']!r}")


def works(said):
    must(said["product"] == OK, f"refused: {said}")


def named_by_the_environment(rig):
    works(rig.run(named=rig.fake))


def missing(rig):
    refused(rig.run(named="/there/is/no/libcublasLt.so"), "cuBLASLt", "libcublasLt.so.", "not there", "Install",
            "AMP_CUBLASLT")


def relative(rig):
    for named in ("libcublasLt.so.12", os.path.relpath(rig.fake)):
        refused(rig.run(named=named), f"'{named[:100]}' is not an absolute path", "AMP_CUBLASLT")


def foreign(rig):
    refused(rig.run(named=rig.plugin), "no function cublasLt", "Install")


def too_old(rig):
    refused(rig.run(named=rig.old), "11.9.0", "does not fit", "needs")


def what_the_process_has_loaded(rig):
    """Of either major version, also where the loader would find one of the plugin's own."""
    for before in (rig.loaded, rig.other):
        said = rig.run(before=before, environment={"LD_LIBRARY_PATH": str(pathlib.Path(rig.loaded).parent)})
        works(said)
        must(int(said["before.products"]) > 0, f"another one was loaded: {said}")


def what_the_loader_finds(rig):
    """Before what lies beside the plugin, which would be refused here."""
    name = pathlib.Path(rig.loaded).name
    works(rig.run(environment={"LD_LIBRARY_PATH": str(pathlib.Path(rig.loaded).parent)}, beside={name: rig.old}))


def in_a_python_environment(rig):
    """libamp and NVIDIA's packages beside each other; skipped where the loader finds a cuBLASLt of the system's
    first."""
    name = pathlib.Path(rig.loaded).name
    found = subprocess.run([sys.executable, "-c", f"import ctypes; ctypes.CDLL({name!r})"], stderr=subprocess.DEVNULL,
                           check=False)
    if found.returncode == 0:
        return "this machine's loader finds a cuBLASLt of its own"
    major = name.rsplit(".", 1)[1]
    works(rig.run(beside={f"../nvidia/cu{major}/lib/{name}": rig.loaded}))
    works(rig.run(beside={f"../nvidia/cublas/lib/{name}": rig.loaded}))
    works(rig.run(beside={name: rig.loaded}))
    works(rig.run(beside={f"../nvidia/cublas/lib/libcublasLt.so.{25 - int(major)}": rig.other}))


def main():
    rig = Rig(*sys.argv[1:])
    cases = [named_by_the_environment, missing, relative, foreign, too_old, what_the_process_has_loaded,
             what_the_loader_finds, in_a_python_environment]
    print(f"1..{len(cases)}")
    for number, case in enumerate(cases, 1):
        name = case.__name__.replace("_", " ")
        try:
            skipped = case(rig)
            print(f"ok {number} - {name}" + (f" # SKIP {skipped}" if skipped else ""))
        except AssertionError as failure:
            print(f"not ok {number} - {name}")
            print("# " + str(failure).replace("\n", "\n# "))


if __name__ == "__main__":
    main()
