#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""amp_api.json is what the compiler and the library say: check_api_json.py JSON INCLUDE_DIR LIBRARY CC... Prints TAP.

Writes a C program that asserts every size, offset, value and prototype of the description over the headers, and
compares its functions and enumerators with those that the library exports and the compiler sees.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

from check_symbols import defined, difference
from compilers import compiles

# What the program would say of a wrong description.
PLANTED = {
    "a size": ("sizeof(amp_op) == ", "sizeof(amp_op) == 1"),
    "an offset": ("amp_op, slot) == ", "amp_op, slot) == 1"),
    "a value": ("AMP_O4 == ", "AMP_O4 == 1"),
    "a prototype": ("amp_shutdown(", "amp_shutdown(int, "),
}
WARNINGS = ["-std=c11", "-Wall", "-Wextra", "-Werror"]


def spelled(kind, name):
    """A declaration in C."""
    const = " const" if kind.get("const") else ""
    if "pointer" in kind:
        return spelled(kind["pointer"], f"*{const} {name}")
    if "array" in kind:
        return spelled(kind["array"], f"{name}[{kind['count']}]")
    if "function" in kind:
        return prototype(kind["function"], f"(*{name})")
    if "struct" in kind:
        return "struct {" + " ".join(spelled(field["type"], field["name"]) + ";"
                                     for field in kind["struct"]) + f"}} {name}"
    return f"{kind['name']}{const} {name}"


def prototype(function, name):
    arguments = ", ".join(spelled(argument["type"], argument["name"]) for argument in function["arguments"])
    return f"{spelled(function['returns'], '')} {name}({arguments or 'void'})"


def asserted(what):
    return f'_Static_assert({what}, "");'


def fields(struct, prefix=""):
    for field in struct:
        yield f"{prefix}{field['name']}", field
        if "struct" in field["type"]:
            yield from fields(field["type"]["struct"], f"{prefix}{field['name']}.")


def program(api):
    yield '#include "amp_all.h"'
    for entry in api["constants"]:
        if entry["type"]["name"] == "float":
            continue  # no integer constant expression in C: beginnings() compares it
        value = f"{'U' if entry['type']['name'].startswith('u') else ''}INT64_C({entry['value']})"
        yield asserted(f"{entry['name']} == {value}")
    for enum in api["enums"]:
        yield from (asserted(f"{value['name']} == {value['value']}") for value in enum["values"])
    for entry in api["types"]:
        yield f"extern {spelled(entry['type'], 'a_' + entry['name'])}; extern {entry['name']} a_{entry['name']};"
    for entry in api["opaque"]:
        yield "".join(f"extern {word}{entry['name']} *an_{entry['name']};" for word in ("", "struct "))
    for struct in api["structs"]:
        name = struct["name"]
        yield asserted(f"sizeof({name}) == {struct['size']} && _Alignof({name}) == {struct['alignment']}")
        outer = 0
        for path, field in fields(struct["fields"]):
            outer = outer if "." in path else field["offset"]
            place = field["offset"] + (outer if "." in path else 0)
            yield asserted(f"offsetof({name}, {path}) == {place} && sizeof(({name} *)0)->{path} == {field['size']}")
            if "struct" not in field["type"] and "array" not in field["type"]:
                pointer = spelled(field["type"], f"*member_{name}_{path.replace('.', '_')}")
                yield f"{pointer} = &(({name} *)0)->{path};"
    for function in api["functions"]:
        yield f"{prototype(function, function['name'])};"


def beginnings(api):
    """A program that prints the structures whose _INIT macro makes something else, and constants of other values."""
    yield '#include "amp_all.h"\n#include <stdio.h>\n#include <string.h>\nint main(void) {'
    for entry in api["constants"]:
        if entry["type"]["name"] == "float":
            yield f'if ({entry["name"]} != {entry["value"]}) puts("{entry["name"]}");'
    for struct in api["structs"]:
        if "init" in struct:
            name = struct["name"]
            yield f"{{ static const {name} made = {name.upper()}_INIT; {name} wanted;"
            yield "memset(&wanted, 0, sizeof wanted);"
            yield f"wanted.struct_size = {struct['size']};"
            yield from (f"wanted.{member} = {value};" for member, value in struct["init"].items())
            yield f'if (memcmp(&made, &wanted, sizeof made)) puts("{name}"); }}'
    yield "return 0; }"


def begin_otherwise(api, include, compiler):
    with tempfile.TemporaryDirectory() as scratch:
        binary = pathlib.Path(scratch) / "beginnings"
        subprocess.run([*compiler, f"-I{include}", "-x", "c", "-", "-o", binary], input="\n".join(beginnings(api)),
                       text=True, check=True)
        return subprocess.run([binary], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()


def enumerators(include, compiler):
    """All that the compiler sees."""
    text = subprocess.run([*compiler, "-E", "-P", f"-I{include}", include / "amp_all.h"], stdout=subprocess.PIPE,
                          text=True, check=True).stdout
    return set(re.findall(r"\b(AMP_\w+) = ", " ".join(re.findall(r"enum \{(.*?)\}", text, re.DOTALL))))


def undocumented(api):
    return [f"{entry['name']} has no words" for section in ("constants", "types", "enums", "structs", "functions")
            for entry in api[section] if not entry["doc"]]


def primitives(part):
    """The names of types in a part of the description."""
    if isinstance(part, list):
        return set().union(*map(primitives, part))
    if not isinstance(part, dict):
        return set()
    kinds = [part[key] for key in ("type", "returns", "pointer", "array") if key in part]
    named = {kind["name"] for kind in kinds if isinstance(kind, dict) and "name" in kind}
    return named.union(*map(primitives, part.values()))


def unexplained(api, page):
    """Names of types that neither the description nor the page about it has."""
    known = {entry["name"] for section in ("types", "opaque", "structs") for entry in api[section]}
    return [f"{page} does not say `{name}`" for name in sorted(primitives(api) - known)
            if f"`{name}`" not in page.read_text(encoding="utf-8")]


def checks(api, include, library, compiler):
    """(what, complaints)"""
    listed = {function["name"] for function in api["functions"]}
    yield "its functions are what the library exports", difference(
        listed, "in the JSON", defined("-D", "--defined-only", library), "exported")
    values = {value["name"] for enum in api["enums"] for value in enum["values"]}
    yield "its enumerators are what the compiler sees", difference(
        values, "in the JSON", enumerators(include, compiler), "in the headers")
    text = "\n".join(program(api)) + "\n"
    said = compiles(compiler, "c", [*WARNINGS, f"-I{include}"], text)
    yield "sizes, offsets, values and prototypes are the compiler's", (said or "").splitlines()[:20]
    for what, (old, new) in PLANTED.items():
        planted = text.replace(old, new)
        found = planted != text and compiles(compiler, "c", [*WARNINGS, f"-I{include}"], planted)
        yield f"{what} that is wrong is found out", [] if found else ["silence"]
    yield "structures begin as it says", begin_otherwise(api, include, compiler)
    yield "everything has its words", undocumented(api)
    page = include.parent / "bindings" / "README.md"
    yield "the types that it does not describe are explained", unexplained(api, page)


def main():
    api = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
    number = 0
    for number, (what, complaints) in enumerate(checks(api, pathlib.Path(sys.argv[2]), sys.argv[3], sys.argv[4:]), 1):
        print(f"{'not ok' if complaints else 'ok'} {number} - {what}")
        for complaint in complaints:
            print(f"# {complaint}")
    print(f"1..{number}")


if __name__ == "__main__":
    main()
