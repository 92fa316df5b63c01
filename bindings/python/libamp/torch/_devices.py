# SPDX-License-Identifier: Apache-2.0
"""Selects the devices on which libamp's kernels work, and those on which torch's operators do the work (_served.py):
devices without CPU kernels or CUDA plugin, and all devices with LIBAMP_TORCH_OPS=1."""
from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch

from .. import _core
from .._environment import switch

_RAN = ("cpu", "cuda")  # tested kinds of devices (docs/guide/gpus.md, Other devices)
_CUDA, _OTHER = 2, 12  # kDLCUDA, kDLExtDev


def read_switch() -> bool:
    """Reads LIBAMP_TORCH_OPS, at import and at each initialize."""
    global _everywhere
    _everywhere = _core.torch_ops(switch("LIBAMP_TORCH_OPS"))
    return _everywhere


_everywhere = read_switch()  # torch.compile traces reads of it


def is_served(device: torch.device) -> bool:
    """Returns True if torch's operators do libamp's work on this device."""
    if device.type in ("cpu", "meta"):
        return _everywhere and device.type == "cpu"
    if device.type == "cuda" and torch.version.hip is not None:
        return True
    return _core.is_served(_CUDA if device.type == "cuda" else _OTHER, device.index or 0)


def need_kernels(what: str, device: torch.device, instead: str) -> None:
    """Raises RuntimeError if the device is served and torch's operators cannot do this work."""
    if is_served(device):
        raise RuntimeError(
            f"{what} needs libamp's own kernels, of the CPU or of the plugin libamp_cuda.so, and on {device} torch's "
            f"operators do libamp's work{_why(device)}: {instead}"
        )


def _why(device: torch.device) -> str:
    """Returns the reason in parentheses after a space."""
    if _core.torch_ops():
        return " (LIBAMP_TORCH_OPS is on)"
    if device.type != "cuda" or torch.version.hip is not None:
        return ""
    text = _core.backend_text("cuda")
    return f" ({text})" if text else ""


def _name(device: torch.device) -> str:
    return "ROCm" if device.type == "cuda" and torch.version.hip is not None else device.type


def described(tensors: Iterable[torch.Tensor]) -> list[str]:
    """Returns a line for each kind of served device among these tensors."""
    lines = []
    devices = {_name(each): each for each in {one.device for one in tensors} if is_served(each)}
    for name, device in sorted(devices.items()):
        line = f"On {name} torch's operators do libamp's work{_why(device)}."
        if name not in _RAN:
            line += f" Experimental: libamp was not run on {name} yet."
        lines.append(line)
    return lines


# ---- asynchronous copies to the host ----


@functools.cache
def _events(kind: str) -> Any:
    """Returns the event class of this kind of device, None if copies to pinned memory are not supported."""
    module = getattr(torch, kind, None)
    return getattr(module, "Event", None) if kind in ("cuda", "xpu") else None


class Copy:
    """A repeated copy of a fixed number of bytes from a device to the host."""

    def __init__(self, size: int, device: torch.device) -> None:
        event = _events(device.type)
        self._event = None if event is None else event()
        self._host: torch.Tensor | None = None
        self._there: torch.Tensor | None = None
        if event is not None or device.type == "cpu":
            self._host = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=event is not None)

    def start(self, source: torch.Tensor) -> None:
        """Starts the copy. source: contiguous, of `size` bytes."""
        if self._host is None:
            self._there = source.clone()
            return
        self._host.copy_(source.reshape(-1).view(torch.uint8), non_blocking=True)
        if self._event is not None:
            self._event.record()

    def arrived(self) -> bool:
        """Returns True if the copy has finished. Without events it is always False: call wait."""
        return self._host is not None and (self._event is None or bool(self._event.query()))

    def wait(self) -> torch.Tensor:
        """Waits and returns the bytes on the host."""
        if self._host is None:
            assert self._there is not None
            return self._there.reshape(-1).view(torch.uint8).cpu()
        if self._event is not None:
            self._event.synchronize()
        return self._host

    @property
    def tells(self) -> bool:
        """Returns True if arrived works without waiting."""
        return self._host is not None
