#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The files and the program of an earlier release with this build: test_golden.py SOURCE RELEASE PROGRAM...

PROGRAM is this tree's program.c, and those that releases compiled. Each reads RELEASE's checkpoints and trains on, to
the bits of numbers.txt, and writes the same files from the start. Prints TAP.

Loaded bits are RELEASE's for ever. Trained bits, defaults and findings may change in a minor release
(docs/reference/abi.md): from then on they are not compared (`exact`), and numbers.txt stays as it is.
"""
import contextlib
import json
import pathlib
import re
import struct
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "packaging"), str(HERE.parent / "trace")]
from check_trace import complaint  # noqa: E402
from support import Failed, Tap, expect, run, scratch  # noqa: E402

QUIET = {"AMP_LOG": "off"}
OF_THE_BUILD = {"libamp.version", "libamp.crc64"}  # a checkpoint's
OF_THE_RUN = {"pid", "libamp", "message"}          # a trace's
OF_THE_MACHINE = {"advice", "survey"}              # kinds of lines: which levels are fast here
# Cuts and changes of one bit that a checksum finds, or what comes before it; no message may be without its place.
CAUSES = re.compile(r"checksum|bytes|header|JSON|safetensors|not a state|cut|short|empty", re.IGNORECASE)


@contextlib.contextmanager
def reading(path):
    expect(path.exists(), f"{path} was not written")
    try:
        yield
    except (ValueError, KeyError, struct.error) as error:
        raise Failed(f"{path} is damaged: {error!r}") from error


def is_exact(source, release):
    header = (source / "include" / "amp.h").read_text(encoding="utf-8")
    return release.name.split(".")[:2] == [re.search(rf"AMP_VERSION_{part} (\d+)", header).group(1)
                                           for part in ("MAJOR", "MINOR")]


def numbers(text):
    return {line.split(":")[0]: line for line in text.splitlines()}


def same_numbers(release, text, pinned=""):
    """Equal in the lines whose name ends in `pinned`; the others are there."""
    wanted, found = numbers((release / "numbers.txt").read_text(encoding="utf-8")), numbers(text)
    expect(len(wanted) > 40, "numbers.txt is nearly empty")
    for key in wanted:
        if key.endswith(pinned):
            expect(found.get(key) == wanted[key], f"{found.get(key)}\nis not\n{wanted[key]}")
    expect(set(found) == set(wanted), f"more or less than was asked: {sorted(set(found) ^ set(wanted))}")


def state(path):
    """(metadata, {name: (type, shape, bytes)})"""
    with reading(path):
        raw = path.read_bytes()
        length = struct.unpack("<Q", raw[:8])[0]
        header = json.loads(raw[8:8 + length])
        return header.pop("__metadata__"), {
            name: (entry["dtype"], entry["shape"], raw[8 + length:][slice(*entry["data_offsets"])])
            for name, entry in header.items()}


def lines_of(path):
    with reading(path):
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def files(release, ending):
    found = sorted(release.glob(f"*.{ending}"))
    expect(found, f"no file *.{ending} in {release}")
    return found


def same_states(release, out, exact=True):
    """Of one version the whole file; later ones may have more."""
    for path in files(release, "safetensors"):
        (meta, tensors), (new_meta, new_tensors) = state(path), state(out / path.name)
        if not exact:
            lost = (meta.keys() - new_meta.keys()) | (tensors.keys() - new_tensors.keys())
            expect(not lost, f"{path.name}: {sorted(lost)} are gone")
            continue
        for key in meta.keys() - OF_THE_BUILD:
            expect(new_meta.get(key) == meta[key], f"{path.name}: {key} is {new_meta.get(key)}, was {meta[key]}")
        for name, tensor in tensors.items():
            expect(new_tensors.get(name) == tensor, f"{path.name}: {name} differs")
        if meta["libamp.version"] == new_meta["libamp.version"]:
            expect(path.read_bytes() == (out / path.name).read_bytes(),
                   f"{path.name}: the version is the same, and the file is not: {new_meta.keys() ^ meta.keys()}")


def same_traces(release, out, exact):
    seen = set()
    if exact:
        lost = {path.name for path in files(out, "jsonl")} ^ {path.name for path in files(release, "jsonl")}
        expect(not lost, f"{sorted(lost)} are in one folder alone")
    for path in files(release, "jsonl"):
        old, new = lines_of(path), lines_of(out / path.name)
        kinds = {line["kind"] for line in old}
        seen |= kinds
        new = [line for line in new if line["kind"] in kinds]
        if not exact:
            lost = {(line["kind"], name) for line in old for name in line} - {
                (line["kind"], name) for line in new for name in line}
            expect(not lost, f"{path.name}: {sorted(lost)} are gone")
            continue
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


def same_calls(release, said, exact):
    now, was = said.splitlines(), (release / "calls.txt").read_text(encoding="utf-8").splitlines()
    if not exact:  # the statuses
        now, was = ([line for line in lines if ": AMP_" in line] for lines in (now, was))
    expect(len(was) > 30, "calls.txt is nearly empty")
    expect(len(now) == len(was), f"{len(now)} lines, {len(was)} then")
    for line, then in zip(now, was):
        expect(line == then, f"{line}\nis not\n{then}")


def test_rules(tap, release):
    """The rules of other minor versions, on this release's files with changes."""
    def complains(work, *arguments):
        try:
            work(*arguments)
        except Failed as error:
            return str(error)
        return ""

    text, calls = ((release / f"{name}.txt").read_text(encoding="utf-8") for name in ("numbers", "calls"))
    trained = re.sub(r"( trained: weight )\w+", r"\1 0", text)
    loaded = re.sub(r"( saved: weight )\w+", r"\1 0", text)
    with tap.test(f"{release.name}: another minor version may train to other bits, and loads the same"):
        expect(trained != text != loaded and not complains(same_numbers, release, trained, "saved"), "it may not")
        expect(complains(same_numbers, release, loaded, "saved"), "it may load other bits")
        expect(complains(same_numbers, release, trained), "a patch release may")
        expect(complains(same_numbers, release, text.partition("\n")[2], "saved"), "a case may be missing")
    with tap.test(f"{release.name}: another minor version may compute other numbers, and returns the same statuses"):
        other = re.sub(r"(?m)^(product|weights): \w+$", r"\1: 0", calls)
        expect(other != calls and not complains(same_calls, release, other, False), "it may not")
        expect(complains(same_calls, release, other, True), "a patch release may")
        expect(complains(same_calls, release, calls.replace("matmul: AMP_OK", "matmul: AMP_ERR_IO"), False), "it may")
    with tap.test("a damaged file is named"), scratch() as folder:
        for path, ending in ((files(release, "safetensors")[0], 40), (files(release, "jsonl")[0], -3)):
            (folder / path.name).write_bytes(path.read_bytes()[:ending])
            read = state if path.suffix == ".safetensors" else lines_of
            expect(f"{folder / path.name} is damaged" in complains(read, folder / path.name), path.name)
            expect("was not written" in complains(read, folder / "nothing"), path.name)


def test_program(tap, release, program, exact):
    by = f"{release.name}, by {program.name}"
    with scratch() as out:
        with tap.test(f"{by}: its checkpoints load and train on, to the bit"):
            same_numbers(release, run(program, "resume", release, out, env=QUIET), "" if exact else "saved")
        with tap.test(f"{by}: saved again, they are the same"):
            same_states(release, out)
        with tap.test(f"{by}: what is changed, cut or extended is refused, with its place and cause"):
            refused(run(program, "damage", release, out, env=QUIET))
    with scratch() as out:
        with tap.test(f"{by}: trained from the start, to the bit"):
            same_numbers(release, run(program, "make", out, env=QUIET), "" if exact else "none of them")
        with tap.test(f"{by}: the checkpoints and traces that it writes have all that they had"):
            same_states(release, out, exact)
            same_traces(release, out, exact)
            for path in files(release, "json") if exact else []:
                expect(path.read_text(encoding="utf-8") == (out / path.name).read_text(encoding="utf-8"), path.name)
    with tap.test(f"{by}: the rest of the interface"):
        same_calls(release, run(program, "calls", env=QUIET), exact)


def main():
    source, release, programs = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3:]
    tap = Tap()
    with tap.test(f"{release.name}: its traces fit today's schema"):
        schema = json.loads((source / "docs" / "reference" / "trace.schema.json").read_text(encoding="utf-8"))
        for path in files(release, "jsonl"):
            for line in lines_of(path):
                said = complaint(schema, line)
                expect(not said, f"{path.name}: {said}")
    test_rules(tap, release)
    for program in programs:
        test_program(tap, release, pathlib.Path(program), is_exact(source, release))
    tap.done()


if __name__ == "__main__":
    main()
