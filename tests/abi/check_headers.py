#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each public header compiles alone, twice included, as C99, C11 and C++17 without a warning, and so does each of its
_INIT macros: check_headers.py INCLUDE_DIR CC... Prints TAP."""
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wundef", "-Werror"]
# What a header's macros make, and where a header is not for every machine.
USES = {"amp_symbol.h": ["AMP_SYMBOL(a_slot, a, original_a);", "AMP_SYMBOL_WRAP(b_slot, b);", "AMP_SYMBOL_NEXT(c_slot, c);"]}
MACHINES = {"amp_symbol.h": {"x86_64", "aarch64"}}
C_ONLY = ["-Wstrict-prototypes", "-Wmissing-prototypes"]


def find_cxx():
    """A C++ compiler that really has its library's headers."""
    for name in filter(None, [os.environ.get("CXX"), "g++", "c++", "clang++"]):
        command = name.split()
        if shutil.which(command[0]) and compiles(command, "c++", ["-std=c++17"], "#include <cstddef>\n") is None:
            return command
    return None


def compiles(compiler, language, arguments, program):
    """None, or what the compiler said."""
    result = subprocess.run([*compiler, "-x", language, *arguments, "-fsyntax-only", "-"], input=program, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return None if result.returncode == 0 else result.stdout or f"exit status {result.returncode}"


def program_for(header):
    """Includes the header first and alone, and makes one object from each of its _INIT macros (AMP_OP_INIT: amp_op)."""
    lines = [f'#include "{header.name}"'] * 2
    macros = re.findall(r"^#define (AMP_\w+)_INIT\b", header.read_text(encoding="utf-8"), re.MULTILINE)
    for macro in macros:
        lines.append(f"extern {macro.lower()} test_{macro}; {macro.lower()} test_{macro} = {macro}_INIT;")
    lines += USES.get(header.name, [])
    return "\n".join(lines) + "\n", len(macros)


def main():
    include, compiler = pathlib.Path(sys.argv[1]), sys.argv[2:]
    headers = sorted(include.glob("*.h"))
    cxx = find_cxx()
    cases = [(header, *standard) for header in headers for standard in
             (("C99", compiler, "c", ["-std=c99", *C_ONLY]), ("C11", compiler, "c", ["-std=c11", *C_ONLY]),
              ("C++17", cxx, "c++", ["-std=c++17"]))]
    print(f"1..{len(cases) + 2}")
    print(f"{'ok' if cases else 'not ok'} 1 - there are public headers")
    wrong = compiles(compiler, "c", WARNINGS, "int f(int unused) { return 0; }\n")
    print(f"{'ok' if wrong else 'not ok'} 2 - a warning would be an error")
    for number, (header, standard, command, language, arguments) in enumerate(cases, 3):
        program, macros = program_for(header)
        what = f"{header.name} as {standard}, with {macros} _INIT macros"
        if command is None:
            print(f"ok {number} - {what} # SKIP no C++ compiler")
            continue
        if platform.machine() not in MACHINES.get(header.name, {platform.machine()}):
            print(f"ok {number} - {what} # SKIP not for {platform.machine()}")
            continue
        said = compiles(command, language, [*arguments, *WARNINGS, f"-I{include}"], program)
        print(f"{'ok' if said is None else 'not ok'} {number} - {what}")
        for line in (said or "").splitlines()[:20]:
            print(f"# {line}")


if __name__ == "__main__":
    main()
