#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which builds of a program let a call be caught: test_builds.py INCLUDE_DIR CC... Prints TAP.

docs/reference/symbols.md says which; each row of its list is here, tried with this compiler. The
program calls `inner`, and the adapter has put a function of its own into inner's slot.
"""
import pathlib
import sys

from programs import Tap, expect, is_clang, run, scratch, skip_unless_supported

PROBE = """
#include <stdio.h>
#ifndef LINKAGE
#define LINKAGE
#endif
LINKAGE int inner(int x);
#ifndef CALLER_ALONE
LINKAGE int inner(int x) { return x + 1; }
#endif
#ifndef CALLEE_ALONE
int outer(int x);
int outer(int x) { return 2 * inner(x); }
int main(void) { printf("%d\\n", outer(1)); return 0; }
#endif
"""
ADAPTER = """
#include <amp_symbol.h>
#if defined(ADAPT_WRAP)
AMP_SYMBOL_WRAP(inner_slot, inner);
#elif defined(ADAPT_NEXT)
AMP_SYMBOL_NEXT(inner_slot, inner);
#else
AMP_SYMBOL(inner_slot, inner, original_inner);
#endif
static int other(int x) { return x + 100; }
__attribute__((constructor)) static void adapt(void) { inner_slot = (amp_fn)other; }
"""
PLAIN, CAUGHT = "4", "202"
SHARED = "-O2 -fPIC -fsemantic-interposition"

# (how, flags of the program, flags of its linking, is the call caught: always, or (by gcc, by clang))
ROWS = [
    # --wrap: what the linker finds undefined in an object
    ("wrap", "-O2", "", True),
    ("wrap", "-O2 -fPIC", "", True),
    ("wrap in one file", "-O0", "", False),
    ("wrap in one file", "-O2", "", False),
    ("wrap in one file", SHARED, "", False),
    # a shared build, preloaded before or linked behind the adapter
    ("shared", SHARED, "", True),
    ("shared", "-O3 -fPIC -fsemantic-interposition", "", True),
    ("shared", "-O0 -fPIC", "", True),
    ("shared", "-O2 -fPIC", "", (True, False)),
    ("shared", "-Ofast -fPIC", "", False),
    ("shared", "-Ofast -fPIC -fsemantic-interposition", "", True),
    ("shared", "-O2 -fPIC -fno-semantic-interposition", "", False),
    ("shared", SHARED, "-Wl,-Bsymbolic", False),
    ("shared", SHARED, "-Wl,-Bsymbolic-functions", False),
    ("shared", SHARED + " -DLINKAGE=static", "", False),
    ("shared", SHARED + " -DLINKAGE=__attribute__((visibility(\"hidden\")))", "", False),
    # an executable: its calls to itself are not the dynamic linker's business
    ("executable", "-O0", "", False),
    ("executable", SHARED, "-rdynamic", False),
    # one object whose functions were renamed
    ("objcopy", SHARED + " -ffunction-sections", "", True),
    ("objcopy", "-O2 -ffunction-sections", "", False),
]


class Builder:
    def __init__(self, folder, compiler, include):
        self.folder, self.compiler, self.include = folder, compiler, include
        (folder / "probe.c").write_text(PROBE, encoding="utf-8")
        (folder / "adapter.c").write_text(ADAPTER, encoding="utf-8")
        (folder / "empty.c").write_text("extern int nothing; int nothing;\n", encoding="utf-8")

    def cc(self, *arguments):
        run(*self.compiler, *arguments, f"-I{self.include}", cwd=self.folder)

    def said(self, program="./program", **environment):
        return run(program, cwd=self.folder, env=environment).strip()

    def wrap(self, flags, link):
        self.cc(*flags, "-DCALLEE_ALONE", "-c", "probe.c", "-o", "callee.o")
        self.cc(*flags, "-DCALLER_ALONE", "-c", "probe.c", "-o", "caller.o")
        self.cc("-O2", "-DADAPT_WRAP", "-c", "adapter.c", "-o", "adapter.o")
        self.cc(*link, "callee.o", "caller.o", "adapter.o", "-Wl,--wrap=inner", "-o", "program")
        return [self.said()]

    def wrap_in_one_file(self, flags, link):
        self.cc(*flags, "-c", "probe.c", "-o", "probe.o")
        self.cc("-O2", "-DADAPT_WRAP", "-c", "adapter.c", "-o", "adapter.o")
        self.cc(*link, "-fuse-ld=bfd", "probe.o", "adapter.o", "-Wl,--wrap=inner", "-o", "program")
        return [self.said()]

    def shared(self, flags, link):
        self.cc(*flags, "-shared", *link, "probe.c", "-o", "libprobe.so")
        self.cc("-O2", "-fPIC", "-shared", "-DADAPT_NEXT", "adapter.c", "-o", "adapter.so")
        self.cc("-O2", "empty.c", "./libprobe.so", "-o", "launcher")
        self.cc("-O2", "-DADAPT_NEXT", "adapter.c", "./libprobe.so", "-o", "program")
        expect(self.said("./launcher") == PLAIN, "the program without the adapter")
        return [self.said("./launcher", LD_PRELOAD="./adapter.so"), self.said()]

    def executable(self, flags, link):
        self.cc("-O2", "-fPIC", "-shared", "-DADAPT_NEXT", "adapter.c", "-o", "adapter.so")
        self.cc(*flags, *link, "probe.c", "-o", "program")
        return [self.said(LD_PRELOAD="./adapter.so")]

    def objcopy(self, flags, link):
        self.cc(*flags, "-c", "probe.c", "-o", "probe.o")
        run("objcopy", "--weaken-symbol=inner", "--add-symbol", "original_inner=.text.inner:0,global,function",
            "probe.o", cwd=self.folder)
        self.cc("-O2", "-c", "adapter.c", "-o", "adapter.o")
        self.cc(*link, "probe.o", "adapter.o", "-o", "program")
        return [self.said()]


def main():
    include, compiler, tap = pathlib.Path(sys.argv[1]), sys.argv[2:], Tap()
    skip_unless_supported(tap)
    clang = is_clang(compiler)
    with scratch() as folder:
        builder = Builder(folder, compiler, include)
        for how, flags, link, caught in ROWS:
            if isinstance(caught, tuple):
                caught = caught[clang]
            with tap.test(f"{how}: {flags} {link}: {'caught' if caught else 'not caught'}"):
                said = getattr(builder, how.replace(" ", "_"))(flags.split(), link.split())
                expect(set(said) == {CAUGHT if caught else PLAIN}, f"the program said {said}")
    tap.done()


if __name__ == "__main__":
    main()
