#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The public API as data, for those who make bindings: api_json.py HEADER... prints JSON.

Made from those of the headers that amp_all.h includes (headers.py says what a type looks like). Sizes and offsets are
in bytes, on 64-bit systems with naturally aligned members, as tests/abi/layout.txt has them. A structure with "init"
has an _INIT macro: struct_size is set, the members named there have these values, and all else is 0.
tests/abi/check_api_json.py holds it to a compiler and to the library.
"""
import json
import pathlib
import re
import sys

from headers import declarations

HEAD = "libamp's public C API. Sizes and offsets are in bytes, on 64-bit systems."
SIZES = {"char": 1, "float": 4, "double": 8, "size_t": 8, "uintptr_t": 8, "int": 4,
         **{f"{sign}int{bits}_t": bits // 8 for sign in ("", "u") for bits in (8, 16, 32, 64)}}
INITIAL = re.compile(r"^#define (AMP_\w+)_INIT\b((?:[^\n]*\\\n)*[^\n]*)", re.MULTILINE)
ZERO = {"", "0", "0.0", "0.0f"}


def ordered(headers):
    """Those that amp_all.h names, each behind those that it includes."""
    by_name, done = {path.name: path for path in headers}, []

    def visit(name):
        if by_name[name] not in done:
            text = by_name[name].read_text(encoding="utf-8")
            for other in re.findall(r'^#include "(\w+\.h)"', text, re.MULTILINE):
                visit(other)
            done.append(by_name[name])

    visit("amp_all.h")
    return done[:-1]


class Layout:
    """Where a compiler puts things."""

    def __init__(self):
        self.known = {name: (size, size) for name, size in SIZES.items()}  # name: (size, alignment)

    def of(self, kind):
        if "pointer" in kind or "function" in kind:
            return 8, 8
        if "array" in kind:
            size, alignment = self.of(kind["array"])
            return size * kind["count"], alignment
        if "struct" in kind:
            return self.place(kind["struct"])
        return self.known[kind["name"]]

    def place(self, fields):
        """Writes offset and size into each field; the size and the alignment of them all."""
        end, widest = 0, 1
        for field in fields:
            size, alignment = self.of(field["type"])
            field["offset"] = -(-end // alignment) * alignment
            field["size"] = size
            end, widest = field["offset"] + size, max(widest, alignment)
        return -(-end // widest) * widest, widest

    def add(self, found):
        for entry in found["types"]:
            self.known[entry["name"]] = self.of(entry["type"])
        for entry in found["structs"]:
            self.known[entry["name"]] = entry["size"], entry["alignment"] = self.place(entry["fields"])


def initial(path, constants):
    """{structure: {index of a member: what it begins as}} of the _INIT macros, but for struct_size and what is 0."""
    found = {}
    for macro, body in INITIAL.findall(path.read_text(encoding="utf-8")):
        body = re.sub(r"\(uint32_t\)sizeof\(\w+\)|AMP_SIZED_\(\w+\)|[\\\s]", "", body).replace("NULL", "0")
        members = re.sub(r"(?<=.)\{[{},.0]*\}", "0", body[1:-1]).split(",")
        found[macro.lower()] = {
            index: constants[text] if text in constants else float(text.rstrip("f"))
            for index, text in enumerate(members) if text not in ZERO}
    return found


def describe(headers):
    described = {"description": HEAD, "version": None, "constants": [], "types": [], "enums": [], "opaque": [],
                 "structs": [], "functions": []}
    constants, layout = {}, Layout()
    for path in ordered(headers):
        found = declarations(path, constants)
        layout.add(found)
        begun = initial(path, constants)
        for struct in found["structs"]:
            if struct["name"] in begun:
                struct["init"] = {struct["fields"][at]["name"]: value for at, value in begun[struct["name"]].items()}
        for section, entries in found.items():
            described[section] += [{"header": path.name, **entry} for entry in entries]
    described["version"] = ".".join(str(constants[f"AMP_VERSION_{part}"]) for part in ("MAJOR", "MINOR", "PATCH"))
    return described


def main():
    headers = [pathlib.Path(name) for name in sys.argv[1:]]
    if not headers:
        sys.exit("usage: api_json.py HEADER...")
    json.dump(describe(headers), sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
