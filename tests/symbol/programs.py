# SPDX-License-Identifier: Apache-2.0
"""What the tests of amp_symbol.h share: compilers, and running what they made. Everything is compiled as a user would,
outside the build, with the project's compiler and none of its flags."""
import os
import pathlib
import platform
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "packaging"))
from support import Tap, expect, run, scratch  # noqa: E402,F401  pylint: disable=wrong-import-position,unused-import

HERE = pathlib.Path(__file__).resolve().parent
MACHINES = {"x86_64": "endbr64", "aarch64": "bti"}  # and the landing pad of each
ARM64 = "aarch64-linux-gnu-gcc"


def skip_unless_supported(tap):
    if os.environ.get("AMP_TEST_SANITIZE", "none") != "none":
        tap.skip_all("the programs of this test are built without sanitizers")
    if platform.machine() not in MACHINES or sys.platform != "linux":
        tap.skip_all(f"amp_symbol.h has no trampolines for {platform.machine()} on {sys.platform}")


def is_clang(compiler):
    return "__clang__" in run(*compiler, "-dM", "-E", "-x", "c", os.devnull)


def find_cxx():
    """A C++ compiler with its library's headers, or None."""
    for name in filter(None, [os.environ.get("CXX"), "g++", "c++", "clang++"]):
        command = name.split()
        if shutil.which(command[0]):
            tried = subprocess.run([*command, "-x", "c++", "-fsyntax-only", "-"], input="#include <cstddef>\n",
                                   text=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
            if tried.returncode == 0:
                return command
    return None


def lack(tools):
    """Why what needs these programs is not run here, or None."""
    missing = [tool for tool in tools if not shutil.which(tool)]
    if missing:
        return f"{' and '.join(missing)} not installed"
    if ARM64 in tools and os.environ.get("AMP_TEST_SHORT"):
        return "AMP_TEST_SHORT: the build's compiler has no part in it, and another build runs it"
    return None


def skip(tap, what, reason):
    tap.number += 1
    print(f"ok {tap.number} - {what} # SKIP {reason}")
