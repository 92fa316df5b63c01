# SPDX-License-Identifier: Apache-2.0
"""Runs a script in which `import apex` imports libamp: python -m libamp.run [options] script.py args…

The script runs in a Python of its own, in the same process. Only `import apex` differs: arguments, __main__, sys.path,
exit code and tracebacks are those of a plain Python. Processes that the script starts (workers, spawned children,
ranks) import libamp too.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
import warnings
from functools import partial
from typing import Any, NoReturn

from . import _cpu, _cpu_hint, _findings, _local_rank, _script, _survey, apex_shim, doctor
from ._environment import switch

USAGE = """\
usage: python -m libamp.run [options] script.py args…
       python -m libamp.run [options] -m module args…
       python -m libamp.run [options] -c code args…
Runs an unedited script in which `import apex` imports libamp (apex.amp, apex.optimizers, apex.parallel, …).
  --cpu          runs on the CPU whatever the script asks for: .cuda(), device="cuda", torch.cuda, NCCL
                 (docs/start/from-apex.md)
  --bf16         runs levels in bfloat16: O1 becomes O4, O2 becomes O5, O3 uses bfloat16. Sets LIBAMP_BF16=1
  --check        runs the script under libamp.doctor --strict, and looks for mistakes in all its iterations
                 (docs/guide/doctor.md). The script runs in the process of libamp.run
  --survey       observes the script, and at its end reports on standard error the losses at each level and their
                 places (docs/guide/choose-a-level.md). AMP_OBSERVE in the environment has the settings, by default
                 every=10,first=10. The script runs in the process of libamp.run
  --trace FILE   writes the actions of libamp in each step to FILE: sets AMP_TRACE (docs/reference/trace.md) for the
                 script and the processes that it starts
  --replace      uses libamp's modules also where an installed Apex has its own
  --install-pth  makes every Python of this environment import libamp for `import apex`, without libamp.run
  --remove-pth   undoes --install-pth
  --version      prints libamp's version
  --help         prints this text
  --local-rank=N of torch.distributed.launch … -m libamp.run script.py: passed to the script, as --local_rank=N
                 unless its text has only --local-rank
"""

# Environment variables for all processes of the script.
SWITCHES = {"--cpu": _cpu.VARIABLE, "--bf16": "LIBAMP_BF16"}
PTH = "libamp_apex.pth"
# A line of a .pth must not fail after libamp is removed.
PTH_LINE = (
    "import importlib.util, importlib; "
    "importlib.util.find_spec('libamp') and importlib.import_module('libamp.apex_shim').install()\n"
)


def main(args: list[str]) -> int:
    """Runs libamp.run with these arguments. Returns the exit status."""
    replace, check, survey, ranks = False, False, False, []
    while args and args[0].startswith("--"):
        option = args.pop(0)
        if option == "--replace":
            replace = True
        elif option in SWITCHES:
            os.environ[SWITCHES[option]] = "1"
        elif option == "--check":
            check = True
        elif option == "--survey":
            survey = True
        elif option.partition("=")[0] == "--trace":
            file = option.partition("=")[2] or (args.pop(0) if "=" not in option and args else "")
            if not file or file.startswith("-"):
                return refuse("--trace needs the name of a file")
            why = why_no_trace(file)
            if why:
                return fail(f"--trace {file}: {why}")
            os.environ["AMP_TRACE"] = os.path.abspath(file)  # the script may change its folder
        elif _local_rank.is_rank(option):  # a launcher's argument before the script is for the script
            ranks.append(option)
        elif option == "--install-pth":
            return install_pth()
        elif option == "--remove-pth":
            return remove_pth()
        elif option == "--version":
            from . import __version__

            print(__version__)
            return 0
        elif option == "--help":
            print(USAGE, end="")
            return 0
        else:
            return refuse(f"unknown option {option!r}")
    if args[:1] == ["-h"]:
        print(USAGE, end="")
        return 0
    if not args or args in (["-m"], ["-c"]):
        return refuse("no script is given")
    if args[0].startswith("-") and args[0][:2] not in ("-m", "-c") and args[0] != "-":
        return refuse(f"unknown option {args[0]!r} (options of Python itself go before `-m libamp.run`)")
    start = 2 if args[0] in ("-m", "-c") else 1
    if ranks:
        args[start:start] = [_local_rank.for_script(rank, _local_rank.text_of(args)) for rank in ranks]
    _script.set_environment(replace)
    if check:
        os.environ[_findings.STRICT] = "1"
        warnings.simplefilter("always", _findings.FindingWarning)
    if check or survey:
        why = _script.why_not_run(args)
        if why:
            return fail(why)
        script = partial(run_here, args, replace)
        if survey:
            script = partial(_survey.run, script)
        return doctor.run(script, strict=True) if check else _survey.done(script)
    options = interpreter_options(args)
    if options is None:
        run_here(args, replace)
        return 0
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *options, *args])


def refuse(message: str) -> int:
    """Prints an error and the usage. Returns the exit status 2."""
    print(f"libamp.run: {message}\n{USAGE}", end="", file=sys.stderr)
    return 2


def fail(message: str) -> int:
    """Prints an error. Returns the exit status 2."""
    print(f"libamp.run: {message}", file=sys.stderr)
    return 2


def why_no_trace(file: str) -> str | None:
    """Returns the reason why the trace cannot be written, else None. It is checked before the script runs, because
    amp.initialize would report it late."""
    path = os.path.abspath(file)
    folder = os.path.dirname(path)
    if os.path.isdir(path):
        return "it is a folder: name a file in it"
    if not os.path.isdir(folder):
        return f"there is no folder {folder}: make it, or name another"
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        return "it may not be written: name another file"
    if os.path.isfile(path) and os.path.getsize(path):
        with open(path, "rb") as there:
            if not there.read(16).startswith(b'{"kind":"start"'):
                return "it is there and is no trace, and would be written over: name another file, before the script"
    return None


def interpreter_options(args: list[str]) -> list[str] | None:
    """Returns the options of `python OPTIONS -m libamp.run …`. Returns None if no new Python can replace this one:
    under a debugger or another runner, or if Python ignores PYTHONPATH."""
    if sys.flags.ignore_environment or sys.flags.no_site or sys.gettrace() is not None or not sys.executable:
        return None
    before = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]  # sys.argv[0] is this file
    if before[-2:] == ["-m", "libamp.run"]:
        before = before[:-2]
    elif before[-1:] == ["-mlibamp.run"]:
        before = before[:-1]
    else:
        return None
    value = False
    for option in before:
        if not value and (not option.startswith("-") or option[:2] in ("-m", "-c")):
            return None
        value = not value and option in ("-W", "-X", "--check-hash-based-pycs")
    return before


def run_here(args: list[str], replace: bool) -> dict[str, Any]:
    """Runs the script in this process, with libamp as its apex, and returns its globals."""
    apex_shim.install(replace)
    if switch(_cpu.VARIABLE):
        _cpu.when_imported()
    else:
        _cpu_hint.install()
    if "LOCAL_RANK" in os.environ:
        _local_rank.parse_what_is_known()
    return _script.run_script(args)


def pth_path() -> str:
    """Returns the path of the .pth file."""
    package = os.path.dirname(os.path.dirname(_script.STARTUP))
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    return os.path.join(package if package in folders else sysconfig.get_path("purelib"), PTH)


def install_pth() -> int:
    """Writes the .pth file of --install-pth. Returns the exit status."""
    path = pth_path()
    try:
        with open(path, "w", encoding="ascii") as file:
            file.write(PTH_LINE)
    except OSError as error:
        print(f"libamp.run: {path}: {error.strerror}", file=sys.stderr)
        return 1
    print(
        f"wrote {path}: every Python of this environment answers `import apex` with libamp's parts\n"
        "take it back with: python -m libamp.run --remove-pth"
    )
    return 0


def remove_pth() -> int:
    """Removes the .pth file of --install-pth. Returns the exit status."""
    path = pth_path()
    try:
        os.remove(path)
    except FileNotFoundError:
        print(f"{path} is not there")
    except OSError as error:
        print(f"libamp.run: {path}: {error.strerror}", file=sys.stderr)
        return 1
    else:
        print(f"removed {path}")
    return 0


def command() -> NoReturn:
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    command()
