# SPDX-License-Identifier: Apache-2.0
"""Runs a script in this process as Python does, for the commands that run scripts."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import io
import os
import pkgutil
import runpy
import sys
import types
from typing import Any

STARTUP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_startup")


def why_not_run(args: list[str]) -> str | None:
    """Returns the error that Python itself would report, for a script that runs in this process, else None."""
    if args[0][:2] == "-m":
        name = args[0][2:] or args[1]
        try:
            found = importlib.util.find_spec(name) is not None
        except (ImportError, ValueError):  # the package is absent, or is none
            found = False
        return None if found else f"no module named {name}"
    if args[0][:2] == "-c" or args[0] == "-" or os.path.exists(args[0]):
        return None
    return f"{args[0]}: there is no such script"


def set_environment(replace: bool) -> None:
    """Makes every Python that this process starts run _startup/sitecustomize.py first."""
    folders = [STARTUP]
    package = os.path.dirname(os.path.dirname(STARTUP))
    if os.path.abspath(sys.path[0] or ".") == package and package not in sys.path[1:]:
        folders.append(package)  # libamp was found in the working directory, where the script will not look
    old = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != STARTUP]
    os.environ["PYTHONPATH"] = os.pathsep.join(folders + old)
    if replace:
        os.environ["LIBAMP_APEX"] = "replace"
    else:
        os.environ.pop("LIBAMP_APEX", None)


def run_script(args: list[str]) -> dict[str, Any]:
    """Runs the script in this process as Python does, and returns its globals."""
    if args[0][:2] == "-m":
        module = args[0][2:] or args.pop(1)
        sys.argv = [module, *args[1:]]
        return runpy.run_module(module, run_name="__main__", alter_sys=True)
    if args[0][:2] == "-c" or args[0] == "-":
        return run_text(args)
    sys.argv = args
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(os.path.realpath(args[0]))
    path = os.path.join(os.getcwd(), args[0].removeprefix("./"))
    if path.endswith(".pyc") or pkgutil.get_importer(path) is not None:  # a folder or archive with __main__.py
        return runpy.run_path(args[0], run_name="__main__")
    return run_file(path)


def run_file(path: str) -> dict[str, Any]:
    """Runs a file of source and returns its globals. runpy would put the absolute path into sys.argv, too."""
    main = types.ModuleType("__main__")
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    vars(main).update(__file__=path, __loader__=loader, __builtins__=__builtins__, __cached__=None)
    before, sys.modules["__main__"] = sys.modules["__main__"], main
    try:
        with io.open_code(path) as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
        exec(code, vars(main))
    finally:
        sys.modules["__main__"] = before
    return vars(main)


def run_text(args: list[str]) -> dict[str, Any]:
    """Runs the code of `-c` or of standard input and returns its globals."""
    names: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
    if args[0] == "-":
        sys.argv = args
        exec(compile(sys.stdin.read(), "<stdin>", "exec", dont_inherit=True), names)
    else:
        code = args[0][2:] or args.pop(1)
        sys.argv = ["-c", *args[1:]]
        exec(compile(code, "<string>", "exec", dont_inherit=True), names)
    return names
