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

        for library in ("shared", "static"):
            with tap.test(f"configures and builds with the {library} library"):
                # What is compiled for each instruction set, and by nvcc in a minute, is built here as it is alone.
                arguments = [*QUICK, "--force-fallback-for=libamp", f"-Ddefault_library={library}", "-Dlibamp:cuda=disabled",
                             "-Dlibamp:simd=disabled"]
                setup(build / library, project, *arguments)
                run("meson", "compile", "-C", build / library)
            with tap.test(f"runs with the {library} library"):
                run("meson", "test", "-C", build / library)

        with tap.test("brings none of its own tests and examples along"):
            tests = json.loads(run("meson", "introspect", "--tests", build / "shared"))
            expect([test["name"] for test in tests] == ["consumer"], [test["name"] for test in tests])
            targets = json.loads(run("meson", "introspect", "--targets", build / "shared"))
            programs = [target["name"] for target in targets if target["type"] == "executable"]
            expect(programs == ["consumer"], f"programs: {programs}")
    tap.done()


if __name__ == "__main__":
    main()
