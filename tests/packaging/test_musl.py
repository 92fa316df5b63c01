#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""src/ for another C library than GNU's, as Alpine has it: test_musl.py SOURCE [--full]

Compiles what every system has, without warnings, and leaves no file. Kernels of instruction sets call no library.
--full: tools/musl, which builds the core and its libraries and runs the suite core.
"""
import pathlib
import shutil
import subprocess
import sys

from support import Tap, compiler, expect, run, scratch

FOREIGN = {"cuda", "onednn", "arm", "x86", "vector"}  # of src/kernels
LIBRARIES = ("ffi.h", "ffitarget.h", "jansson.h", "jansson_config.h")


def musl_compiler():
    """None: there is none."""
    if shutil.which("musl-gcc"):
        return ["musl-gcc"]
    return ["zig", "cc", "-target", "x86_64-linux-musl"] if shutil.which("zig") else None


def copy_headers(folder):
    """libffi's and Jansson's, whose own folder has GNU's headers beside them."""
    ask = folder / "ask.c"
    ask.write_text("#include <ffi.h>\n#include <jansson.h>\n", encoding="utf-8")
    for word in run(*compiler(), "-M", ask).split():
        if pathlib.Path(word).name in LIBRARIES:
            shutil.copy(word, folder)


def main():
    source, tap, musl = pathlib.Path(sys.argv[1]), Tap(), musl_compiler()
    files = [file.relative_to(source) for file in sorted((source / "src").rglob("*.c"))]
    files = [file for file in files if not FOREIGN & set(file.parts)]
    if sys.argv[2:] == ["--full"]:
        if not musl:
            tap.skip_all("there is neither musl-gcc nor zig")
        result = subprocess.run([source / "tools" / "musl"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, check=False)
        if result.returncode == 77:
            tap.skip_all(result.stdout.strip().splitlines()[-1])
        with tap.test("the core builds with musl, and the suite core passes"):
            expect(result.returncode == 0 and "Fail:" in result.stdout, result.stdout[-4000:])
        tap.done()
        return
    with tap.test("tools/musl refuses a suite that is not there before it builds anything"):
        said = run(source / "tools" / "musl", "core", "nosuite", status=2)
        expect(said == "tools/musl: there is no suite 'nosuite' in tests/\n", said)
    what = "src/ compiles for musl without a warning"
    if not musl:
        tap.skip(what, "there is neither musl-gcc nor zig")
        tap.done()
        return
    with scratch() as folder:
        copy_headers(folder)
        with tap.test(what):
            expect(len(files) > 100 and any(file.name == "linux.c" for file in files), f"{len(files)} files")
            run(*musl, "-std=c11", "-fsyntax-only", "-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64", "-Wall", "-Wextra",
                "-Werror", "-Iinclude", "-Isrc", "-isystem", folder, *files, cwd=source)
    tap.done()


if __name__ == "__main__":
    main()
