#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The reference is made without a warning and has everything: check_reference.py SOURCE_ROOT DOXYFILE DOXYGEN

Whatever the headers define has an entry with text: functions (those of src/libamp.map), macros, types, constants,
members. Prints TAP.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
DEFINED = {  # kind of entry: how the headers define it, comments blanked
    "define": re.compile(r"^#define ((?:AMP|amp)_\w+)", re.MULTILINE),
    "typedef or structure": re.compile(
        r"^(?:\}|typedef [^;{()]*?) ?\b(amp_\w+);|^typedef [^;{]*?\(\*(amp_\w+)\)", re.MULTILINE),
    "constant": re.compile(r"[{,\n]\s*(AMP_\w+) = |X\((AMP_\w+), "),
}
NOT_API = re.compile(r"^AMP_\w+_CONSTANT$|^AMP\w*_H$|^AMP_\w+_$")  # scaffolding of the headers
# A header may be without what it must have: each must be found out.
PLANTED = {
    "a function without a comment": ("\nAMP_API int32_t amp_planted_call(void);\n", "amp_planted_call"),
    "a member without a comment": (
        "\n/* Text. */\ntypedef struct amp_planted {\n    int32_t here;\n} amp_planted;\n", "here"),
    "a macro without a comment": ("\n#define AMP_PLANTED 1\n", "AMP_PLANTED"),
}


def make(doxygen, doxyfile, include, output):
    """Runs Doxygen; what it said, and whether it was content."""
    settings = pathlib.Path(doxyfile).read_text(encoding="utf-8")
    settings += f'\nINPUT = "{include}"\nOUTPUT_DIRECTORY = "{output}"\nGENERATE_XML = YES\n'
    result = subprocess.run([doxygen, "-"], input=settings, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            check=False)
    return result.stdout.strip().splitlines(), result.returncode == 0


def text_of(element):
    parts = [element.find(tag) for tag in ("briefdescription", "detaileddescription")]
    return "".join("".join(part.itertext()) for part in parts if part is not None).strip()


def entries(output):
    """(kind, name, text) of every entry."""
    for path in (output / "xml").glob("*.xml"):
        root = ElementTree.parse(path).getroot()
        for element in root.iter("compounddef"):
            if element.get("kind") == "struct":
                yield "struct", element.findtext("compoundname"), text_of(element)
        for element in root.iter("memberdef"):
            if element.get("prot") == "private" or "=delete" in (element.findtext("argsstring") or ""):
                continue
            yield element.get("kind"), element.findtext("name") or "enum", text_of(element)
            for value in element.iter("enumvalue"):
                yield "constant", value.findtext("name"), text_of(value)


def defined(root):
    """(kind, name) of what the headers and the map define."""
    for header in sorted((root / "include").glob("*.h")):
        code = COMMENT.sub(" ", header.read_text(encoding="utf-8"))
        for kind, pattern in DEFINED.items():
            for groups in pattern.findall(code):
                name = groups if isinstance(groups, str) else "".join(groups)
                if not NOT_API.match(name):
                    yield kind, name
    for name in re.findall(r"^\s+(amp_\w+);", (root / "src" / "libamp.map").read_text(encoding="utf-8"), re.MULTILINE):
        yield "function", name


def checks(root, doxyfile, doxygen, scratch):
    """(what, complaints)"""
    (scratch / "real").mkdir()
    said, content = make(doxygen, doxyfile, root / "include", scratch / "real")
    yield "Doxygen has nothing to say", said or ([] if content else ["but its exit status is not 0"])
    found = list(entries(scratch / "real"))
    texts = {}
    for _, name, text in found:
        texts[name] = texts.get(name, "") or text
    for kind in ("function", *DEFINED):
        names = [name for one, name in defined(root) if one == kind]
        print(f"# {kind}: {len(names)}")
        yield f"every {kind} has an entry with text", [
            name for name in names if not texts.get(name)] if names else ["none found"]
    yield "no entry is without text", [f"{kind} {name}" for kind, name, text in found if not text]
    shutil.copytree(root / "include", scratch / "planted" / "include")
    header = scratch / "planted" / "include" / "amp_kernels.h"
    text, end = header.read_text(encoding="utf-8"), "\n#ifdef __cplusplus\n}"
    code = "".join(code for code, _ in PLANTED.values())
    header.write_text(text.replace(end, code + end), encoding="utf-8")
    said, content = make(doxygen, doxyfile, header.parent, scratch / "planted")
    for what, (_, name) in PLANTED.items():
        yield f"{what} is found out", [] if not content and any(name in line for line in said) else said or ["silence"]


def main():
    root, doxyfile, doxygen = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    if not shutil.which(doxygen):
        print("1..0 # SKIP doxygen >= 1.9 is not installed")
        return
    number = 0
    with tempfile.TemporaryDirectory() as scratch:
        for number, (what, complaints) in enumerate(checks(root, doxyfile, doxygen, pathlib.Path(scratch)), 1):
            print(f"{'not ok' if complaints else 'ok'} {number} - {what}")
            for complaint in complaints[:40]:
                print(f"# {complaint}")
    print(f"1..{number}")


if __name__ == "__main__":
    main()
