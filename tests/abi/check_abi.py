#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The interface is the one that programs were linked against: check_abi.py SOURCE_ROOT LIBRARY [--update]

Compares the library with the stored baseline tests/abi/libamp.abi: functions, their types and every structure they
reach. Additions are reported and pass: functions, and members at the end of a structure that begins with struct_size,
which old programs cannot see (docs/reference/abi.md). What is gone or changed fails. --update replaces the baseline
instead (`ninja abi-baseline`). Prints TAP. Needs abidiff and abidw, and a library with debug information.
"""
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

# What the build, not the interface, decides is left out of the baseline.
BASELINE = ["--no-architecture", "--no-corpus-path", "--no-comp-dir-path", "--no-show-locs", "--no-elf-needed",
            "--no-parameter-names", "--no-write-default-sizes", "--type-id-style", "hash", "--exported-interfaces-only",
            "--drop-private-types"]
COMPARED = ["--harmless"]  # a member's new name breaks those who compile
CHANGED = 4 | 8  # abidiff's exit status: something changed, incompatibly
# Baselines that the library cannot fit: what was promised there is gone, or is another thing.
PLANTED = {
    "a function that is gone": ("amp_check'", "amp_chuck'"),
    "a member of another name": ("<var-decl name='loss_id' ", "<var-decl name='lost_id' "),
    "a member that moved": ("layout-offset-in-bits='384'", "layout-offset-in-bits='392'"),
}


def reason_to_skip(library):
    if not (shutil.which("abidiff") and shutil.which("abidw")):
        return "abidiff and abidw (libabigail) are not installed"
    if platform.architecture()[0] != "64bit":
        return "the baseline is of a 64-bit system"
    sections = subprocess.run(["readelf", "-SW", library], stdout=subprocess.PIPE, text=True, check=True).stdout
    return None if ".debug_info" in sections else "the library has no debug information (-Ddebug=true)"


def baseline_of(root, library):
    text = subprocess.run(["abidw", *BASELINE, "--headers-dir", root / "include", library], stdout=subprocess.PIPE,
                          text=True, check=True).stdout
    return re.sub(r" path='[^']*?(src/[^']*)'", r" path='\1'", text)  # no folder of the building machine


def compare(baseline, present, *arguments):
    """abidiff's exit status and words."""
    result = subprocess.run(["abidiff", *COMPARED, *arguments, baseline, present],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return result.returncode, [line for line in result.stdout.splitlines() if line.strip()]


def structures(tree):
    """name: its element, of those that may grow"""
    found = {}
    for element in tree.iter("class-decl"):
        first = element.find("data-member/var-decl")
        if first is not None and first.get("name") == "struct_size":
            found[element.get("name")] = element
    return found


def without_growth(baseline, present, trimmed):
    """Writes `present` with each structure as long as in the baseline; what there was more."""
    old, tree = structures(ElementTree.parse(baseline)), ElementTree.parse(present)
    grown = []
    for name, element in structures(tree).items():
        members = element.findall("data-member")
        kept = len(old[name].findall("data-member")) if name in old else len(members)
        for member in members[kept:]:
            grown.append(f"member {name}.{member.find('var-decl').get('name')}")
            element.remove(member)
        if members[kept:]:
            element.set("size-in-bits", old[name].get("size-in-bits"))
    tree.write(trimmed)
    return grown


def checks(root, library, scratch):
    """(what, complaints)"""
    baseline, present = root / "tests" / "abi" / "libamp.abi", scratch / "present.abi"
    present.write_text(baseline_of(root, library), encoding="utf-8")
    trimmed = scratch / "trimmed.abi"
    for growth in without_growth(baseline, present, trimmed):
        print(f"# added: {growth}")
    for line in compare(baseline, trimmed)[1]:
        if line.strip().startswith("[A]"):
            print(f"# added: {line.strip()[4:]}")
    status, said = compare(baseline, trimmed, "--no-added-syms")
    hint = ["if it is meant: CONTRIBUTING.md, \"The baseline of the ABI\""]
    yield "nothing of the interface is gone or changed", said + hint if status else []
    text = baseline.read_text(encoding="utf-8")
    yield "the baseline has no path of the building machine", re.findall(r"path='(?!src/)[^']*'", text)
    for what, (old, new) in PLANTED.items():
        planted = scratch / "planted.abi"
        planted.write_text(text.replace(old, new), encoding="utf-8")
        status, said = compare(planted, trimmed, "--no-added-syms")
        found = text != planted.read_text(encoding="utf-8") and status & CHANGED
        yield f"{what} is found out", [] if found else said or ["silence"]


def main():
    root, library = pathlib.Path(sys.argv[1]), sys.argv[2]
    reason = reason_to_skip(library)
    if "--update" in sys.argv:
        if reason:
            sys.exit(f"check_abi.py: no baseline was written: {reason}")
        (root / "tests" / "abi" / "libamp.abi").write_text(baseline_of(root, library), encoding="utf-8")
        return
    if reason:
        print(f"1..0 # SKIP {reason}")
        return
    number = 0
    with tempfile.TemporaryDirectory() as scratch:
        for number, (what, complaints) in enumerate(checks(root, library, pathlib.Path(scratch)), 1):
            print(f"{'not ok' if complaints else 'ok'} {number} - {what}")
            for complaint in complaints[:60]:
                print(f"# {complaint}")
    print(f"1..{number}")


if __name__ == "__main__":
    main()
