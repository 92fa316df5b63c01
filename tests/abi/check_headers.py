#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each public header compiles alone, twice included, in the first and the last C from C99 and C++ from C++11 on (those
of C++ from C++17), with gcc and clang where they are, without a warning, and so does each of its _INIT macros and
templates; what brings the others along does in every C and C++: check_headers.py INCLUDE_DIR CC... Prints TAP."""
import functools
import pathlib
import platform
import re
import sys

from compilers import c_compilers, compiles, cxx_compilers, mpi_arguments

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wundef", "-Werror"]
# What a header's macros make, and where a header is not for every machine.
USES = {"amp_symbol.h": ["AMP_SYMBOL(a_slot, a, original_a);", "AMP_SYMBOL_WRAP(b_slot, b);",
                         "AMP_SYMBOL_NEXT(c_slot, c);"]}
MACHINES = {"amp_symbol.h": {"x86_64", "aarch64"}}
# Each standard with the names that compilers have had for it, and what else must not matter.
C_STANDARDS = [["c99"], ["c11"], ["c17", "c18"], ["c23", "c2x"]]
CXX_STANDARDS = [["c++11"], ["c++14"], ["c++17"], ["c++20", "c++2a"], ["c++23", "c++2b"]]
EXTRA = {"c": ["-Wstrict-prototypes", "-Wmissing-prototypes"], "c++": []}
VARIANTS = {".h": [[], ["-fshort-enums"]], ".hpp": [["-Wconversion"], ["-Wconversion", "-fno-exceptions"]]}
WHOLE = {"amp_all.h", "amp_mpi.h", "amp.hpp"}  # these bring the others along
ONCE = ["-fshort-enums"]  # what is the same in every standard of a language


def program_for(header):
    """Includes the header first and alone, and makes one object from each of its _INIT macros (AMP_OP_INIT: amp_op)."""
    lines = [f'#include "{header.name}"'] * 2
    macros = re.findall(r"^#define (AMP_\w+)_INIT\b", header.read_text(encoding="utf-8"), re.MULTILINE)
    for macro in macros:
        lines.append(f"extern {macro.lower()} test_{macro}; {macro.lower()} test_{macro} = {macro}_INIT;")
    lines += USES.get(header.name, [])
    if header.suffix == ".hpp":
        lines += instances(header)
    return "\n".join(lines) + "\n", len(macros)


def instances(header):
    """Every class template with each choice of errors."""
    names = re.findall(r"^template <class Errors> class (\w+) \{", header.read_text(encoding="utf-8"), re.MULTILINE)
    for policy in ("statuses", "throwing"):
        guarded = policy == "throwing"
        yield from ["#ifdef __cpp_exceptions"] * guarded
        yield from (f"template class amp::{name}<amp::{policy}>;" for name in names)
        yield from ["#endif"] * guarded


def leaked(header):
    """Macros that a C++ header defines, its guard aside."""
    return re.findall(r"^#\s*define (?!AMP_\w*HPP$)(\w+)", header.read_text(encoding="utf-8"), re.MULTILINE)


@functools.cache
def known(compiler, language, names):
    """The compiler's name for a standard, or None."""
    return next((name for name in names if compiles(compiler, language, [f"-std={name}"], "") is None), None)


@functools.cache
def found(language, own):
    return c_compilers(list(own)) if language == "c" else cxx_compilers()


def cases(own, header):
    """(language, compiler or None, standard's first name, its name there, further arguments)"""
    languages = (("c", found("c", own), C_STANDARDS), ("c++", found("c++", own), CXX_STANDARDS))
    if header.suffix == ".hpp":
        languages = (("c++", found("c++", own), CXX_STANDARDS[2:]),)
    for language, compilers, standards in languages:
        for compiler in compilers or [None]:
            for names in standards if header.name in WHOLE else (standards[0], standards[-1]):
                name = compiler and known(tuple(compiler), language, tuple(names))
                for variant in VARIANTS[header.suffix]:
                    if variant != ONCE or names is standards[0]:
                        yield language, compiler, names[0], name, variant


def main():
    include, own = pathlib.Path(sys.argv[1]), sys.argv[2:]
    mpi = mpi_arguments()
    programs = [(header, *program_for(header)) for header in sorted(include.glob("*.h*"))
                if not header.name.startswith("amp_mpi_")]  # amp_mpi.h has them all
    plan = [(program, case) for program in programs for case in cases(tuple(own), program[0])]
    print(f"1..{len(plan) + 3}")
    print(f"{'ok' if plan else 'not ok'} 1 - there are public headers and compilers")
    wrong = compiles(own, "c", WARNINGS, "int f(int unused) { return 0; }\n")
    print(f"{'ok' if wrong else 'not ok'} 2 - a warning would be an error")
    macros = [macro for header, *_ in programs if header.suffix == ".hpp" for macro in leaked(header)]
    print(f"{'not ok' if macros else 'ok'} 3 - headers of C++ leave no macro behind {' '.join(macros)}".rstrip())
    for number, ((header, program, macros), (language, compiler, standard, name, variant)) in enumerate(plan, 4):
        what = " ".join([header.name, f"with {macros} _INIT macros as", standard, *variant])
        if not name:
            print(f"ok {number} - {what} # SKIP {'no C++ compiler' if compiler is None else f'{compiler[0]} is older'}")
            continue
        if platform.machine() not in MACHINES.get(header.name, {platform.machine()}):
            print(f"ok {number} - {what} # SKIP not for {platform.machine()}")
            continue
        if header.name == "amp_mpi.h" and mpi is None:
            print(f"ok {number} - {what} # SKIP no Open MPI: libopenmpi-dev on Debian")
            continue
        said = compiles(compiler, language,
                        [f"-std={name}", *variant, *WARNINGS, *EXTRA[language], f"-I{include}", *(mpi or [])], program)
        print(f"{'ok' if said is None else 'not ok'} {number} - {what}, {' '.join(compiler)}")
        for line in (said or "").splitlines()[:20]:
            print(f"# {line}")


if __name__ == "__main__":
    main()
