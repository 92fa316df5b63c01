# SPDX-License-Identifier: Apache-2.0
"""keep_buffers_fp32 of initialize: buffers that stay FP32 at O2, O3 and O5, such as positions and rotary tables.

The names of kept buffers are an attribute of their module, so that copies and files have them. An op of an FP32 buffer
and a 16-bit activation gives FP32. The layers of torch.nn that have 16-bit weights cast such arguments. Other ops
refuse them, and the error then names the buffers.
"""
from __future__ import annotations

import contextlib
import difflib
import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from . import retype
from ._casting import cast_tree

_MARK = "_amp_fp32_buffers"  # attribute of a module: names of its kept buffers
_SHOWN = 3  # names in a message
# torch's words for operands of several types
_MISMATCH = re.compile(r"same dtype|scalar type|mixed dtype|should be the same|dtypes match|Type promoting")


# ---- the choice ----


def _patterns(keep: Any) -> list[str]:
    if isinstance(keep, str):
        keep = {"True": True, "False": False}.get(keep, [keep])
    if keep is None or isinstance(keep, bool):
        return ["*"] if keep else []
    patterns = list(keep) if isinstance(keep, Iterable) else [keep]
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise TypeError(
            f"keep_buffers_fp32 is True, False, or names and patterns of buffers as strings; not {keep!r}"
        )
    return patterns


class Owned:
    """A buffer or parameter of a model. name: its path, with "model1." before it in the second model."""

    def __init__(self, owner: nn.Module, key: str, tensor: torch.Tensor, path: str, index: int) -> None:
        self.owner, self.key, self.tensor = owner, key, tensor
        self.path = f"{path}.{key}" if path else key
        self.name = f"model{index}.{self.path}" if index else self.path

    def matches(self, pattern: str) -> bool:
        return any(pattern == name or fnmatch.fnmatchcase(name, pattern) for name in (self.path, self.name))


def owned(models: Iterable[nn.Module], what: str) -> list[Owned]:
    """Returns the buffers (what="_buffers") or parameters ("_parameters") under every name that they have."""
    return [
        Owned(module, key, tensor, path, index)
        for index, model in enumerate(models)
        for path, module in model.named_modules(remove_duplicate=False)
        for key, tensor in getattr(module, what).items()
        if tensor is not None
    ]


def _follows_weights(buffer: Owned, keeps_batch_norm: bool) -> bool:
    """Returns True for the statistics of a batch norm with 16-bit weights: torch's kernels want one type for both."""
    return retype.is_kept(buffer.owner) and not keeps_batch_norm


def _reason(pattern: str, models: list[nn.Module], buffers: list[Owned]) -> str:
    """Returns the reason why a pattern selects nothing, and what to do."""
    here = [buffer for buffer in buffers if buffer.matches(pattern)]
    if any(buffer.tensor.is_floating_point() for buffer in here):
        return (
            f"{here[0].name} belongs to a batch norm with 16-bit weights, and has their type: keep both in FP32 by "
            "keep_batchnorm_fp32=True"
        )
    if here:
        of_type = str(here[0].tensor.dtype).removeprefix("torch.")
        return f"{here[0].name} is {of_type}, which no level casts: leave it out"
    params = [param for param in owned(models, "_parameters") if param.matches(pattern)]
    if params:
        return (
            f"{params[0].name} is a parameter, and parameters have the level's type: take O1 or O4, where they are "
            "FP32, or register it as a buffer"
        )
    names = list(dict.fromkeys(buffer.name for buffer in buffers if buffer.tensor.is_floating_point()))
    by_leaf = {name.rpartition(".")[2]: name for name in reversed(names)}
    near = difflib.get_close_matches(pattern, names, _SHOWN, 0.5)
    near += [by_leaf[leaf] for leaf in difflib.get_close_matches(pattern.rpartition(".")[2], by_leaf, _SHOWN, 0.6)]
    near = list(dict.fromkeys(near))[:_SHOWN]
    if near:
        return f"no buffer has this name; near ones are {', '.join(near)}"
    if not names:
        return "the models have no floating buffers: leave keep_buffers_fp32 out"
    return f"no buffer has this name; there are {listed(names)}"


def choose(keep: Any, models: list[nn.Module], keeps_batch_norm: bool) -> list[Owned]:
    """Returns the buffers that `keep`, the argument of initialize, selects. The statistics of a norm, which
    have one type, are selected together. Raises TypeError for a value of a wrong type, ValueError for a pattern that
    selects nothing."""
    patterns = _patterns(keep)
    buffers = owned(models, "_buffers") if patterns else []
    chosen = []
    for pattern in patterns:
        found = [
            buffer
            for buffer in buffers
            if buffer.tensor.is_floating_point() and buffer.matches(pattern)
            and not _follows_weights(buffer, keeps_batch_norm)
        ]  # fmt: skip
        if not found and not isinstance(keep, bool) and keep != "True":
            raise ValueError(f"keep_buffers_fp32 has {pattern!r}: {_reason(pattern, models, buffers)}")
        chosen += found
    paired = {id(buffer.owner) for buffer in chosen if isinstance(buffer.owner, nn.modules.batchnorm._NormBase)}
    chosen += [buffer for buffer in buffers if id(buffer.owner) in paired and buffer.tensor.is_floating_point()]
    return list({(id(buffer.owner), buffer.key): buffer for buffer in chosen}.values())


def listed(names: Iterable[str]) -> str:
    """Returns the first names, and the number of the others."""
    first = list(names)
    more = f" and {len(first) - _SHOWN} more" if len(first) > _SHOWN else ""
    return ", ".join(first[:_SHOWN]) + more


# ---- in a model ----


def keep(chosen: Iterable[Owned]) -> Callable[[], None]:
    """Makes these buffers FP32, or wider, until the returned function is called. Later changes of the model's types
    leave them alone."""
    before: list[tuple[torch.Tensor, torch.dtype]] = []
    owners = []
    for buffer in chosen:
        marks = buffer.owner.__dict__.get(_MARK, ())
        buffer.owner.__dict__[_MARK] = (*marks, buffer.key)
        owners.append(buffer.owner)
        if buffer.tensor.dtype in retype.LOW:
            before.append((buffer.tensor, buffer.tensor.dtype))
            retype.set_type(buffer.tensor, torch.float32)

    def undo() -> None:
        for owner in owners:
            owner.__dict__.pop(_MARK, None)
        for tensor, dtype in before:
            retype.set_type(tensor, dtype)

    return undo


def of(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Yields (path, owner, key) of each buffer of the model that is kept, also in a copy."""
    for path, module in model.named_modules():
        for key in module.__dict__.get(_MARK, ()):
            if module._buffers.get(key) is not None:
                yield f"{path}.{key}" if path else key, module, key


@contextlib.contextmanager
def staying(model: nn.Module) -> Iterator[None]:
    """Around half(), bfloat16() or to(): kept buffers change their device alone."""
    held = [(module, key, module._buffers[key]) for _, module, key in of(model)]
    yield
    for module, key, before in held:
        now = module._buffers[key]
        if now is not None and before is not None and now.dtype in retype.LOW:
            module._buffers[key] = before.to(now.device)


# ---- where FP32 results go ----


def _receive(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    types = (each.dtype for each in module._parameters.values() if each is not None)
    low = next((dtype for dtype in types if dtype in retype.LOW), None)
    return None if low is None else (cast_tree(args, low), cast_tree(kwargs, low))


def _is_torchs(module: nn.Module) -> bool:
    """Returns True for a layer of torch.nn with parameters of its own, or a class derived from one."""
    bases = (base for base in type(module).__mro__ if base is not nn.Module)
    return bool(module._parameters) and any(base.__module__.startswith("torch.nn.modules.") for base in bases)


def receive(models: Iterable[nn.Module]) -> Callable[[], None]:
    """Makes the layers of torch.nn cast arguments to the type of their 16-bit weights. Returns the undo function."""
    layers = {id(module): module for model in models for module in model.modules() if _is_torchs(module)}
    handles = [
        layer.register_forward_pre_hook(_receive, with_kwargs=True)
        for layer in layers.values()
        if not isinstance(layer, torch.jit.ScriptModule)
    ]

    def undo() -> None:
        for handle in handles:
            handle.remove()

    return undo


def explained(error: RuntimeError, model: Any) -> RuntimeError | None:
    """Returns the error of a forward with advice, if torch refused operands of two types in a model with kept
    buffers, else None."""
    if not isinstance(model, nn.Module) or not _MISMATCH.search(str(error)):
        return None
    names = [name for name, _, _ in of(model)]
    if not names:
        return None
    where = _module_of(error)
    return RuntimeError(
        f"{str(error).rstrip('.')}. keep_buffers_fp32 keeps {listed(names)} in FP32, and an op of an "
        f"FP32 buffer and a 16-bit tensor gives FP32. {f'In the forward of {where} cast' if where else 'Cast'} that "
        "result, as in (q * cos).to(q.dtype), or leave the buffer out of keep_buffers_fp32"
    )


def _module_of(error: BaseException) -> str | None:
    """Returns the class of the innermost module of the script in whose forward the error was raised."""
    found: str | None = None
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        torchs = str(frame.f_globals.get("__name__", "")).startswith(("torch.", "libamp."))
        if frame.f_code.co_name == "forward" and not torchs:
            module = frame.f_locals.get(frame.f_code.co_varnames[0])
            found = type(module).__name__ if isinstance(module, nn.Module) else found
        trace = trace.tb_next
    return found
