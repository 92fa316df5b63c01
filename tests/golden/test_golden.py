#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The files and the program of an earlier release with this build: test_golden.py SOURCE RELEASE PROGRAM...

PROGRAM is this tree's program.c, and those that releases compiled. Each reads RELEASE's checkpoints and trains on, to
the bits of numbers.txt, and writes the same files from the start. Prints TAP.
"""
import json
import pathlib
import re
import struct
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "packaging"), str(HERE.parent / "trace")]
from check_trace import complaint  # noqa: E402
from support import Tap, expect, run, scratch  # noqa: E402

QUIET = {"AMP_LOG": "off"}
OF_THE_BUILD = {"libamp.version", "libamp.crc64"}  # a checkpoint's
OF_THE_RUN = {"pid", "libamp", "message"}          # a trace's
OF_THE_MACHINE = {"advice", "survey"}              # kinds of lines: which levels are fast here
# Cuts and changes of one bit that a checksum finds, or what comes before it; no message may be without its place.
CAUSES = re.compile(r"checksum|bytes|header|JSON|safetensors|not a state|cut|short|empty", re.IGNORECASE)


def numbers(text):
    return {line.split(":")[0]: line for line in text.splitlines()}


def same_numbers(release, text):
    wanted, found = numbers((release / "numbers.txt").read_text(encoding="utf-8")), numbers(text)
    expect(len(wanted) > 40, "numbers.txt is nearly empty")
    for key in wanted:
        expect(found.get(key) == wanted[key], f"{found.get(key)}\nis not\n{wanted[key]}")
    expect(set(found) == set(wanted), f"more than was asked: {sorted(set(found) - set(wanted))}")


def state(path):
    """(metadata, {name: (type, shape, bytes)})"""
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + length])
    return header.pop("__metadata__"), {
        name: (entry["dtype"], entry["shape"], raw[8 + length:][slice(*entry["data_offsets"])])
        for name, entry in header.items()}


def files(release, ending):
    found = sorted(release.glob(f"*.{ending}"))
    expect(found, f"no file *.{ending} in {release}")
    return found


def same_states(release, out):
    """Of one version the whole file; later ones may have more."""
    for path in files(release, "safetensors"):
        (meta, tensors), (new_meta, new_tensors) = state(path), state(out / path.name)
        for key in meta.keys() - OF_THE_BUILD:
            expect(new_meta.get(key) == meta[key], f"{path.name}: {key} is {new_meta.get(key)}, was {meta[key]}")
        for name, tensor in tensors.items():
            expect(new_tensors.get(name) == tensor, f"{path.name}: {name} differs")
        if meta["libamp.version"] == new_meta["libamp.version"]:
            expect(path.read_bytes() == (out / path.name).read_bytes(),
                   f"{path.name}: the version is the same, and the file is not: {new_meta.keys() ^ meta.keys()}")


def same_traces(release, out):
    seen = set()
    for path in files(release, "jsonl"):
        old, new = ([json.loads(line) for line in (folder / path.name).read_text(encoding="utf-8").splitlines()]
                    for folder in (release, out))
        kinds = {line["kind"] for line in old}
        seen |= kinds
        new = [line for line in new if line["kind"] in kinds]
        expect(len(new) == len(old), f"{path.name}: {len(new)} lines, {len(old)} then")
        for was, now in zip(old, new):
            for name in was.keys() - OF_THE_RUN:
                free = was["kind"] in OF_THE_MACHINE and name in now
                expect(free or now.get(name, "missing") == was[name],
                       f"{path.name}: {name} of {was['kind']} is {now.get(name, 'missing')}, was {was[name]}")
    expect({"start", "wired", "bracket", "seen", "memory", "call", "culprit", "op", "end"} <= seen, f"traces of {seen}")


def refused(text):
    lines = [line for line in text.splitlines() if line]
    expect(len(lines) > 300, f"{len(lines)} damaged files")
    for line in lines:
        case, what, at, status, message = re.match(r"(\S+) (\S+) (\d+): (\w+): ?(.*)", line + " ").groups()
        expect(status == "AMP_ERR_BAD_FILE", line)
        expect(f"{case}.damaged" in message and CAUSES.search(message), f"{what} at {at}, no clear cause: {line}")


def test_program(tap, release, program):
    by = f"{release.name}, by {program.name}"
    with scratch() as out:
        with tap.test(f"{by}: its checkpoints load and train on, to the bit"):
            same_numbers(release, run(program, "resume", release, out, env=QUIET))
        with tap.test(f"{by}: saved again, they are the same"):
            same_states(release, out)
        with tap.test(f"{by}: what is changed, cut or extended is refused, with its place and cause"):
            refused(run(program, "damage", release, out, env=QUIET))
    with scratch() as out:
        with tap.test(f"{by}: trained from the start, to the bit"):
            same_numbers(release, run(program, "make", out, env=QUIET))
        with tap.test(f"{by}: the checkpoints and traces that it writes have all that they had"):
            same_states(release, out)
            same_traces(release, out)
            for path in files(release, "json"):
                expect(path.read_text(encoding="utf-8") == (out / path.name).read_text(encoding="utf-8"), path.name)
    with tap.test(f"{by}: the rest of the interface"):
        said, wanted = run(program, "calls", env=QUIET), (release / "calls.txt").read_text(encoding="utf-8")
        for now, was in zip(said.splitlines(), wanted.splitlines()):
            expect(now == was, f"{now}\nis not\n{was}")
        expect(said.count("\n") == wanted.count("\n") > 60, "lines are missing")


def main():
    source, release, programs = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3:]
    tap = Tap()
    with tap.test(f"{release.name}: its traces fit today's schema"):
        schema = json.loads((source / "docs" / "reference" / "trace.schema.json").read_text(encoding="utf-8"))
        for path in files(release, "jsonl"):
            for line in path.read_text(encoding="utf-8").splitlines():
                said = complaint(schema, json.loads(line))
                expect(not said, f"{path.name}: {said}")
    for program in programs:
        test_program(tap, release, pathlib.Path(program))
    tap.done()


if __name__ == "__main__":
    main()
