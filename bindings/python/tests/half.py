# SPDX-License-Identifier: Apache-2.0
"""torch before 2.1 has few operators in half on the CPU. With this mode each one that it lacks is computed in FP32 and
rounded, so that the FP16 levels are tested there too. What libamp's own code calls is not: that must work as it
comes."""
import contextlib
import pathlib
import sys
import threading
from unittest import mock

import libamp
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

MISSING = "not implemented for 'Half'"
LACKS_HALF = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 1)
_LIBAMP = str(pathlib.Path(libamp.__file__).parent)
# frames that call for another, Apex's layers among them
_THROUGH = (
    "half.py", "_ops.py", "_tensor.py", "functional.py", "_contextlib.py", "cells.py",
    "RNNBackend.py", "fused_dense.py", "mlp.py",
)


def _caller():
    """The file of the code that asked for an operator."""
    frame = sys._getframe(2)
    while frame.f_back is not None and pathlib.Path(frame.f_code.co_filename).name in _THROUGH:
        frame = frame.f_back
    return frame.f_code.co_filename


def _takes_half(*values):
    return any(isinstance(value, torch.Tensor) and value.dtype is torch.float16 for value in tree_flatten(values)[0])


def _in_fp32(func, args, kwargs):
    """Outputs are half again, and what is written too. Only a batch norm takes FP32 beside half: its weights and
    statistics."""
    wide = {}
    mixed = any(isinstance(value, torch.Tensor) and value.dtype is torch.float32 and value.dim() > 0
                for value in tree_flatten((args, kwargs))[0])
    if mixed and "batch_norm" not in str(func):
        raise RuntimeError(f"{func} gets half and FP32")

    def widen(value):
        if isinstance(value, torch.Tensor) and value.dtype is torch.float16:
            return wide.setdefault(id(value), (value, value.float()))[1]
        return value

    out = func(*tree_map(widen, args), **tree_map(widen, kwargs))
    back = {id(computed): half for half, computed in wide.values()}
    for index, argument in enumerate(func._schema.arguments):
        value = args[index] if index < len(args) else kwargs.get(argument.name)
        if argument.alias_info is not None and argument.alias_info.is_write and id(value) in wide:
            value.copy_(wide[id(value)][1])
    if kwargs.get("dtype") is not None:
        return out

    def narrow(value):
        if isinstance(value, torch.Tensor) and id(value) in back:
            return back[id(value)]
        return value.half() if isinstance(value, torch.Tensor) and value.dtype is torch.float32 else value

    if isinstance(out, tuple) and mixed:
        return (narrow(out[0]), *out[1:])
    return tree_map(narrow, out)


_lacking = set()  # what was refused once: an error of torch's takes milliseconds


class HalfOnCPU(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func not in _lacking or not _takes_half(args, kwargs):
            try:
                return func(*args, **kwargs)
            except RuntimeError as error:
                if MISSING not in str(error):
                    raise
                _lacking.add(func)
        assert not _caller().startswith(_LIBAMP), (
            f"libamp itself calls {func}, which torch {torch.__version__} lacks in half"
        )
        return _in_fp32(func, args, kwargs)


def _run(thread, run=threading.Thread.run):
    with HalfOnCPU():
        run(thread)


@contextlib.contextmanager
def half_on_cpu():
    """The mode, where this torch needs it, on this thread and on those that begin meanwhile."""
    if not LACKS_HALF:
        yield
        return
    with HalfOnCPU(), mock.patch.object(threading.Thread, "run", _run):
        yield
