# SPDX-License-Identifier: Apache-2.0
"""The program libamp.report: options, output, exit status."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import tempfile

from . import board, doctor, page, read, text


def options(args: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m libamp.report",
        description="The effects of mixed precision on a training, from its trace: one page that needs no network.",
        epilog="Two files, or two trainings of one, are shown beside each other, with where they part first.",
    )
    parser.add_argument("trace", nargs="+", help="by AMP_TRACE=FILE with AMP_OBSERVE=1, or by libamp.doctor --json")
    parser.add_argument("-o", "--output", metavar="FILE", help="the page; default report.html; - is standard output")
    parser.add_argument("--text", action="store_true", help="for terminals, on standard output; a page only with -o")
    parser.add_argument("--tensorboard", metavar="DIR", help="as events for TensorBoard; a page only with -o")
    parser.add_argument("--context", type=int, metavar="N", help="this one of a file's trainings; default: all")
    return parser.parse_args(args)


def main(args: list[str] | None = None) -> int:
    """Returns the exit status: 0, 1 if a trace has unreadable lines (the report names them), 2 if nothing was made."""
    given = options(args)
    try:
        return make(given)
    except read.Unreadable as error:
        return refuse(str(error))
    except board.Missing as error:
        return refuse(str(error))
    except OSError as error:
        return refuse(f"{error.filename or given.output}: {error.strerror}")


def refuse(message: str) -> int:
    print(f"libamp.report: {message}", file=sys.stderr)
    return 2


def make_of_doctor(given: argparse.Namespace) -> int:
    """Shows the result of the doctor, which stands alone."""
    if len(given.trace) > 1 or given.tensorboard or given.context is not None:
        raise read.Unreadable(f"{given.trace[0]}: a result of libamp.doctor is shown alone, as a page or as --text")
    data = doctor.read(given.trace[0])
    if given.text:
        sys.stdout.write(doctor.text(data))
    output = given.output or (None if given.text else "report.html")
    if output:
        put(output, doctor.page(given.trace[0], data), "1 result")
    return 0


def put(output: str, content: str, what: str) -> None:
    if output == "-":
        sys.stdout.write(content)
        return
    write_whole(output, content)
    print(f"{output}: {what}", file=sys.stderr)


def make(given: argparse.Namespace) -> int:
    if any(map(doctor.is_result, given.trace)):
        return make_of_doctor(given)
    traces = [read.read(path) for path in given.trace]
    chosen = [
        (trace, training)
        for trace in traces
        for training in trace.trainings
        if given.context in (None, training.context)
    ]
    if not chosen:
        there = sorted({training.context for trace in traces for training in trace.trainings})
        raise read.Unreadable(f"there is no context {given.context}: there are {', '.join(map(str, there))}")
    if given.text:
        sys.stdout.write(text.report(chosen))
    if given.tensorboard:
        for i, (_, training) in enumerate(chosen):
            board.write(training, os.path.join(given.tensorboard, str(i)) if len(chosen) > 1 else given.tensorboard)
    output = given.output or (None if given.text or given.tensorboard else "report.html")
    if output:
        put(output, page.page(chosen), f"{len(chosen)} training{'s' if len(chosen) > 1 else ''}")
    problems = [f"{trace.name}: {problem}" for trace in traces for problem in trace.problems]
    for problem in problems:
        print(f"libamp.report: {problem}", file=sys.stderr)
    return 1 if problems else 0


def write_whole(path: str, content: str) -> None:
    """Writes a file completely or not at all. The old file remains until then."""
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):  # otherwise the error would name a temporary file
        raise FileNotFoundError(errno.ENOENT, "there is no such folder", folder)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=folder, delete=False) as file:
        try:
            file.write(content)
            file.flush()
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(file.name, 0o666 & ~umask)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
