#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every member of every public structure is where layout.txt says: check_layout.py INCLUDE_DIR CC... [--update]

The table is of 64-bit systems with 8-byte pointers and naturally aligned members. It is compared for each compiler, in
C and C++, with and without -fshort-enums. Structures, and members at the end of those that begin with struct_size, may
be added; nothing else moves. --update writes it anew, which while the soname is 0 a release may do
(`ninja abi-baseline`). Prints TAP.
"""
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

from compilers import c_compilers, cxx_compilers

TABLE = pathlib.Path(__file__).with_name("layout.txt")
HEAD = """# SPDX-License-Identifier: Apache-2.0
# Offset and size in bytes of each member of the public structures, and the size of each structure, on 64-bit systems.
# Written by check_layout.py --update.
"""
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
STRUCTURE = re.compile(r"^typedef struct (\w+) \{\n(.*?)^\} (\w+);", re.MULTILINE | re.DOTALL)
FUNCTION = re.compile(r"\(\*(\w+)\)\s*\(")


def members(body):
    """Names of the members; nested ones as `dtype.code`."""
    names, nested = [], []
    for statement in re.split(r";|(?<=\{)", body):
        statement = " ".join(statement.split())
        if statement.endswith("{"):
            nested = [""]  # the name comes at its end
        elif statement.startswith("}"):
            outer = statement[1:].strip()
            names += [f"{outer}.{name}" for name in nested[1:]] + [outer]
            nested = []
        elif statement:
            function = FUNCTION.search(statement)
            found = [function.group(1)] if function else [
                re.search(r"(\w+)(?:\[\w+\])?$", part).group(1) for part in statement.split(",")]
            (nested if nested else names).extend(found)
    return names


def headers(include):
    """All but those of functions that the host's compiler makes: their structures are between no two programs."""
    return [header for header in sorted(include.glob("*.h")) if not header.name.startswith("amp_mpi")]


def structures(include):
    """(structure, its members) of all headers"""
    for header in headers(include):
        text = COMMENT.sub(" ", header.read_text(encoding="utf-8"))
        for tag, body, name in STRUCTURE.findall(text):
            assert tag == name, f"{header.name}: struct {tag} is {name}"
            yield name, members(body)


def program(include):
    lines = [f'#include "{header.name}"' for header in headers(include)]
    lines += ["#include <stddef.h>", "#include <stdio.h>", "int main(void) {"]
    for name, names in structures(include):
        lines.append(f"{{ {name} x; (void)x;")
        lines += [f'printf("{name}.{member} %u %u\\n", (unsigned)offsetof({name}, {member}), (unsigned)sizeof '
                  f'x.{member});'
                  for member in names]
        lines.append(f'printf("{name} 0 %u\\n", (unsigned)sizeof x); }}')
    return "\n".join([*lines, "return 0; }"])


def layout(include, compiler, language, arguments):
    """The table's lines as a compiler has them."""
    with tempfile.TemporaryDirectory() as scratch:
        binary = pathlib.Path(scratch) / "layout"
        subprocess.run([*compiler, *arguments, f"-I{include}", "-x", language, "-", "-o", binary],
                       input=program(include), text=True, check=True)
        return subprocess.run([binary], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()


def differences(wanted, found):
    wanted, found = ({fields[0]: (int(fields[1]), int(fields[2])) for fields in map(str.split, lines)}
                     for lines in (wanted, found))
    for name in found.keys() - wanted.keys():
        print(f"# added: {name}")
    for name, place in wanted.items():
        grown = f"{name}.struct_size" in wanted and name in found and found[name] > place
        if found.get(name) != place and not grown:
            yield f"{name}: offset and size {found.get(name, 'gone')}, in layout.txt {place}"


def main():
    include, own = pathlib.Path(sys.argv[1]), [word for word in sys.argv[2:] if word != "--update"]
    if struct.calcsize("P") != 8:
        print("1..0 # SKIP the table is of 64-bit systems")
        return
    if "--update" in sys.argv:
        TABLE.write_text(HEAD + "\n".join(layout(include, own, "c", [])) + "\n", encoding="utf-8")
        return
    wanted = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    cases = [(compiler, language, extra) for language, compilers in (("c", c_compilers(own)), ("c++", cxx_compilers()))
             for compiler in compilers for extra in ([], ["-fshort-enums"])]
    print(f"1..{len(cases) + 1}")
    print(f"{'ok' if len(wanted) > 100 else 'not ok'} 1 - the table has {len(wanted)} lines")
    for number, (compiler, language, extra) in enumerate(cases, 2):
        complaints = list(differences(wanted, layout(include, compiler, language, extra)))
        print(f"{'not ok' if complaints else 'ok'} {number} - {' '.join([*compiler, *extra])} as {language}")
        for complaint in complaints:
            print(f"# {complaint}")
        if complaints:
            print("# if it is meant: CONTRIBUTING.md, \"The baseline of the ABI\"")


if __name__ == "__main__":
    main()
