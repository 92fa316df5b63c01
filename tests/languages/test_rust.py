#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The crates of bindings/rust, with rustc alone: test_rust.py SOURCE LIBAMP_SYS_RS LIBAMP. Prints TAP.

They compile without a warning, what they promise holds, what their documentation says does not compile does not, for
the reason it gives, and the example trains at each level.
"""
import pathlib
import re
import sys

from programs import Tap, check_levels, check_page, expect, find, run, scratch, write_digits


class Crates:
    def __init__(self, rustc, source, folder, library):
        self.rustc, self.source, self.folder, self.library = rustc, source / "bindings" / "rust", folder, library.parent

    def compile(self, path, *arguments, status=0):
        return run(self.rustc, "--edition", "2021", "-D", "warnings", "-L", self.folder, "-L", self.library,
                   "--out-dir", self.folder, *arguments, path, status=status)

    def crate(self, name, path, *arguments):
        self.compile(path, "--crate-type", "rlib", "--crate-name", name, *arguments)

    def uses(self):
        return "--extern", f"libamp={self.folder / 'liblibamp.rlib'}"

    def run(self, name, *arguments):
        return run(self.folder / name, *arguments, env={"LD_LIBRARY_PATH": str(self.library), "RUST_BACKTRACE": "0"})


def misuses(text):
    """(error, program) of each block that its documentation says does not compile."""
    text = "\n".join(re.sub(r"^//! ?", "", line) for line in text.splitlines())
    for error, block in re.findall(r"^```compile_fail,(E\d+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield error, re.sub(r"^# ", "", block, flags=re.MULTILINE)


def check_misuses(crates):
    found = list(misuses((crates.source / "libamp/src/lib.rs").read_text(encoding="utf-8")))
    expect(len(found) > 5, f"{len(found)} examples")
    for error, block in found:
        path = crates.folder / "misuse.rs"
        path.write_text(f"#![allow(dead_code, unused)]\n{block}", encoding="utf-8")
        said = crates.compile(path, "--crate-type", "lib", "--emit", "metadata", *crates.uses(), status=None)
        errors = set(re.findall(r"^error\[(E\d+)\]", said, re.MULTILINE))
        expect(errors == {error}, f"{sorted(errors)}, not {error}, for\n{block}\n{said}")


def main():
    source, generated, library, tap = *(pathlib.Path(path).resolve() for path in sys.argv[1:4]), Tap()
    rustc = find("RUSTC", "rustc")
    if not rustc:
        tap.skip_all("there is no rustc (Debian: rustc)")
    print(f"# {run(rustc, '--version').strip()}")
    with scratch() as folder:
        crates = Crates(rustc, source, folder, library)
        with tap.test("the generated declarations compile, and have the sizes of C"):
            crates.crate("libamp_sys", generated)
        with tap.test("the safe layer compiles"):
            sys_crate = f"libamp_sys={folder / 'liblibamp_sys.rlib'}"
            crates.crate("libamp", crates.source / "libamp/src/lib.rs", "--extern", sys_crate)
        with tap.test("what it promises holds"):
            for name, least in {"training": 15, "borrowed": 5}.items():
                crates.compile(crates.source / f"libamp/tests/{name}.rs", "--test", *crates.uses())
                passed = re.search(r"test result: ok\. (\d+) passed; 0 failed; 0 ignored", crates.run(name))
                expect(passed and int(passed.group(1)) >= least, f"{name}: too few tests ran")
        with tap.test("what must not compile does not"):
            check_misuses(crates)
        with tap.test("the program of the documentation prints what stands there"):
            page = (source / "docs" / "start" / "other-languages.md").read_text(encoding="utf-8")
            program = crates.source / "libamp/examples/minimal.rs"
            crates.compile(program, *crates.uses())
            check_page(page, "rust", program, crates.run("minimal"))
        with tap.test("the digits are learned at O0, O1 and O4"):
            crates.compile(crates.source / "libamp/examples/digits.rs", *crates.uses())
            digits = write_digits(source, folder)
            check_levels(lambda level: crates.run("digits", digits, level))
    tap.done()


if __name__ == "__main__":
    main()
