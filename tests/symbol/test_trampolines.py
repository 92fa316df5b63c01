#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The trampolines of amp_symbol.h: test_trampolines.py INCLUDE_DIR CC... Prints TAP.

Any signature passes through as it is; so do exceptions; symbols are what linkers, unwinders and branch protection want;
the search for the next definition keeps its arguments. On arm64 too, where a cross compiler and qemu are installed.
"""
import os
import pathlib
import platform
import re
import shutil
import sys

from programs import ARM64, HERE, MACHINES, Tap, expect, find_cxx, lack, run, scratch, skip, skip_unless_supported

SEED = 1
# What a trampoline of each kind is to be: (visibility, name)
SYMBOLS = """
#include <amp_symbol.h>
AMP_SYMBOL(plain_slot, plain, original_plain);
AMP_SYMBOL_WRAP(wrapped_slot, wrapped);
AMP_SYMBOL_NEXT(next_slot, next);
"""
TRAMPOLINES = {"plain": "DEFAULT", "__wrap_wrapped": "HIDDEN", "next": "DEFAULT"}
SLOTS = ["plain_slot", "wrapped_slot", "next_slot"]


def shapes(folder, compiler, arguments, *, count, widest=16, runner=()):
    """Compiles and runs a program of random signatures."""
    source, program = folder / f"shapes{count}_{widest}.c", folder / "shapes"
    run(sys.executable, HERE / "gen_shapes.py", source, count, SEED, widest)
    run(*compiler, "-w", *arguments, source, "-o", program)
    said = run(*runner, program)
    expect(said.strip() == f"{count} agreed", said)


def wide_vectors():
    """(flags, bytes) of the widest vectors that this processor passes in registers, or None."""
    try:
        flags = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        return None
    for feature, width in (("avx512f", 64), ("avx", 32)):
        if platform.machine() == "x86_64" and feature in flags:
            return [f"-m{feature}"], width
    return None


def symbols(folder, compiler, include, arguments):
    """name -> (size, type, visibility), and the disassembly, of one object with every kind of trampoline."""
    source, made = folder / "symbols.c", folder / "symbols.o"
    source.write_text(SYMBOLS, encoding="utf-8")
    run(*compiler, *arguments, f"-I{include}", "-c", source, "-o", made)
    table = {}
    for line in run("readelf", "-sW", made, env={"LC_ALL": "C"}).splitlines():
        fields = line.split()
        if len(fields) == 8 and fields[0].rstrip(":").isdigit():
            table[fields[7]] = (int(fields[2], 0), fields[3], fields[5])
    return table, made


def check_symbols(folder, compiler, include, arguments, objdump, pad):
    table, made = symbols(folder, compiler, include, arguments)
    for name, visibility in TRAMPOLINES.items():
        expect(table.get(name, (0,))[0] > 0, f"{name} has no size: {table.get(name)}")
        expect(table[name][1:] == ("FUNC", visibility), f"{name}: {table[name]}")
    for name in SLOTS:
        expect(table[name] == (8, "OBJECT", "HIDDEN"), f"{name}: {table[name]}")
    frames = run("readelf", "--debug-dump=frames", made, env={"LC_ALL": "C"})
    expect(frames.count(" FDE ") >= 4, f"the trampolines have no unwind information:\n{frames}")
    if shutil.which(objdump):
        code = run(objdump, "-d", made, env={"LC_ALL": "C"})
        for name in [*TRAMPOLINES, "next_slot_search"]:
            first = re.search(rf"<{name}>:\n(.*)", code)
            expect(first and pad in first.group(1), f"{name} begins with {first and first.group(1)}, not {pad}")


def check_next(folder, compiler, include, runner=()):
    """Before its constructors ran, after them, and where nothing is to be found."""
    def out(name):
        return folder / name

    for name in ("callee", "caller", "adapter"):
        (folder / f"next_{name}.c").write_text(NEXT[name], encoding="utf-8")
    shared = ["-O2", "-fPIC", "-shared", f"-I{include}", "-Wall", "-Wextra", "-Werror"]
    run(*compiler, *shared, out("next_callee.c"), "-o", out("libcallee.so"))
    run(*compiler, *shared, out("next_adapter.c"), "-o", out("libadapter.so"), "-ldl")
    libraries = ["-Wl,-rpath,$ORIGIN", f"-L{folder}", "-Wl,--no-as-needed", "-ladapter", "-lcallee"]
    run(*compiler, "-O2", out("next_caller.c"), "-o", out("caller"), *libraries)
    said = run(*runner, out("caller"))
    expect(said == "early 1 2 3 4 5 6 7 8.5 9.5\nlate 1 2 3 4 5 6 15 8.5 9.5\n", f"said {said!r}")
    run(*compiler, "-O2", "-DLONELY", out("next_caller.c"), "-o", out("lonely"), *libraries)
    said = run(*runner, out("lonely"), status=None)
    expect("missing was called" in said and "docs/reference/symbols.md" in said, f"the message is {said!r}")


NEXT = {
    "callee": """
#include <stdio.h>
void tell(const char *when, int a, long b, short c, int d, int e, int f, int g, double h, float i);
void tell(const char *when, int a, long b, short c, int d, int e, int f, int g, double h, float i) {
    printf("%s %d %ld %d %d %d %d %d %g %g\\n", when, a, b, c, d, e, f, g, h, (double)i);
}
int twice(int a);
int twice(int a) { return 2 * a; }
""",
    "adapter": """
#include <amp_symbol.h>
AMP_SYMBOL_NEXT(tell_slot, tell);
AMP_SYMBOL_NEXT(missing_slot, missing);
AMP_SYMBOL_NEXT(twice_slot, twice);
static int thrice(int a) { return 3 * a; }
void tell(const char *when, int a, long b, short c, int d, int e, int f, int g, double h, float i);
__attribute__((constructor(101))) static void early(void) {
    if (tell_slot == (amp_fn)tell_slot_search) tell("early", 1, 2, 3, 4, 5, 6, 7, 8.5, 9.5f);
    twice_slot = (amp_fn)thrice; /* stays, whatever is found later */
}
""",
    "caller": """
void tell(const char *when, int a, long b, short c, int d, int e, int f, int g, double h, float i);
void missing(void);
int twice(int a);
int main(void) {
#ifdef LONELY
    missing();
#else
    tell("late", 1, 2, 3, 4, 5, 6, twice(5), 8.5, 9.5f);
#endif
    return 0;
}
""",
}


def check_exception(folder, include):
    cxx = find_cxx()
    for arguments in (["-O0"], ["-O2", "-fPIE", "-pie"], ["-O2", "-no-pie", "-fno-pie"]):
        run(*cxx, "-std=c++11", "-Wall", "-Wextra", "-Werror", *arguments, f"-I{include}", HERE / "exception.cpp", "-o",
            folder / "exception")
        expect(run(folder / "exception") == "caught 42, 1 destroyed, no frame between\n", run(folder / "exception"))


def check_linking(folder, compiler, include):
    """Position-dependent, position-independent and shared, without a relocation in code."""
    (folder / "use.c").write_text("""
#include <amp_symbol.h>
int add(int a, int b);
int real_add(int a, int b);
int real_add(int a, int b) { return a + b; }
AMP_SYMBOL(add_slot, add, real_add);
int main(void) { return add_slot == (amp_fn)real_add && add(40, 2) == 42 ? 0 : 1; }
""", encoding="utf-8")
    for arguments in (["-no-pie", "-fno-pie"], ["-pie", "-fPIE"], ["-pie", "-fPIC", "-O2"], ["-static"]):
        run(*compiler, *arguments, f"-I{include}", folder / "use.c", "-o", folder / "use", "-Wl,-z,text")
        run(folder / "use")
    run(*compiler, "-shared", "-fPIC", f"-I{include}", folder / "use.c", "-o", folder / "use.so", "-Wl,-z,text")


def main():
    include, compiler, tap = pathlib.Path(sys.argv[1]), sys.argv[2:], Tap()
    skip_unless_supported(tap)
    print(f"# seed {SEED}")
    native = [f"-I{include}"]
    with scratch() as folder:
        with tap.test("400 signatures pass unchanged"):
            shapes(folder, compiler, [*native, "-O0"], count=400)
        with tap.test("120 signatures pass unchanged through optimised code"):
            shapes(folder, compiler, [*native, "-O1", "-fPIE"], count=120)
        wide = wide_vectors()
        if wide:
            with tap.test(f"vectors of {wide[1]} bytes pass unchanged"):
                shapes(folder, compiler, [*native, "-O0", *wide[0]], count=120, widest=wide[1])
        else:
            skip(tap, "wide vectors pass unchanged", "this processor has none")
        with tap.test("symbols, unwind information and landing pads are as they should be"):
            check_symbols(folder, compiler, include, ["-O2", "-fPIC"], "objdump", MACHINES[platform.machine()])
        with tap.test("links in every model"):
            check_linking(folder, compiler, include)
        with tap.test("the next definition is found, early and late, or its lack is told"):
            check_next(folder, compiler, include)
        if find_cxx():
            with tap.test("a C++ exception passes through"):
                check_exception(folder, include)
        else:
            skip(tap, "a C++ exception passes through", "no C++ compiler")
        arm64(folder, include, tap)
    tap.done()


def arm64(folder, include, tap):
    library = ["-L", os.environ.get("QEMU_LD_PREFIX", "/usr/aarch64-linux-gnu")]
    checks = {
        "arm64: symbols and landing pads": lambda: check_symbols(folder, [ARM64], include, ["-O2", "-fPIC"],
                                                                 "aarch64-linux-gnu-objdump", "bti"),
        "arm64: 150 signatures pass unchanged": lambda: shapes(
            folder, [ARM64], [f"-I{include}", "-O1", "-static"], count=150, runner=["qemu-aarch64"]),
        "arm64: the next definition is found, or its lack is told": lambda: check_next(
            folder, [ARM64], include, runner=["qemu-aarch64", *library]),
    }
    for number, (what, check) in enumerate(checks.items()):
        tools = [ARM64] + (["qemu-aarch64"] if number else [])
        why = lack(tools)
        if why:
            skip(tap, what, why)
            continue
        with tap.test(what):
            check()


if __name__ == "__main__":
    main()
