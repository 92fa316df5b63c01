#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A trainer in one file, adapted without an edit: test_tableless.py SOURCE LIBAMP REFERENCE CC... Prints TAP.

Runs the commands of docs/reference/symbols.md, as they stand there, on trainer.c and adapter.c. What
each of the adapted programs prints is, bit for bit, what the trainer prints with its slots untouched, and at each
level what the reference of tests/hosts/common and the same trainer with an op table print; libamp's counts say that it
saw every call.
"""
import os
import pathlib
import re
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "symbol"))
# noqa: E402  pylint: disable=wrong-import-position
from programs import Tap, expect, run, scratch, skip_unless_supported

HERE = pathlib.Path(__file__).resolve().parent
RECIPES = ["--wrap", "Shared build", "Preload", "objcopy"]
# A static scale, as the reference has; 0 is the level's own.
LEVELS = {"O0": 1, "O1": 1024, "O2": 1024, "O3": 1, "O4": 1, "O5": 1}
STEPS = 60
# Calls that the policy must see. At O1 and O4 batch norm and ReLU have no class that casts here, and are not wrapped;
# without a scale the seed is not either.
CALLS = {"linear_forward": 2 * STEPS, "linear_backward": 2 * STEPS}
SEED_CALLS = {"crossentropy_backward": STEPS}
MODEL_CALLS = {"batchnorm_forward": STEPS, "batchnorm_backward": STEPS, "relu_forward": STEPS, "relu_backward": STEPS}


class Place:
    """A folder with the trainer, whole and in parts, the adapter, and what the commands of the documentation need."""

    def __init__(self, folder, source, library, compiler):
        self.folder, self.library, self.source = folder, library, source
        trainer = (HERE / "trainer.c").read_text(encoding="utf-8")
        self.head, *self.parts = re.split(r"(?m)^/\* ---- \w+ ---- \*/$", trainer)
        self.functions = re.findall(r"(?m)^(?:void|float) (\w+)\(.*[,;]$", self.head)
        expect(len(self.parts) == 3 and len(self.functions) == 15, f"trainer.c has {self.functions}")
        self.write("trainer.c", trainer)
        self.write("adapter.c", (HERE / "adapter.c").read_text(encoding="utf-8"))
        self.write("trainer.h", self.head)
        for name, part in zip(("layers", "network", "program"), self.parts):
            self.write(f"{name}.c", '#include "trainer.h"\n' + part)
        self.write("libamp.pc", "Name: libamp\nDescription: the one just built\nVersion: 0\n"
                   f"Cflags: -I{source}/include\nLibs: -L{library.parent} -lamp\n")
        (folder / "bin").mkdir()
        compiler = " ".join(shutil.which(word) or word for word in compiler)  # ccache's cc, too, would be this script
        self.write("bin/cc", f"#!/bin/sh\nexec {compiler} -ffp-contract=off \"$@\"\n")
        (folder / "bin" / "cc").chmod(0o755)

    def write(self, name, text):
        (self.folder / name).write_text(text, encoding="utf-8")

    def shell(self, command, **environment):
        paths = {"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "PKG_CONFIG_PATH": str(self.folder),
                 "LD_LIBRARY_PATH": str(self.library.parent)}
        return run("sh", "-ec", command, cwd=self.folder, env={**paths, **environment})

    def recipe(self, heading):
        """The commands that build, and the one that runs."""
        text = (self.source / "docs" / "reference" / "symbols.md").read_text(encoding="utf-8")
        section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
        *build, last = re.search(r"```sh\n(.*?)```", section, re.DOTALL).group(1).splitlines()
        expect(last.startswith("ADAPT_LEVEL=O1 ") and last.endswith("./trainer"), f"the last command is {last}")
        return "\n".join(build), last.split(" ", 1)[1]

    def table(self):
        """The trainer's three parts with a table between them, and the adapter for that."""
        definitions = "\n".join(f"    .{name} = {name}," for name in self.functions if name != "uniform")
        self.write("table.h", (HERE / "table.h").read_text(encoding="utf-8"))
        self.write("table.c",
                   f'#include "trainer.h"\n#include "table.h"\nstruct table table = {{\n{definitions}\n}};\n')
        layers, network = [[name for name in self.functions if re.search(rf"(?m)^(void|float) {name}\(", part)]
                           for part in self.parts[:2]]
        for part, calls in ((1, layers), (2, network)):
            lines = [f"#define {name}(...) table.{name}(__VA_ARGS__)" for name in calls if name != "uniform"]
            self.write(f"table_{part}.c",
                       '#include "trainer.h"\n#include "table.h"\n' + "\n".join(lines) + self.parts[part])
        self.shell("cc -O2 -DADAPT_TABLE -o table layers.c table_1.c table_2.c table.c adapter.c -lm "
                   "$(pkg-config --cflags --libs libamp)")
        return "./table"

    def unseen(self):
        """--wrap where it does not reach: layers and network are one object."""
        self.write("middle.c", '#include "trainer.h"\n' + "".join(self.parts[:2]))
        self.shell("cc -O2 -c middle.c program.c\ncc -O2 -DADAPT_WRAP -c adapter.c $(pkg-config --cflags libamp)\n"
                   "nm adapter.o | sed -n 's/.* T __wrap_/-Wl,--wrap=/p' > wrap.txt\n"
                   "cc -fuse-ld=bfd -o unseen middle.o program.o adapter.o @wrap.txt $(pkg-config --libs libamp) -lm")
        return "./unseen"

    def train(self, command, level, **more):
        """(what it printed, what libamp counted and said)"""
        more = {f"ADAPT_{name}": str(value) for name, value in more.items()}
        report = self.folder / "report"
        report.unlink(missing_ok=True)
        said = self.shell(command, ADAPT_LEVEL=level, ADAPT_REPORT=str(report), **more)
        return said, report.read_text(encoding="utf-8")


def check_counts(report, level):
    counted = report.split("param ")[0]
    seen = {**CALLS, **(SEED_CALLS if LEVELS[level] != 1 else {}), **(MODEL_CALLS if level in "O2 O3 O5" else {})}
    for name, calls in seen.items():
        expect(f"op {name} wrapped 1 calls {calls} passed 0 " in counted, f"{name}: not {calls} calls:\n{counted}")
    expect(f"brackets {STEPS} skipped 0 low 0\n" in counted, counted)
    expect("\nsound\n" in counted, counted)


def check_reference(trained, wanted):
    """The losses as printed, the parameters as they are after amp_shutdown: masters, where there were masters."""
    said, report = trained
    wanted = wanted.splitlines()
    expect(said.splitlines()[:STEPS] == wanted[:STEPS], "the losses differ")
    params = re.findall(r"(?m)^param (.*)", report)
    expect(params == wanted[STEPS:] and len(params) > 100, "the parameters differ")


def main():
    source, library, reference, compiler = *map(pathlib.Path, sys.argv[1:4]), sys.argv[4:]
    tap = Tap()
    skip_unless_supported(tap)
    with scratch() as folder:
        place = Place(folder, source.resolve(), library.resolve(), compiler)
        place.shell("cc -O2 -o plain trainer.c -lm")
        plain, wanted = place.shell("./plain"), {}
        with tap.test("the trainer alone is the reference without a level"):
            expect(plain == run(reference, 0, 1), "they differ")
        table = place.table()
        with tap.test("with an op table: the reference, bit for bit"):
            for level, scale in LEVELS.items():
                wanted[level] = place.train(table, level, SCALE=scale)
                check_reference(wanted[level], run(reference, level[1], scale))
            expect(len({said for said, _ in wanted.values()}) == len(LEVELS), "two levels gave the same")
        for heading in RECIPES:
            build, command = place.recipe(heading)
            with tap.test(f"{heading}: builds as documented, and changes nothing by itself"):
                place.shell(build)
                expect(place.shell(command) == plain, "it differs from the program alone")
            with tap.test(f"{heading}: every call is seen, every bit as with a table"):
                for level, scale in LEVELS.items():
                    said, report = place.train(command, level, SCALE=scale)
                    expect((said, report) == wanted[level], f"{level} differs")
                    if level != "O0":
                        check_counts(report, level)
            with tap.test(f"{heading}: a dynamic scale and a 16-bit implementation, as with a table"):
                for level in ("O1", "O2", "O4"):
                    expect(place.train(command, level) == place.train(table, level), f"{level} differs")
                    replaced = place.train(command, level, REPLACE=1)
                    expect(replaced == place.train(table, level, REPLACE=1), f"{level} differs with a 16-bit linear")
                    expect(f" low {2 * STEPS}\n" in replaced[1], f"linear did not run in 16 bits:\n{replaced[1]}")
        with tap.test("slots that saw no call in the first bracket are named"):
            # no seed was scaled: the bracket refuses to unscale
            said = place.shell(f"{place.unseen()} 2>&1 || echo failed", ADAPT_LEVEL="O1",
                               ADAPT_REPORT=str(place.folder / "report"))
            expect("AMP-M02" in said and "crossentropy_backward saw no call" in said and said.endswith("failed\n"),
                   said)
    tap.done()


if __name__ == "__main__":
    main()
