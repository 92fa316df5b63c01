#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Do the tests notice when libamp is wrong? mutants.py [--sample N] [--seed S] [--tests REVISION] [FOLDER...]

Takes N places at random in FOLDERs of src/ (default: what decides about scales, masters, brackets and levels; src: all
but kernels/, whose tests have other ways to see) and makes each wrong in its turn: a condition turned round, a
comparison that takes in its bound or not, a sum for a difference, a constant one larger, a call or an assignment left
out. All of them are compiled at once, each behind a number that the environment gives (AMP_MUTANT), so that the
programs are built once; then the suites run for each until one fails, those first that take a quarter of the time and
notice most. Prints those that lived: a place that no test looks at, or where the wrong is as good as the right.

--tests REVISION takes tests/ from there: the same mutants (same seed) against older tests. Needs clang, and libclang
(PyPI) of its version.
"""
import argparse
import collections
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys

import clang.cindex
from clang.cindex import CursorKind as Kind

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ["src/scaler", "src/master", "src/bracket", "src/opt_levels"]
SLOW = ["slow", "lint", "docs", "abi", "packaging", "bench", "train", "cuda", "kernels", "cxx", "libtorch"]
QUICK = ["model", "scaling", "levels", "optim", "state", "badinput", "loop"]
CONFIGURED = ["-Dtests=enabled", "-Dexamples=disabled", "-Dcuda=disabled", "-Donednn=disabled", "-Dsimd=disabled",
              "-Dbuildtype=debug", "-Doptimization=1"]
OTHER = {"==": ["!="], "!=": ["=="], "<": [">=", "<="], ">": ["<=", ">="], "<=": [">", "<"], ">=": ["<", ">"],
         "&&": ["||"], "||": ["&&"], "+": ["-"], "-": ["+"], "*": ["+"], "&": ["|"], "|": ["&"]}
MACRO = re.compile(r"[A-Z][A-Z0-9_]*\(")  # what stands in it is not in the source
CHOOSES = "amp__mutant == {number} ? ({wrong}) : ({right})"
SWITCH = """
int amp__mutant;
__attribute__((constructor)) static void mutate(void) {
    const char *number = getenv("AMP_MUTANT");
    amp__mutant = number ? atoi(number) : 0;
}
"""

Mutant = collections.namedtuple("Mutant", "path begin end line what text")  # text: a format, of the number


def offsets(cursor):
    return cursor.extent.start.offset, cursor.extent.end.offset


class Finder:
    """The mutants of one file: what its functions compute as they run."""

    def __init__(self, path, unit):
        self.path, self.source, self.found = path, path.read_bytes(), []
        for cursor in unit.cursor.get_children():
            if cursor.kind == Kind.FUNCTION_DECL and cursor.is_definition() and self.is_here(cursor):
                self.visit(cursor)

    def is_here(self, cursor):
        return cursor.location.file and pathlib.Path(cursor.location.file.name).resolve() == self.path

    def text(self, begin, end):
        return self.source[begin:end].decode().replace("{", "{{").replace("}", "}}")

    def add(self, cursor, what, text):
        begin, end = offsets(cursor)
        self.found.append(Mutant(self.path, begin, end, cursor.location.line, what, text))

    def choice(self, cursor, what, wrong):
        self.add(cursor, what, "(" + CHOOSES.format(number="{number}", wrong=wrong,
                                                    right=self.text(*offsets(cursor))) + ")")

    def visit(self, cursor):
        for child in cursor.get_children():
            if child.kind in (Kind.CASE_STMT, Kind.CXX_UNARY_EXPR, Kind.STATIC_ASSERT, Kind.ENUM_DECL):
                for inner in list(child.get_children())[1:] if child.kind == Kind.CASE_STMT else []:  # its statement
                    self.visit(inner)
                continue
            if self.text(*offsets(child)).startswith("__builtin"):
                continue
            if child.kind == Kind.VAR_DECL and (child.storage_class == clang.cindex.StorageClass.STATIC or
                                                child.type.get_array_size() >= 0):
                continue
            self.mutate(cursor, child)
            self.visit(child)

    def mutate(self, parent, cursor):
        begin, end = offsets(cursor)
        if MACRO.match(self.text(begin, end)):
            return
        children = list(cursor.get_children())
        if cursor.kind == Kind.BINARY_OPERATOR and len(children) == 2:
            left, right = offsets(children[0]), offsets(children[1])
            operator = self.text(left[1], right[0]).strip()
            numbers = all(child.type.kind != clang.cindex.TypeKind.POINTER
                          for child in children) or operator not in "+-"
            if (left[0], right[1]) == (begin, end) and left[1] < right[0] and numbers:
                for other in OTHER.get(operator, ()):
                    wrong = f"{self.text(*left)} {other} {self.text(*right)}"
                    self.choice(cursor, f"{operator} is {other}", wrong)
        if cursor.kind == Kind.INTEGER_LITERAL and self.text(begin, end).isdigit():
            self.choice(cursor, f"{self.text(begin, end)} is {int(self.text(begin, end)) + 1}",
                        f"{self.text(begin, end)} + 1")
        if cursor.kind == Kind.IF_STMT and children:
            self.choice(children[0], "if (!...)", f"!({self.text(*offsets(children[0]))})")
        is_statement = parent.kind == Kind.COMPOUND_STMT and self.text(end, end + 1) == ";"
        if is_statement and cursor.kind in (Kind.CALL_EXPR, Kind.BINARY_OPERATOR, Kind.COMPOUND_ASSIGNMENT_OPERATOR):
            self.add(cursor, "left out", "if (amp__mutant != {number}) " + self.text(begin, end))


def find(folders):
    index, found = clang.cindex.Index.create(), []
    builtin = subprocess.run(["clang", "-print-resource-dir"], stdout=subprocess.PIPE, text=True,
                             check=True).stdout.strip()
    options = ["-std=gnu11", "-D_GNU_SOURCE", f"-I{ROOT}/include", f"-I{ROOT}/src", "-isystem", builtin + "/include"]
    for path in sorted(file for folder in folders for file in (ROOT / folder).rglob("*.c")
                       if "device" not in file.name and (folder != "src" or "kernels" not in file.parts)):
        unit = index.parse(str(path), args=options)
        errors = [str(problem) for problem in unit.diagnostics if problem.severity >= clang.cindex.Diagnostic.Error]
        if errors:
            sys.exit(f"mutants.py: {path}: {errors[0]}")
        found += Finder(path, unit).found
    return found


def sample(found, count, seed):
    """At random, and none within another."""
    random.Random(seed).shuffle(found)
    chosen = []
    for mutant in found:
        if len(chosen) == count:
            break
        if not any(mutant.path == other.path and mutant.begin < other.end and other.begin < mutant.end
                   for other in chosen):
            chosen.append(mutant)
    return chosen


def plant(tree, mutants):
    by_file = collections.defaultdict(list)
    for number, mutant in enumerate(mutants, 1):
        by_file[mutant.path].append((mutant, number))
    for path, planted in by_file.items():
        source = path.read_bytes()
        for mutant, number in sorted(planted, key=lambda one: -one[0].begin):
            source = source[:mutant.begin] + mutant.text.format(number=number).encode() + source[mutant.end:]
        (tree / path.relative_to(ROOT)).write_bytes(b"extern int amp__mutant;\n" + source)
    with open(tree / "src/common/alloc.c", "a", encoding="utf-8") as switch:
        switch.write(SWITCH)


def copy(tree, tests):
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    for revision, paths in ((("HEAD", ["."]),) if not tests else (("HEAD", [".", ":!tests"]), (tests, ["tests"]))):
        archive = subprocess.run(["git", "archive", revision, *paths], cwd=ROOT, stdout=subprocess.PIPE,
                                 check=True).stdout
        subprocess.run(["tar", "-x", "-C", str(tree)], input=archive, check=True)


def run(command, tree, log, number=0):
    environment = {**os.environ, "AMP_MUTANT": str(number)}
    with open(log, "w", encoding="utf-8") as output:
        return subprocess.run(command, cwd=tree, stdout=output, stderr=subprocess.STDOUT, env=environment,
                              check=False).returncode


def first_failure(log):
    for line in log.read_text(errors="replace").splitlines():
        if any(word in line for word in (" FAIL", " TIMEOUT", " ERROR")) and ":" in line and "/" in line.split()[0]:
            return " ".join(line.split()[1:5])
    return "?"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", default=FOLDERS)
    parser.add_argument("--sample", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tests", metavar="REVISION", default="")
    given = parser.parse_args()
    tree = ROOT / "build" / ("mutants-" + (given.tests or "now"))
    mutants = sample(find(given.folders), given.sample, given.seed)
    copy(tree, given.tests)
    plant(tree, mutants)
    log = tree / "log"
    if run(["meson", "setup", "build", *CONFIGURED], tree, log) or run(["ninja", "-C", "build"], tree, log):
        sys.exit(f"mutants.py: it does not build: {log}")
    test = ["meson", "test", "-C", "build", "--no-rebuild", "--maxfail", "1"]
    tests = [[*test, *(f"--suite={suite}" for suite in QUICK)],
             [*test, *(f"--no-suite={suite}" for suite in SLOW + QUICK)]]
    if any(run(test, tree, log) for test in tests):
        sys.exit(f"mutants.py: the tests fail where nothing is wrong: {log}")
    lived = 0
    for number, mutant in enumerate(mutants, 1):
        killed = any(run(test, tree, log, number) != 0 for test in tests)
        lived += not killed
        place = f"{mutant.path.relative_to(ROOT)}:{mutant.line}"
        print(f"{'killed' if killed else 'LIVED '} {number:3} {place}: {mutant.what}"
              f"{' (' + first_failure(log) + ')' if killed else ''}", flush=True)
    print(f"{len(mutants)} mutants: {len(mutants) - lived} killed, {lived} lived")


if __name__ == "__main__":
    main()
