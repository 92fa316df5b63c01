# SPDX-License-Identifier: Apache-2.0
"""Installs libamp's apex in processes under `python -m libamp.run`, or the doctor in those under `python -m
libamp.doctor`. These commands put this folder on PYTHONPATH. Python then
runs this file at the start of the script's process and of every process that the script starts: workers, spawned
children, the ranks of a launcher. An error here does not stop such a process."""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _here]


def _prepare() -> None:
    from libamp import _cpu, _cpu_hint, apex_shim
    from libamp._environment import switch

    if os.environ.get("LIBAMP_DOCTOR"):
        from libamp import doctor

        doctor.prepare()
    if os.environ.get("LIBAMP_APEX") == "off":  # under python -m libamp.doctor
        return
    apex_shim.install(replace=os.environ.get("LIBAMP_APEX") == "replace")
    if switch(_cpu.VARIABLE):
        _cpu.when_imported()
    else:
        _cpu_hint.install()
    if "LOCAL_RANK" in os.environ:  # a rank that a launcher has started
        from libamp import _local_rank

        _local_rank.prepare()


def _warn_once(error: Exception) -> None:
    """Warns once for all processes of a script, which inherit the variable."""
    if os.environ.get("LIBAMP_STARTUP_WARNED") == "1":
        return
    os.environ["LIBAMP_STARTUP_WARNED"] = "1"
    print(
        f"libamp: this Python ({sys.executable}) could not be prepared and runs as it would alone, without libamp: "
        f"{type(error).__name__}: {error}. Reinstall libamp for it, or start it without `python -m libamp.run`.",
        file=sys.stderr,
    )


try:
    _prepare()
except ModuleNotFoundError as error:
    if error.name != "libamp":  # without libamp: another Python that the script starts
        _warn_once(error)
except Exception as error:
    _warn_once(error)

# The sitecustomize that this one hides.
_spec = PathFinder.find_spec("sitecustomize", sys.path)
if _spec is not None and _spec.loader is not None:
    sys.modules["sitecustomize"] = _module = module_from_spec(_spec)
    _spec.loader.exec_module(_module)
