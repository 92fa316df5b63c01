#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fast-math flags fail the configuration, in words: test_fast_math.py SOURCE"""
import pathlib
import sys

from support import Tap, expect, scratch, setup

OFF = ["-Dtests=disabled", "-Dexamples=disabled", "-Dcuda=disabled"]


def main():
    source, tap = pathlib.Path(sys.argv[1]), Tap()
    with scratch() as folder:
        # The proof that it is the flag that is refused: everything else configures.
        with tap.test("-Dc_args=-O2 configures"):
            setup(folder / "plain", source, *OFF, "-Dc_args=-O2")
        for flag in ("-ffast-math", "-Ofast", "-ffinite-math-only"):
            with tap.test(f"-Dc_args={flag} is refused, naming fast-math"):
                said = setup(folder / flag, source, *OFF, f"-Dc_args={flag}", status=None)
                expect("ERROR" in said and "fast-math" in said.split("ERROR", 1)[1], said)
        with tap.test("-ffast-math in CFLAGS is refused"):
            said = setup(folder / "environment", source, *OFF, status=None, env={"CFLAGS": "-ffast-math"})
            expect("fast-math" in said.split("ERROR", 1)[1], said)
    tap.done()


if __name__ == "__main__":
    main()
