# SPDX-License-Identifier: Apache-2.0
"""Looks at a training in PyTorch and says what its numbers lose: python -m libamp.doctor [options] script.py args…

The script runs unedited, in this process, with its own arguments. Nothing of the training changes: no cast, no scale,
no step, no random number. docs/guide/doctor.md is the guide.
"""

from __future__ import annotations

import atexit
import contextlib
import glob
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from multiprocessing import util
from typing import TYPE_CHECKING, Any, NoReturn

from . import _check, _findings, _script, _when_torch
from ._words import counted

if TYPE_CHECKING:
    from .torch.doctor.recorder import Watch
    from .torch.doctor.result import Result

USAGE = """\
usage: python -m libamp.doctor [options] script.py args…
       python -m libamp.doctor [options] -m module args…
       python -m libamp.doctor [options] -c code args…
Runs a PyTorch training as it is, looks at it, and writes what its numbers lose to standard error.
  --strict        the status is 1 if there are findings
  --json FILE     writes the result to FILE
  --folder DIR    where ranks leave their results for rank 0, by default a folder of this machine. Give one that all
                  machines share, and rank 0 tells of all of them
  --wait SECONDS  so long the first rank waits at its end for the results of the others, by default 10
  --help          prints this text
The status is that of the script. If that is 0: 2 if nothing could be looked at, 1 with --strict if there are findings.
With several ranks: torchrun … -m libamp.doctor script.py
                 or: python -m libamp.doctor -m torch.distributed.run … script.py
"""
FOLDER = "LIBAMP_DOCTOR"  # environment variable: the folder for the results of the script's other processes
_watch: Watch | None = None


# ---- this process ----


def _begin() -> None:
    """Begins to look, behind the import of torch."""
    global _watch
    from .torch import doctor

    _watch = doctor.begin(sys.argv[0] if sys.argv else "")


def _end() -> Result | None:
    """Ends it and returns the result, None if torch was never imported."""
    global _watch
    ended, _watch = _watch, None
    if ended is None:
        return None
    from .torch import doctor

    return doctor.end(ended)


def prepare() -> None:
    """Prepares a process that a script under the doctor has started. It leaves its result in the folder, if it looked
    at something."""
    folder = os.environ.get(FOLDER)
    if folder and os.path.isdir(folder):
        _when_torch.when_imported(_begin)
        atexit.register(_leave, folder)
        _Forks(folder)


def _leave(folder: str) -> None:
    if _watch is None:
        return
    from .torch.doctor.result import path_of, write

    result = _end()
    if result is not None and result.looked:
        many = result.run.ranks > 1
        write(result, path_of(folder, f"rank-{result.run.rank}" if many else f"process-{os.getpid()}"))


class _Forks:
    """Forks of multiprocessing. One has what its parent saw, and begins anew. It ends without atexit."""

    kept: list[_Forks] = []  # multiprocessing has weak references  # noqa: RUF012

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.kept.append(self)
        util.register_after_fork(self, _Forks.begin)

    def begin(self) -> None:
        if _watch is not None:
            from .torch.doctor import taps

            taps.put_back()
            _begin()
            util.Finalize(None, _leave, (self.folder,), exitpriority=-100)


# ---- the command ----


def run(
    script: Callable[[], Any], strict: bool = False, json: str = "", folder: str = "", wait: float | None = None
) -> int:
    """Runs a script under the doctor and tells. Returns the status: 2 if nothing could be looked at, 1 with strict if
    there are findings, else 0. A script that ends otherwise ends this too, after the result is told."""
    ranks = _Ranks(folder, wait)
    _findings.keep_reports(True)
    _when_torch.when_imported(_begin)
    _Forks(ranks.folder)
    try:
        kept = script()  # its globals keep models alive until they are read
    except SystemExit as left:
        status = _tell(ranks, strict, json)
        if left.code not in (None, 0):
            raise
    except BaseException:
        _tell(ranks, strict, json)
        raise
    else:
        status = _tell(ranks, strict, json)
        del kept
    return status


class _Ranks:
    """The other processes of the script, and the folder that they share."""

    def __init__(self, folder: str, wait: float | None) -> None:
        number = {name: int(os.environ.get(name, "0")) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
        local = int(os.environ.get("LOCAL_WORLD_SIZE", number["WORLD_SIZE"] or 1))
        self.rank, self.many = number["RANK"], number["WORLD_SIZE"] > 1
        self.wait = wait
        if folder or not self.many:
            self.first, self.expected = self.rank == 0, list(range(number["WORLD_SIZE"]))
        else:  # the ranks of this machine tell its first one
            begin = self.rank - number["LOCAL_RANK"]
            self.first, self.expected = self.rank == begin, list(range(begin, begin + local))
        self.is_own = not folder
        if folder:
            os.makedirs(folder, exist_ok=True)
            self.folder = os.path.abspath(folder)
        elif self.many:  # started by one launcher, which is the parent of all
            port = os.environ.get("MASTER_PORT", "0")
            self.folder = os.path.join(tempfile.gettempdir(), f"libamp-doctor-{os.getuid()}-{os.getppid()}-{port}")
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
        else:
            self.folder = tempfile.mkdtemp(prefix="libamp-doctor-")
        os.environ[FOLDER] = self.folder

    def merged(self, own: Result | None) -> Result | None:
        """Leaves the result of this process for the first rank. Returns that of all there, None elsewhere."""
        paths = glob.glob(os.path.join(self.folder, "*.json"))
        if own is None and not paths and not self.many:
            return None
        from .torch.doctor import result as results

        if self.many and own is not None:
            results.write(own, results.path_of(self.folder, f"rank-{self.rank}"))
        if not self.first:
            return None
        if self.many:
            limit = results.WAIT if self.wait is None else self.wait
            return results.merge(results.gather(self.folder, self.expected, limit), self.expected)
        others = [results.read(path) for path in sorted(paths)]
        return results.merge([own, *others] if own is not None else others)

    def remove(self) -> None:
        if self.is_own and self.first:
            shutil.rmtree(self.folder, ignore_errors=True)


def _tell(ranks: _Ranks, strict: bool, json: str) -> int:
    """Writes the result to standard error and the file. Returns the status, 0 on ranks that only leave theirs."""
    result = ranks.merged(_end())
    ranks.remove()
    if result is not None:
        text, status = result.text(), result.status(strict)
    elif ranks.first:
        text, status = _without_torch(strict)
    else:
        return 0
    if sys.stdout is not None:
        with contextlib.suppress(OSError, ValueError):  # Python itself tells at its end of what is not written
            sys.stdout.flush()
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):  # standard error is closed: the status is the result
            sys.stderr.write(text)
            sys.stderr.flush()
    return _write(result, json, status) if result is not None and json else status


def _write(result: Any, json: str, status: int) -> int:
    """Writes the result to the file. Returns the status, 2 instead of 0 if that fails."""
    from .torch.doctor.result import write

    try:
        write(result, json)
    except OSError as error:
        print(f"libamp.doctor: --json {json}: {error.strerror}: the result is not written", file=sys.stderr)
        return status or 2
    return status


def _without_torch(strict: bool) -> tuple[str, int]:
    """Returns text and status of a script that did not import torch: libamp may have had sessions of another host."""
    reports, found = _check.sessions()
    if not reports:
        return "libamp.doctor: looked at nothing: the script did not import torch\n", 2
    count = counted(found, "finding") if found else "no finding"
    return "".join([f"libamp.doctor: {count}\n", *reports]), int(strict and found > 0)


def main(args: list[str]) -> int:
    """Runs libamp.doctor with these arguments. Returns the exit status."""
    options: dict[str, Any] = {}
    while args and args[0].startswith("--"):
        option, _, value = args.pop(0).partition("=")
        name = option[2:]
        if option == "--help":
            print(USAGE, end="")
            return 0
        if option == "--strict":
            options[name] = True
        elif option in ("--json", "--folder", "--wait"):
            value = value or (args.pop(0) if args else "")
            if not value or (option == "--wait" and not _is_number(value)):
                return _refuse(f"{option} needs {'a number of seconds' if option == '--wait' else 'a name'}")
            if option == "--json" and os.path.isdir(value):
                return _refuse(f"--json {value}: it is a folder, name a file")
            options[name] = float(value) if option == "--wait" else os.path.abspath(value)
        else:
            return _refuse(f"unknown option {option!r}")
    if args[:1] == ["-h"]:
        print(USAGE, end="")
        return 0
    if not args or args in (["-m"], ["-c"]):
        return _refuse("no script is given")
    if args[0].startswith("-") and args[0][:2] not in ("-m", "-c") and args[0] != "-":
        return _refuse(f"unknown option {args[0]!r} (options of Python itself go before `-m libamp.doctor`)")
    why = _script.why_not_run(args)
    if why:
        print(f"libamp.doctor: {why}", file=sys.stderr)
        return 2
    if _script.STARTUP not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        _script.set_environment(False)
        os.environ["LIBAMP_APEX"] = "off"  # `import apex` means what it means to the script
    return run(partial(_script.run_script, args), **options)


def _is_number(text: str) -> bool:
    try:
        return float(text) >= 0
    except ValueError:
        return False


def _refuse(message: str) -> int:
    """Prints an error and the usage. Returns the exit status 2."""
    print(f"libamp.doctor: {message}\n{USAGE}", end="", file=sys.stderr)
    return 2


def command() -> NoReturn:
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    command()
