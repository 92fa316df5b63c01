#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""libamp_blas.so, preloaded: test_blas.py FOLDER LIBRARY COMPILER...

The program and its libraries know nothing of libamp. What they print is compared with what they print without it.
"""
import json
import os
import pathlib
import re
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "packaging"))
from support import Tap, expect, run, scratch  # noqa: E402  pylint: disable=wrong-import-position

FOLDER, LIBRARY, COMPILER = pathlib.Path(sys.argv[1]), os.path.abspath(sys.argv[2]), sys.argv[3:]
NUMPY = ["-DNAME=scipy_sgemm_64_", "-DCBLAS=scipy_cblas_sgemm64_", "-DINTEGER=int64_t"]
# 144 products of two values below 1/2, each rounded to 8 bits
BOUND = 144 * 0.25 * 2 * 2.0**-8
OURS = re.compile(r"^libamp_blas: (?:program|linked|global): (.*)$", re.M)


class Programs:
    """The program, and callers of four BLASes: two of the same names, one with NumPy's, one inside its caller."""

    def __init__(self, folder):
        self.folder = folder
        for name, options in {"a": [], "b": ["-DADD=1000"], "numpy": NUMPY}.items():
            self.compile(f"lib{name}blas.so", "one.c", "-shared", "-fPIC", *options)
            self.compile(f"lib{name}.so", "caller.c", "-shared", "-fPIC", *options, f"-l{name}blas")
        self.compile("libself.so", "one.c", FOLDER / "caller.c", "-shared", "-fPIC", "-DADD=2000")
        self.compile("program", "program.c", "-ldl", "-pthread")
        self.compile("global", "program.c", "-Wl,--no-as-needed", "-lablas", "-ldl", "-pthread")
        self.compile("linked", "program.c", "-Wl,--no-as-needed", LIBRARY, "-ldl", "-pthread",
                     f"-Wl,-rpath,{os.path.dirname(LIBRARY)}")

    def compile(self, name, source, *options):
        run(*COMPILER, "-O2", "-fno-builtin", "-o", self.folder / name, FOLDER / source, f"-L{self.folder}", *options,
            f"-Wl,-rpath,{self.folder}")

    def run(self, what, *callers, level=None, listed=None, preload=True, program="program", **settings):
        """(what it printed, libamp_blas's lines)"""
        env = {"LD_PRELOAD": LIBRARY} if preload else {}
        env |= {"AMP_LEVEL": level} if level else {}
        env |= {"AMP_BLAS_CALLERS": listed} if listed else {}
        env |= {f"AMP_{name.upper()}": str(value) for name, value in settings.items()}
        text = run(self.folder / program, what, *(self.folder / f"lib{name}.so" for name in callers), env=env)
        return OURS.sub("", text).split(), OURS.findall(text)

    def plain(self, what, *callers):
        return self.run(what, *callers, preload=False)[0]


def error(words):
    return float(words[words.index("error") + 1])


def test_counts(tap, programs):
    for name in ["a", "b", "numpy"]:
        with tap.test(f"{name}: without a list its bits, and what it multiplies"):
            words, lines = programs.run("all", name)
            expect(words == programs.plain("all", name), f"{words}")
            expect(len(lines) == 1 and lines[0].startswith(f"lib{name}.so: 48 products in FP32, "), f"{lines}")
            expect(re.search(r" (144|143) x 144 x 144, which bfloat16 ", lines[0]), f"{lines}")
    with tap.test("a BLAS that the program is linked to comes before that of its libraries, as without libamp"):
        plain = programs.run("all", "b", preload=False, program="global")[0]
        expect(plain != programs.plain("all", "b"), f"{plain}")
        expect(programs.run("all", "b", program="global")[0] == plain, "another one was called")
    with tap.test("a list without AMP_LEVEL counts too, and says so"):
        words, lines = programs.run("all", "a", listed="liba.so")
        expect(words == programs.plain("all", "a"), f"{words}")
        expect("AMP_LEVEL is not set" in lines[0] and "48 products in FP32" in lines[1], f"{lines}")
    with tap.test("another level than O4 is refused in words"):
        words, lines = programs.run("all", "a", listed="liba.so", level="O1")
        expect(words == programs.plain("all", "a") and "Only O4" in lines[0], f"{words} {lines}")
    with tap.test("AMP_LOG=off: silent"):
        expect(programs.run("all", "a", log="off") == (programs.plain("all", "a"), []), "it speaks")


def test_callers(tap, programs):
    o4 = {"level": "O4", "gate": "off"}
    for name in ["a", "numpy"]:
        with tap.test(f"{name}: every order, transposition and row length in bfloat16"):
            words, lines = programs.run("all", name, listed=f"lib{name}.so", **o4)
            expect(1e-4 < error(words) < BOUND, f"{words}")
            wanted = f"lib{name}.so: 48 products in bfloat16, 0 in FP32, where the gate sees no gain"
            expect(lines == [wanted], f"{lines}")
    with tap.test("callers that are not listed keep their bits, each by its own BLAS"):
        plain = programs.plain("all", "b", "a", "self")
        words, lines = programs.run("all", "b", "a", "self", listed="liba.so", **o4)
        expect(words[:4] == plain[:4] and words[8:] == plain[8:], f"{words} is not {plain}")
        expect(words[4:8] != plain[4:8] and error(words[4:8]) < BOUND, f"{words}")
        expect("libb.so: 48 products, not in AMP_BLAS_CALLERS: unchanged" in lines, f"{lines}")
    with tap.test("patterns, and a name that multiplies nothing"):
        words, lines = programs.run("all", "a", "b", listed="lib?.so,libnone.so", **o4)
        expect(error(words) < BOUND and error(words[4:]) < BOUND, f"{words}")
        expect(lines[-1] == "AMP_BLAS_CALLERS: libnone.so has multiplied nothing", f"{lines}")
    with tap.test("a BLAS inside its caller, and a product inside a BLAS, pass"):
        expect(programs.run("all", "self", listed="libself.so", **o4)[0] == programs.plain("all", "self"), "self")
        words = programs.run("solve", "a", listed="liba.so,libablas.so", **o4)[0]
        expect(words == programs.plain("solve", "a"), f"{words}")
    with tap.test("with the gate a product is bfloat16 or has its bits"):
        words, lines = programs.run("all", "a", listed="liba.so", level="O4")
        low = int(re.search(r"(\d+) products in bfloat16", lines[0])[1])
        expect(low in (0, 48) and (words == programs.plain("all", "a")) == (low == 0), f"{words} {lines}")
    with tap.test("wrong arguments and empty products are the BLAS's own"):
        expect(programs.run("wrong", "a", listed="liba.so", **o4)[0] == programs.plain("wrong", "a"), "they differ")


def test_process(tap, programs):
    o4 = {"level": "O4", "gate": "off", "listed": "liba.so"}
    with tap.test("threads: one result"):
        words, lines = programs.run("threads", "a", **o4)
        expect(words[:2] == ["different", "0"] and "205 products in bfloat16" in lines[0], f"{words} {lines}")
    with tap.test("fork: the child's products are the parent's, and each counts its own"):
        words, lines = programs.run("fork", "a", **o4)
        expect(words[:2] == ["equal", "1"], f"{words}")
        counts = [int(re.search(r"(\d+) products in bfloat16", line)[1]) for line in lines]
        expect(sorted(counts) == [1, 2], f"{lines}")
    with tap.test("a library that is closed and opened again"):
        words, _ = programs.run("all", "a", "a", **o4)
        expect(words[:4] == words[4:8] and error(words) < BOUND, f"{words}")
    with tap.test("programs that multiply nothing see nothing"):
        expect(run("sh", "-c", "true", env={"LD_PRELOAD": LIBRARY, "AMP_LEVEL": "O9"}) == "", "it speaks")
    with tap.test("the trace has a line for each call site"):
        trace = programs.folder / "trace.jsonl"
        programs.run("all", "a", trace=trace, **o4)
        lines = [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()]
        ops = [line for line in lines if line["kind"] == "op"]
        expect(len(ops) == 2 and all(re.fullmatch(r"liba\.so\+0x[0-9a-f]+", op["name"]) for op in ops), f"{ops}")
        expect(sum(op["calls"] for op in ops) == 48, f"{ops}")
    library = pathlib.Path(LIBRARY)
    if os.geteuid() == 0 and all(folder.stat().st_mode & 0o001 for folder in library.parents):  # nobody may read it
        with tap.test("a program with another user's rights: ignored"):
            program = programs.folder / "linked"
            expect(programs.run("all", "a", preload=False, program="linked", **o4)[1], "it is not linked")
            programs.folder.chmod(0o755)
            shutil.chown(program, "nobody")
            program.chmod(0o4755)
            words, lines = programs.run("all", "a", preload=False, program="linked", **o4)
            if "secure" in words:  # else the file system has no such programs
                expect(words[:4] == programs.plain("all", "a")[:4] and not lines, f"{words} {lines}")


def main():
    tap = Tap()
    if LIBRARY == os.path.abspath("none"):
        tap.skip_all("libamp_blas.so is not built")
    with scratch() as folder:
        programs = Programs(folder)
        test_counts(tap, programs)
        test_callers(tap, programs)
        test_process(tap, programs)
    tap.done()


main()
