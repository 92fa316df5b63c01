#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How the library is built for somebody else's process: test_hardening.py SHARED STATIC FLAGS CC... Prints TAP.

FLAGS are those that this compiler took. What they promise is looked up in the files: a canary, checked copies, and the
marks of landing pads, which one object without them, assembly for one, takes from the whole library. So the objects are
linked once more without what the system's compiler adds, which may have none.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

ENVIRONMENT = {**os.environ, "LC_ALL": "C"}
MARKS = {"-fcf-protection=full": ("IBT", "SHSTK"), "-mbranch-protection=standard": ("BTI",)}
PADS = {"-fcf-protection=full": r"\bendbr64\b", "-mbranch-protection=standard": r"\bbti\s+c\b|\bhint\s+#0x22\b"}
STUBS = 2048


def tool(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT).stdout


def canary(shared, static, flags, compiler):
    return "__stack_chk_fail" in tool("nm", "-D", "--undefined-only", shared), "no function of it checks a canary"


def fortified(shared, static, flags, compiler):
    checked = re.findall(r"\b__\w+_chk\b", tool("nm", "-D", "--undefined-only", shared))
    return set(checked) - {"__stack_chk_fail"}, "no call of it is a checked one"


def marked(flag):
    def check(shared, static, flags, compiler):
        with tempfile.TemporaryDirectory() as folder:
            made = os.path.join(folder, "linked.so")
            tool(*compiler, "-shared", "-nostdlib", "-Wl,--whole-archive", static, "-Wl,--no-whole-archive",
                 "-Wl,--unresolved-symbols=ignore-all", "-o", made)
            properties = " ".join(re.findall(r"feature: *(.*)", tool("readelf", "-n", made)))
        return all(mark in properties
                   for mark in MARKS[flag]), f"an object has not the marks {MARKS[flag]}: {properties!r}"
    return check


def pads(flag):
    def check(shared, static, flags, compiler):
        with tempfile.TemporaryDirectory() as folder:
            member = next(name for name in tool("ar", "t", static).split() if re.search(r"stubs_\w+\.S\.o$", name) and
                          ("x86" in name) == (flag == "-fcf-protection=full"))
            made = os.path.join(folder, "stubs.o")
            with open(made, "wb") as file:
                subprocess.run(["ar", "p", static, member], check=True, stdout=file)
            found = len(re.findall(PADS[flag], tool("objdump", "-d", made)))
        return found == STUBS + 1, f"{found} landing pads for {STUBS} stubs and a function"
    return check


def main():
    shared, static, flags, *compiler = sys.argv[1:]
    flags = flags.split()
    cases = [("a canary", canary, "-fstack-protector-strong"), ("checked copies", fortified, "-D_FORTIFY_SOURCE=3")]
    for flag in MARKS:
        cases += [(f"marks of {flag}", marked(flag), flag), (f"landing pads of {flag}", pads(flag), flag)]
    print(f"1..{len(cases)}")
    missing = [name for name in ("nm", "ar", "readelf", "objdump") if not shutil.which(name)]
    for number, (name, case, flag) in enumerate(cases, 1):
        absent = f"{', '.join(missing)} not installed" if missing else None
        why = f"this build has not {flag}" if flag not in flags else absent
        if why:
            print(f"ok {number} - {name} # SKIP {why}")
            continue
        holds, reason = case(shared, static, flags, compiler)
        print(f"{'ok' if holds else 'not ok'} {number} - {name}" + ("" if holds else f"\n# {reason}"))


if __name__ == "__main__":
    main()
