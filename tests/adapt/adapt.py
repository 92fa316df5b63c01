# SPDX-License-Identifier: Apache-2.0
"""What the tests of amp-adapt share: the tool as a user runs it, and what it wrote compiled and run."""
import os
import pathlib
import platform
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "packaging"))
from support import Tap, expect, run, scratch  # noqa: E402,F401  pylint: disable=wrong-import-position,unused-import

WARNINGS = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1"]


class Place:
    """A folder, and what a command line needs: the tool, the compiler, libamp."""

    def __init__(self, folder, source, library, compiler):
        self.folder, self.source, self.library, self.compiler = folder, source, library, compiler

    def adapt(self, *arguments, status=0):
        """What the tool says on standard error."""
        tool = self.source / "tools" / "amp-adapt"
        return run(sys.executable, tool, *arguments, status=status, cwd=self.folder,
                   env={"CC": " ".join(self.compiler), "PYTHONDONTWRITEBYTECODE": "1"})

    def write(self, name, text):
        (self.folder / name).write_text(text, encoding="utf-8")

    def read(self, name):
        return (self.folder / name).read_text(encoding="utf-8")

    def answered(self, name, diff):
        """What was written, with the answers in: lines of a diff, from top to bottom; what it leaves out stays."""
        text, at = self.read(name), 0
        for line in diff.splitlines():
            mark, line = line[0], line[1:] + "\n"
            found = at if mark == "+" else text.find(line, at)
            expect(found >= 0, f"{name} does not have, behind what was before: {line}")
            if mark == "-":
                text, at = text[:found] + text[found + len(line):], found
            else:
                text = text[:at] + line + text[at:] if mark == "+" else text
                at = found + len(line)
        self.write(name, text)

    def compile(self, program, *arguments):
        run(*self.compiler, *WARNINGS, "-o", program, *arguments, f"-I{self.source}/include",
            f"-L{self.library.parent}", "-lamp", "-lm", cwd=self.folder)

    def run(self, program, *arguments, status=0, **environment):
        paths = {"LD_LIBRARY_PATH": f"{self.library.parent}:{self.folder}"}
        return run(self.folder / program, *arguments, status=status, cwd=self.folder, env={**paths, **environment})

    def knows(self, header):
        """Does the compiler find <header>?"""
        tried = subprocess.run([*self.compiler, "-fsyntax-only", "-x", "c", "-"], input=f"#include <{header}>\n",
                               text=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        return tried.returncode == 0


def skip_unless_supported(tap):
    try:
        import pycparser  # noqa: F401  pylint: disable=import-outside-toplevel,unused-import
    except ImportError:
        tap.skip_all("there is no pycparser (Debian: python3-pycparser)")
    if os.environ.get("AMP_TEST_SANITIZE", "none") != "none":
        tap.skip_all("the programs of this test are built without sanitizers")
    if platform.machine() not in ("x86_64", "aarch64") or sys.platform != "linux":
        tap.skip_all(f"amp_symbol.h has no trampolines for {platform.machine()} on {sys.platform}")
