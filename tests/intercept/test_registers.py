#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Calls in registers, without libffi: test_registers.py ROOT CC... Prints TAP.

noffi/registers.c with src/intercept/, src/schema/ and what they call, on this machine and, where a cross compiler and
qemu are installed, on arm64; and whether the stubs are what branch protection and linkers want.
"""
import os
import pathlib
import platform
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "symbol"))
from programs import ARM64, MACHINES, Tap, expect, lack, run, scratch, skip  # noqa: E402 # pylint: disable=C0413

HERE = pathlib.Path(__file__).resolve().parent
COUNT, SEED = 240, 7
PROTECTION = {"x86_64": "-fcf-protection=full", "aarch64": "-mbranch-protection=standard"}
PROMISE = {"x86_64": "x86 feature: IBT, SHSTK", "aarch64": "AArch64 feature: BTI"}


def check(folder, root, compiler, arguments, runner=()):
    source, program = folder / "signatures.c", folder / "registers"
    run(sys.executable, HERE / "gen_signatures.py", source, COUNT, SEED)
    rooms = ("src/intercept", "src/schema", "src/common", "src/system")
    parts = [file for room in rooms for file in (root / room).glob("*.[cS]")] + [root / "src/raw/extents.c"]
    run(*compiler, "-std=c11", "-D_GNU_SOURCE", "-w", "-fexceptions", *arguments, f"-I{HERE}/noffi", f"-I{HERE}",
        f"-I{root}/src", f"-I{root}/include", source, HERE / "noffi/registers.c", *parts, "-o", program, "-pthread")
    said = run(*runner, program)
    agree, _, total = said.partition(" of ")
    expect(total.strip() == f"{COUNT} agree" and int(agree) >= COUNT // 8, said)


def check_stubs(folder, root, compiler, machine, prefix=""):
    """The objects that assembly makes: landing pads, 16 bytes each, unwind information, no executable stack."""
    made = folder / "stubs.o"
    run(*compiler, PROTECTION[machine], f"-I{root}/src", f"-I{root}/include", "-c",
        root / f"src/intercept/stubs_{machine}.S", "-o", made)
    code = run(f"{prefix}objdump", "-d", made, env={"LC_ALL": "C"})
    begins = [line.split("\t")[2:] for line in code.splitlines() if line.split(":\t")[0].endswith("0")]
    stubs = sum(bool(words) and words[0].split()[0] == MACHINES[machine] for words in begins)
    expect(stubs >= 2048, f"{stubs} stubs begin with {MACHINES[machine]}")
    notes = run(f"{prefix}readelf", "-nSW", made, env={"LC_ALL": "C"})
    expect(PROMISE[machine] in notes, notes)
    stack = [line for line in notes.splitlines() if ".note.GNU-stack" in line]
    expect(len(stack) == 1 and " X " not in stack[0], notes)
    frames = run(f"{prefix}readelf", "--debug-dump=frames", made, env={"LC_ALL": "C"})
    expect(frames.count(" FDE ") == 3, frames)


def main():
    root, compiler, tap = pathlib.Path(sys.argv[1]), sys.argv[2:], Tap()
    machine = platform.machine()
    if machine not in MACHINES or sys.platform != "linux":
        tap.skip_all(f"no stubs for {machine} on {sys.platform}")
    if os.environ.get("AMP_TEST_SANITIZE", "none") != "none":
        tap.skip_all("the programs of this test are built without sanitizers")
    print(f"# seed {SEED}")
    library = ["-L", os.environ.get("QEMU_LD_PREFIX", "/usr/aarch64-linux-gnu")]
    checks = [
        ("signatures and unwinding", [], lambda f: check(f, root, compiler, ["-O1"])),
        ("the same in protected code", [], lambda f: check(f, root, compiler, ["-O1", "-fPIE", PROTECTION[machine]])),
        ("landing pads, notes, frames", ["objdump", "readelf"], lambda f: check_stubs(f, root, compiler, machine)),
        ("arm64: signatures and unwinding", [ARM64, "qemu-aarch64"],
         lambda f: check(f, root, [ARM64], ["-O1", PROTECTION["aarch64"]], ["qemu-aarch64", *library])),
        ("arm64: landing pads, notes, frames", [ARM64, "aarch64-linux-gnu-objdump"],
         lambda f: check_stubs(f, root, [ARM64], "aarch64", "aarch64-linux-gnu-")),
    ]
    for what, tools, function in checks:
        why = lack(tools)
        if why:
            skip(tap, what, why)
            continue
        with tap.test(what), scratch() as folder:
            function(folder)
    tap.done()


if __name__ == "__main__":
    main()
