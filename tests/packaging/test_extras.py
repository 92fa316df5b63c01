#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a build without extras has, and that an extra which is asked for by name comes back: test_extras.py SOURCE"""
import json
import pathlib
import sys

from support import Tap, expect, run, scratch, setup

CORE = ["-Dextras=false", "-Dtests=enabled", "-Dcuda=disabled", "-Ddocs=disabled"]
# An extra and a file that it installs; its suite has its name.
INSTALLS = {"adapt": "amp-adapt", "blas": "libamp_blas.so", "fortran": "libamp.f90", "ggml": "amp_ggml.hpp",
            "mpi": "amp_mpi.h", "rust": "libamp_sys.rs"}
SUITES = {*INSTALLS, "darknet", "nccl"}


def about(build):
    """(suites, names of what is installed)"""
    tests = json.loads(run("meson", "introspect", "--tests", build))
    installed = json.loads(run("meson", "introspect", "--installed", build))
    return ({suite.split(":")[-1] for test in tests for suite in test["suite"]},
            {pathlib.PurePath(file).name for file in installed})


def main():
    source, tap = pathlib.Path(sys.argv[1]), Tap()
    with scratch() as folder:
        with tap.test("-Dextras=false: no extra is tested or installed, and the suite core is there"):
            setup(folder, source, *CORE)
            suites, names = about(folder)
            expect("core" in suites and not suites & SUITES, f"suites: {sorted(suites)}")
            expect("amp.h" in names and not names & set(INSTALLS.values()), f"installed: {sorted(names)}")
        with tap.test("-Drust=enabled beside it: rust alone"):
            run("meson", "setup", "--reconfigure", folder, source, "-Drust=enabled")
            suites, names = about(folder)
            expect(suites & SUITES == {"rust"}, f"suites: {sorted(suites)}")
            expect(names & set(INSTALLS.values()) == {INSTALLS["rust"]}, f"installed: {sorted(names)}")
    tap.done()


if __name__ == "__main__":
    main()
