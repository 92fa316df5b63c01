#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""libamp as a Meson subproject of somebody's project: test_subproject.py SOURCE"""
import json
import pathlib
import shutil
import sys

from support import QUICK, Tap, expect, run, scratch, setup

HERE = pathlib.Path(__file__).resolve().parent
PROJECT = """
project('consumer', 'c', version: '1', default_options: ['c_std=c11', 'warning_level=3', 'werror=true'])
libamp = dependency('libamp', fallback: 'libamp')
test('consumer', executable('consumer', 'consumer.c', dependencies: libamp))
"""


def main():
    source, tap = pathlib.Path(sys.argv[1]), Tap()
    with scratch() as folder:
        project, build = folder / "project", folder / "build"
        (project / "subprojects").mkdir(parents=True)
        (project / "subprojects" / "libamp").symlink_to(source, target_is_directory=True)
        (project / "meson.build").write_text(PROJECT, encoding="utf-8")
        shutil.copy(HERE / "consumer.c", project)

        # What is compiled for each instruction set, and by nvcc in a minute, is built here as it is alone.
        setup(build, project, *QUICK, "--force-fallback-for=libamp", "-Dlibamp:cuda=disabled", "-Dlibamp:simd=disabled")
        for library in ("shared", "static"):  # nothing of libamp hangs on it, and nothing is compiled again
            with tap.test(f"builds where default_library is {library}"):
                run("meson", "configure", build, f"-Ddefault_library={library}", f"-Dlibamp:default_library={library}")
                run("meson", "compile", "-C", build)
            with tap.test(f"runs where default_library is {library}"):
                run("meson", "test", "-C", build)

        with tap.test("brings none of its own tests and examples along"):
            tests = json.loads(run("meson", "introspect", "--tests", build))
            expect([test["name"] for test in tests] == ["consumer"], [test["name"] for test in tests])
            targets = json.loads(run("meson", "introspect", "--targets", build))
            programs = [target["name"] for target in targets if target["type"] == "executable"]
            expect(programs == ["consumer"], f"programs: {programs}")
    tap.done()


if __name__ == "__main__":
    main()
