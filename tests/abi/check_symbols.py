#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the built libraries show the world: check_symbols.py SOURCE_ROOT SHARED STATIC. Prints TAP.

The functions that the headers declare, those that src/libamp.map lists and those that the shared library exports are
the same; soname, needed libraries and hardening are as promised in docs/reference/abi.md.
"""
import os
import pathlib
import re
import subprocess
import sys

COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
PREPROCESSOR = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
# libm belongs to libc; it may appear only if it is needed (-Wl,--as-needed drops it otherwise).
# libgcc_s is what unwinds the stack: exceptions of a C++ host pass through libamp, which puts things back meanwhile.
MAY_NEED = re.compile(r"^(libc\.|libgcc_s\.so\.|libffi\.so\.|libjansson\.so\.|ld-linux|libm\.so\.)")
COMPILERS_OWN = {"DW.ref.__gcc_personality_v0"}  # weak and hidden, in each object that has such a place


def tool(*command):
    environment = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout


def declared(root, headers=None):
    names = set()
    for header in [root / "include" / name for name in headers] if headers else (root / "include").glob("*.h"):
        text = PREPROCESSOR.sub("", COMMENT.sub(" ", header.read_text(encoding="utf-8")))
        names.update(re.findall(r"\bAMP_API\b[^;()]*?\b([a-z]\w*)\s*\(", text))
    return names


def mapped(root):
    text = re.sub(r"#[^\n]*", "", COMMENT.sub(" ", (root / "src" / "libamp.map").read_text(encoding="utf-8")))
    names = set()
    for block in re.findall(r"\bglobal:(.*?)(?:\blocal:|\})", text, re.DOTALL):
        names.update(name.strip() for name in block.split(";") if name.strip())
    return names, re.search(r"\blocal:\s*\*\s*;", text) is not None


def tabled(root):
    """(functions that amp_api must have: of amp_api.h and of the policy's headers that it includes; those that src/
    puts into it)"""
    page = (root / "include" / "amp_api.h").read_text(encoding="utf-8")
    pages = ["amp.h", "amp_types.h", *re.findall(r'#include "(\w+\.h)"', page)]
    wanted = declared(root, pages) | {name for name in declared(root, ["amp_optim.h"]) if name.startswith("amp_fused_")}
    members = re.findall(r"\(\*(\w+)\)\(", page)
    code = (root / "src" / "api" / "api.c").read_text(encoding="utf-8")
    table = dict(re.findall(r"^    \.(\w+) = (amp_\w+),", code, re.MULTILINE))
    return wanted, {table.get(member, f"{member} (a member, but not in the table)") for member in members}


def defined(*arguments):
    """Global symbols that a library defines; version nodes (type A) are no symbols."""
    names = set()
    for line in tool("nm", *arguments).splitlines():
        fields = line.split()
        if len(fields) == 3 and fields[1] in "TDBRVWiGSu":
            names.add(fields[2].split("@")[0])
    return names


def difference(left, left_name, right, right_name):
    lines = [f"{name}: {left_name}, but not {right_name}" for name in sorted(left - right)]
    return lines + [f"{name}: {right_name}, but not {left_name}" for name in sorted(right - left)]


def soversion(root):
    text = (root / "include" / "amp.h").read_text(encoding="utf-8")
    return re.search(r"^#define AMP_SOVERSION (\d+)", text, re.MULTILINE).group(1)


def program_header(headers, name):
    line = next((line for line in headers.splitlines() if line.split()[:1] == [name]), "")
    return line.split()[6:-1] if line else None  # the flags: R, W, E


def checks(root, shared, static):
    """(what, complaints)"""
    functions, (listed, hides_rest), (policy, table) = declared(root), mapped(root), tabled(root)
    exported = defined("-D", "--defined-only", shared)
    dynamic, headers = tool("readelf", "-dW", shared), tool("readelf", "-lW", shared)
    flags = " ".join(re.findall(r"\((?:FLAGS|FLAGS_1)\)\s*(.*)", dynamic))
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    wanted = f"libamp.so.{soversion(root)}"
    stack = program_header(headers, "GNU_STACK")
    print(f"# needs {' '.join(needed)}")
    yield "the headers declare functions", [] if len(functions) > 10 else [f"only {sorted(functions)}"]
    yield "headers and libamp.map agree", difference(functions, "declared", listed, "in libamp.map")
    yield "amp_api has the functions of the policy", difference(policy, "declared", table, "in amp_api")
    yield "libamp.map hides the rest", [] if hides_rest else ["no 'local: *;'"]
    yield "headers and exports agree", difference(functions, "declared", exported, "exported")
    other = [] if f"soname: [{wanted}]" in dynamic else re.findall(r".*SONAME.*", dynamic) or ["none"]
    yield f"soname is {wanted}", other
    others = [name for name in needed if not MAY_NEED.match(name)]
    yield "needs libc, libgcc_s, libffi and the JSON library alone", others
    yield "binds at load time", [] if re.search(r"\b(BIND_)?NOW\b", flags) else [flags]
    yield "is never unloaded", [] if re.search(r"\bNODELETE\b", flags) else [flags]
    yield "has read-only relocations", [] if program_header(headers, "GNU_RELRO") is not None else ["no GNU_RELRO"]
    yield "has no executable stack", [] if stack is not None and "E" not in "".join(stack) else [f"GNU_STACK {stack}"]
    yield "has no text relocations", re.findall(r".*TEXTREL.*", dynamic)
    yield "needs no static TLS", [flags] if "STATIC_TLS" in flags else []
    yield "has no path of the building machine", [
        line for line in re.findall(r".*(?:RPATH|RUNPATH).*", dynamic) if str(root) in line]
    archived = defined("-g", "--defined-only", static)
    yield "the static library has every function", sorted(functions - archived)
    yield "the static library's names all begin with amp_", [
        name for name in sorted(archived - COMPILERS_OWN) if not name.startswith("amp_")]


def main():
    root, shared, static = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    number = 0
    for number, (what, complaints) in enumerate(checks(root, shared, static), 1):
        print(f"{'not ok' if complaints else 'ok'} {number} - {what}")
        for complaint in complaints:
            print(f"# {complaint}")
    print(f"1..{number}")


if __name__ == "__main__":
    main()
