# SPDX-License-Identifier: Apache-2.0
"""libamp's work with torch's operators, on devices that neither the CPU's kernels nor a plugin reach: the server of
amp_serve.h. The library passes addresses of memory. This file makes tensors of them, and `_torch_ops` computes.

The library, torch or the script keeps the memory alive, as for a kernel. The tensors made here own nothing, and the
version counters of the script's tensors do not change.
"""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import dlpack

from .. import _core
from . import _torch_ops as ops
from ._devices import Copy
from ._scaler_ops import Words, end_bracket
from ._torch_ops.rules import MOMENTS, Rule
from ._torch_ops.statistics import WORDS

_Span = tuple[int, int, int]  # address, elements, amp_dtype

_FLOATS = {1: (2, 32), 2: (2, 16), 3: (4, 16), 4: (2, 64)}  # amp_dtype -> DLPack's code and bits
_DTYPES = {2: torch.float16, 3: torch.bfloat16}
_HOW = ("as_it_is", "inverse", "clip")


class _Room:
    """Caches the tensors of the last two calls of one kind, because the next call needs most of them."""

    def __init__(self) -> None:
        self._now: dict[_Span, torch.Tensor] = {}
        self._last: dict[_Span, torch.Tensor] = {}
        self._before: dict[_Span, torch.Tensor] = {}

    def begin(self) -> _Room:
        self._now, self._last, self._before = {}, self._now, self._last
        return self

    def find(self, span: _Span) -> torch.Tensor | None:
        found = self._now.get(span)
        if found is None:
            found = self._last.get(span)
        return self._before.get(span) if found is None else found

    def keep(self, span: _Span, tensor: torch.Tensor) -> torch.Tensor:
        self._now[span] = tensor
        return tensor


class Device:
    """A device and the library's memory on it."""

    def __init__(self, device: torch.device, dl_type: int, dl_id: int) -> None:
        self.device, self._dlpack = device, (dl_type, dl_id)
        self._rooms: dict[int, _Room] = {}  # by kind of call
        self.blocks: dict[int, torch.Tensor] = {}  # by address
        self.scalers: dict[int, Words] = {}  # by address

    def memory(self, address: int, size: int, code: int, bits: int) -> torch.Tensor:
        return dlpack.from_dlpack(_core.memory_at(address, size, code, bits, *self._dlpack))

    def _make(self, span: _Span) -> torch.Tensor:
        address, size, dtype = span
        if size:
            return self.memory(address, size, *_FLOATS[dtype])
        return torch.empty(0, dtype=_DTYPES.get(dtype, torch.float32), device=self.device)

    def room(self, kind: int) -> Callable[[list[_Span | None] | None], list[Any]]:
        """Returns the elements of spans, each in one dimension, for one call."""
        room = self._rooms.setdefault(kind, _Room()).begin()

        def at(span: _Span | None) -> torch.Tensor | None:
            if span is None:
                return None
            found = room.find(span)
            return room.keep(span, self._make(span) if found is None else found)

        return lambda spans: [at(span) for span in spans or ()]

    def floats(self, address: int, size: int = 1) -> torch.Tensor | None:
        return self.memory(address, size, 2, 32) if address and size else None

    def bytes(self, address: int, size: int) -> torch.Tensor:
        return self.memory(address, size, 1, 8)

    def integers(self, address: int, size: int, bits: int) -> torch.Tensor:
        return self.memory(address, size, 0, bits)


_devices: list[Device] = []


def add(index: int, device: torch.device, dl_type: int, dl_id: int) -> None:
    """Registers a device, at its first tensor."""
    if device.type == "mps":
        raise NotImplementedError(
            "libamp does not work on MPS yet: addresses there are opaque, and the library adds offsets to them"
        )
    del _devices[index:]
    _devices.append(Device(device, dl_type, dl_id))


# ---- lists ----


def _factor(on: Device, factor: tuple[int, float, int]) -> Any:
    address, value, how = factor
    return ops.factor_of(on.floats(address), value, _HOW[how]) if address else value


def _outside_inference(function: Callable[..., Any]) -> Callable[..., Any]:
    """Runs a function outside of inference mode. Tensors made in it could not be written later."""

    @functools.wraps(function)
    def run(*args: Any) -> Any:
        if not torch.is_inference_mode_enabled():
            return function(*args)
        with torch.inference_mode(False), torch.no_grad():
            return function(*args)

    return run


@_outside_inference
def lists(
    index: int,
    kind: int,
    spans: tuple[Any, Any, Any],
    factors: tuple[tuple[int, float, int], tuple[int, float, int]],
    found_inf: int,
    first: int,
    base: int,
    norm: int,
    norms: int,
    only_if: int,
    low: int,
    statistics: int,
    step: dict[str, Any] | None,
) -> None:
    """Implements amp_server.lists."""
    on = _devices[index]
    all_at = on.room(kind)
    if step is not None:
        _step(on, all_at, step)
        return
    dst, src, third = (all_at(each) for each in spans)
    found: dict[str, Any] = {
        "found_inf": on.floats(found_inf), "first": on.integers(first, 1, 32) if first else None, "base": base
    }
    n = len(dst)
    if kind == 0:
        ops.cast(dst, src, on.floats(only_if))
    elif kind == 1:
        ops.zero(dst)
    elif kind == 2:
        if factors[0][2] == 2:  # a norm may be below its limit, and then nothing is written
            found = {}
        ops.scale(dst, src, _factor(on, factors[0]), **found)
    elif kind in (3, 4, 7):
        a, b = (_factor(on, each) for each in factors)
        if kind in (3, 7):
            ops.axpby(dst, a, src, b, third, **found, y_was_reported=kind == 7)
        else:
            ops.check(dst, a, b, norm=on.floats(norm), norms=on.floats(norms, n), **found)
    elif kind == 6:
        ops.reconcile(dst, src, _DTYPES.get(low), on.floats(norms, n))
    elif kind == 8:
        ops.clamp(dst, src, factors[0][1])
    elif kind == 9:
        ops.round_through(dst, src, _DTYPES[low], **found)
    elif kind == 10:
        ops.statistics(dst, on.bytes(statistics, n * 8 * WORDS))
    else:
        raise NotImplementedError(f"a call over lists of kind {kind}")


def _step(on: Device, all_at: Callable[[Any], list[Any]], step: dict[str, Any]) -> None:
    n = len(step["param"])
    grads, low = (all_at([span if span and span[0] else None for span in step[name] or ()]) for name in ("grad", "low"))
    found_inf, inv_scale, grad_norm = (on.floats(step[name]) for name in ("found_inf", "inv_scale", "grad_norm"))
    rule = Rule(step["rule"], **step["numbers"])
    moments = {name: all_at(step["moments"][k]) for k, name in enumerate(MOMENTS[rule.kind])}
    ops.optimizer_step(
        rule,
        all_at(step["param"]),
        grads,
        {name: tensors for name, tensors in moments.items() if tensors},
        steps=on.integers(step["steps"], step["n_steps"], 64) if step["steps"] else step["step"] - 1,
        model_params=low or None,
        inv_scale=1.0 if inv_scale is None else inv_scale,
        grad_factor=step["grad_factor"],
        found_inf=found_inf,
        grad_norm=grad_norm,
        grad_norms=on.floats(step["grad_norms"], n),
    )


# ---- memory ----


_copies: dict[int, Copy] = {}
_last_copy = 0


def _here(address: int, size: int) -> torch.Tensor:
    """Returns host memory as a tensor."""
    return dlpack.from_dlpack(_core.memory_at(address, size, 1, 8, 1, 0))


def _alloc(on: Device, size: int) -> int:
    block = torch.empty(-(-size // 16) * 16, dtype=torch.uint8, device=on.device)
    address = block.data_ptr()
    on.blocks[address] = block
    return address


def _free(on: Device, address: int) -> None:
    block = on.blocks.pop(address, None)
    for scaler in [known for known in on.scalers if block is not None and 0 <= known - address < block.numel()]:
        del on.scalers[scaler]


def _fetch(on: Device, handle: int, source: int, size: int) -> int:
    global _last_copy
    if not handle:
        _last_copy = handle = _last_copy + 1
        _copies[handle] = Copy(size, on.device)
    _copies[handle].start(on.bytes(source, size))
    return handle


def _is_capturing(on: Device) -> bool:
    return on.device.type == "cuda" and bool(torch.cuda.is_current_stream_capturing())


@_outside_inference
@torch.no_grad()
def memory(
    index: int, kind: int, dst: int, src: int, size: int, made: int, value: int, end: dict[str, Any] | None
) -> int | bool | None:
    """Implements amp_server.memory."""
    on = _devices[index]
    run: Callable[[], Any] = (
        lambda: _alloc(on, size),
        lambda: _free(on, dst),
        lambda: on.bytes(dst, size).fill_(value),
        lambda: on.bytes(dst, size).copy_(_here(src, size)),
        lambda: _here(dst, size).copy_(on.bytes(src, size)),
        lambda: _fetch(on, made, src, size),
        lambda: _copies[made].arrived(),
        lambda: _here(dst, size).copy_(_copies[made].wait()[:size]),
        lambda: _copies.__delitem__(made),
        lambda: _is_capturing(on),
        lambda: end_bracket(on, end or {}),
    )[kind]
    result = run()
    return result if isinstance(result, (int, bool)) else None
