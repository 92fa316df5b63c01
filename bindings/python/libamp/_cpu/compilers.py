# SPDX-License-Identifier: Apache-2.0
"""Support for compilers. torch.jit.script reads the text of a function, so GPU names in it become the CPU's. A replaced
function remains the torch op that it was. torch.compile traces through replaced functions, without Triton."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.jit import _builtins, _serialization, frontend

from .devices import CPU, placed, replace
from .tensors import MAKERS


class _OnCpu(ast.NodeTransformer):
    """Rewrites x.cuda() to x.cpu(), and "cuda" among the arguments of a call to "cpu"."""

    def visit_Call(self, call: ast.Call) -> ast.AST:
        self.generic_visit(call)
        if isinstance(call.func, ast.Attribute) and call.func.attr == "cuda":
            call.func.attr, call.args, call.keywords = "cpu", [], []
        for part in (*call.args, *(keyword.value for keyword in call.keywords)):
            if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.startswith("cuda"):
                part.value = "cpu"
        return call


def _parse(own: Any) -> Callable[..., Any]:
    def parse_def(function: Any) -> Any:
        parsed = own(function)
        _OnCpu().visit(parsed.ast)
        return parsed

    return parse_def


def _location(own: Any) -> Callable[..., Any]:
    return lambda map_location=None: own(CPU if map_location is None else placed(map_location))


def _script(own: Any) -> Callable[..., Any]:
    def script(what: Any, *args: Any, **kwargs: Any) -> Any:
        for module in what.modules() if isinstance(what, nn.Module) else ():
            devices = {name: placed(value) for name, value in vars(module).items() if isinstance(value, torch.device)}
            vars(module).update(devices)
        return own(what, *args, **kwargs)

    return script


def install() -> None:
    if importlib.util.find_spec("torch.utils._triton") is not None:
        triton: Any = importlib.import_module("torch.utils._triton")
        triton.has_triton_package = lambda: False
    replace(torch.jit, "script", _script)
    for name in MAKERS:
        made = getattr(torch, name, None)
        op = _builtins._find_builtin(getattr(made, "__wrapped__", None))
        if op is not None:
            _builtins._register_builtin(made, op)
    replace(frontend, "parse_def", _parse)
    replace(_serialization, "validate_map_location", _location)
