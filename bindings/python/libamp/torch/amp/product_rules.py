# SPDX-License-Identifier: Apache-2.0
"""The gate of products on CPUs: which code computes a product whose result has a 16-bit type.

torch's 16-bit kernels are slower than its FP32 kernels on a CPU without 16-bit units, and for small products on all.
The rows of C's table (src/call/gate_table.inc) say from which size they are faster. This file reads no clock: two
processes with the same CPU and settings decide alike. gate="measure" adopts answers from product_gate.py instead.
Types never depend on the decision: the result has the 16-bit type.
"""
from __future__ import annotations

import contextlib
import enum
import functools
import os
import platform
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ... import _core, kernels

MODES = ("default", "on", "off", "measure")
# Shape classes of gate="measure": the kinds of products of the table, and the least edge of each class.
CLASSES = {
    "matmul": (16, 32, 64, 128, 256, 512, 1024),
    "conv": (16, 32, 64, 128, 256, 512),
    "attention": (16, 32, 64, 128),
}
KINDS = tuple(CLASSES)
_LARGE = 1 << 20
_LOW = (torch.float16, torch.bfloat16)
_AVX512 = 2  # AMP_CPU_AVX512 of amp_kernels.h

# Units of oneDNN on x86 for a 16-bit type, the fastest first: its name in the table, the CPU's capability (the name of
# torch and of /proc/cpuinfo), and the values of ONEDNN_MAX_CPU_ISA that leave it on.
_AMX_FP16 = ("avx512_core_amx_fp16", "avx10_1_512_amx_fp16")
_AMX = ("avx512_core_amx", "avx10_1_512_amx", *_AMX_FP16)
_FP16 = ("avx512_core_fp16", "avx10_1_512", *_AMX)
_BF16 = ("avx512_core_bf16", *_FP16)
_X86_UNITS = {
    torch.bfloat16: (("avx512_core_amx", "amx_bf16", _AMX), ("avx512_core_bf16", "avx512_bf16", _BF16)),
    torch.float16: (("avx512_core_amx_fp16", "amx_fp16", _AMX_FP16), ("avx512_core_fp16", "avx512_fp16", _FP16)),
}
_BELOW = ("sse41", "avx", "avx2", "avx2_vnni", "avx2_vnni_2", "avx512_core", "avx512_core_vnni")


class Route(enum.Enum):
    """The code of a product with a 16-bit result."""

    TORCH = "torch's 16-bit kernels"
    FP32 = "torch's FP32 kernels"


TORCH, FP32 = Route


# ---- the CPU, as torch uses it ----


def _capabilities() -> frozenset[str]:
    ask = getattr(torch.cpu, "get_capabilities", None) if hasattr(torch, "cpu") else None
    if ask is not None:
        return frozenset(name for name, has in ask().items() if has is True)
    try:
        with open("/proc/cpuinfo") as file:
            line = next((line for line in file if line.startswith("flags")), "")
    except OSError:
        return frozenset()
    return frozenset(line.partition(":")[2].split())


def _aten() -> str:
    """Returns the instruction set of torch's own kernels, in its words."""
    ask = getattr(getattr(torch.backends, "cpu", None), "get_cpu_capability", None)
    return str(ask()) if ask is not None else os.environ.get("ATEN_CPU_CAPABILITY", "AVX512").upper()  # torch 2.0


def _onednn_limit() -> str:
    """Returns the limit in the environment, in small letters as oneDNN reads it, "" for none."""
    value = os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA") or ""
    return value.lower() if value.lower() in (*_BELOW, *_BF16) else ""


def _onednn_has(dtype: torch.dtype) -> bool:
    """Returns oneDNN's answer for this CPU, whatever its limit."""
    if not torch.backends.mkldnn.is_available():
        return False
    name = "_is_mkldnn_bf16_supported" if dtype is torch.bfloat16 else "_is_mkldnn_fp16_supported"
    ask = getattr(torch.ops.mkldnn, name, None)
    return bool(ask()) if ask is not None else dtype is torch.bfloat16


def _x86_unit(dtype: torch.dtype) -> str:
    if not kernels.cpu_flags() & _AVX512 or not _aten().startswith("AVX512"):
        return ""
    has, limit = _capabilities(), _onednn_limit()
    for name, capability, limits in _X86_UNITS[dtype]:
        if capability in has and (not limit or limit in limits):
            masked = name == "avx512_core_bf16" and "amx_bf16" in has  # one port for bf16, two for FP32
            return f"{name}, amx off" if masked else name
    return ""


@functools.cache
def unit(dtype: torch.dtype) -> str:
    """Returns the unit of this CPU for products of a 16-bit type by torch's oneDNN, in oneDNN's words. "" without one:
    operands are converted to FP32. ONEDNN_MAX_CPU_ISA, ATEN_CPU_CAPABILITY and AMP_CPU_MASK count."""
    if not _onednn_has(dtype):
        return ""
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64"):
        return _x86_unit(dtype)
    if machine in ("aarch64", "arm64") and kernels.cpu_flags():
        return "bf16" if dtype is torch.bfloat16 else "fp16"
    return ""


# ---- the table ----


@functools.cache
def _table() -> dict[tuple[str, str, str, torch.dtype], int]:
    return {(who, kind, of, getattr(torch, name)): least for who, kind, of, name, least in _core.gate_rows()}


@functools.cache
def least_edge(kind: str, dtype: torch.dtype) -> int | None:
    """Returns the edge from which torch's 16-bit kernels are faster on this CPU, None if that is unknown. Without a row
    for torch that of oneDNN counts, which computes torch's products."""
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}, and must be one of {', '.join(KINDS)}")
    rows = _table()
    for who in ("torch", "onednn"):
        least = rows.get((who, kind, unit(dtype), dtype))
        if least is not None:
            return least
    return None


# ---- the modes of sessions ----


_sessions: list[weakref.ref[Any]] = []  # those in force, the newest one last
_measured: dict[str, bool] = {}  # answers of gate="measure": whether torch's kernels are faster in a shape class
_source = ""  # their origin
_forced: Route | None = None


def read(value: Any) -> str | None:
    """Returns the setting `gate` of initialize as one of MODES, None for none. Raises ValueError for another value."""
    if value is None:
        return None
    mode = ("on" if value else "off") if isinstance(value, bool) else value
    if not isinstance(mode, str) or mode not in MODES:
        named = ", ".join(f'"{each}"' for each in MODES[:-1])
        raise ValueError(f'gate is {value!r}, and must be {named} or "{MODES[-1]}"; True is "on", False is "off"')
    return mode


def use(mode: str | None, session: Any) -> Callable[[], None]:
    """Puts a mode in force for a session that begins, None for the default. Returns the function that ends it."""
    session.gate = mode or "default"
    entry = weakref.ref(session, lambda _: end())

    def end() -> None:
        if entry in _sessions:
            _sessions.remove(entry)

    _sessions.append(entry)
    return end


def mode_now() -> str:
    """Returns the mode of the session in whose scope this thread is. Outside of any, as in a recomputed forward, it is
    the mode of the newest session, whose policy holds there too."""
    found = [session for entry in list(_sessions) if (session := entry()) is not None]
    scope = _core.current_scope()
    if scope and scope[0] is not None:
        return next((session.gate for session in found if session.context is scope[0]), "default")
    return found[-1].gate if found else "default"


@contextlib.contextmanager
def forced(answer: Route) -> Iterator[None]:
    """Opens a block in which every product takes this route."""
    global _forced
    before, _forced = _forced, answer
    try:
        yield
    finally:
        _forced = before


def adopt(answers: Mapping[str, bool], source: str) -> bool:
    """Adopts answers of gate="measure". Returns True if some differ from those in force."""
    global _source
    differs = any(_measured.get(name) is not answer for name, answer in answers.items())
    _measured.update(answers)
    _source = source
    _decided.cache_clear()
    return differs


def measured() -> dict[str, bool]:
    """Returns the answers of gate="measure" in this process."""
    return dict(_measured)


# ---- a product ----


def edge(shape: Sequence[int]) -> int:
    """Returns the edge of the square product with as many multiplications per element of its matrices, 0 for an empty
    one, as in amp_gate.h."""
    return int(3.0 / sum(1.0 / size for size in shape) + 1e-9) if all(shape) else 0


def shape_class(kind: str, dtype: torch.dtype, size: int) -> str:
    """Returns the class of a product for gate="measure": its kind, its type, and the last of CLASSES that its edge
    reaches, the first for smaller ones."""
    least = max((each for each in CLASSES[kind] if each <= size), default=CLASSES[kind][0])
    return f"{kind} {name_of(dtype)} {least}"


def _is_fast(mode: str, kind: str, dtype: torch.dtype, size: int) -> bool:
    """Returns True for a product that belongs to torch's 16-bit kernels."""
    if mode == "off":
        return True
    answer = _measured.get(shape_class(kind, dtype, size)) if mode == "measure" else None
    if answer is not None:
        return answer
    least = least_edge(kind, dtype)
    return mode != "on" if least is None else size >= least


def route(kind: str, dtype: torch.dtype, shape: Sequence[int]) -> Route:
    """Returns the code for a product on a CPU whose result has a 16-bit type.

    kind: "matmul", "conv" or "attention". dtype: torch.float16 or torch.bfloat16. shape: m, n and k of one product of a
    batch. Of a convolution: pixels of all outputs, output channels of a group, elements of a filter. Of attention:
    queries, keys, elements of a head.
    """
    return _decided(mode_now(), kind, dtype, tuple(shape)) if _forced is None else _forced


@functools.lru_cache(4096)
def _decided(mode: str, kind: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Route:
    return TORCH if _is_fast(mode, kind, dtype, edge(shape)) else FP32


def slow_types(mode: str = "default") -> tuple[torch.dtype, ...]:
    """Returns the 16-bit types in which torch's own kernels are too slow for some products on this CPU."""
    return tuple(
        dtype
        for dtype in _LOW
        if not all(_is_fast(mode, kind, dtype, size) for kind in KINDS for size in (0, *CLASSES[kind], _LARGE))
    )


# ---- in words ----


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _short(dtype: torch.dtype) -> str:
    return {torch.float16: "fp16", torch.bfloat16: "bf16"}[dtype]


def _instructions(dtype: torch.dtype) -> str:
    """Returns the instructions of torch's products, and the switch that limits them."""
    if unit(dtype):
        return f"oneDNN: {unit(dtype)}"
    if _onednn_limit():
        return f"oneDNN: {_onednn_limit()}"
    if _aten().startswith("AVX512") and not kernels.cpu_flags() & _AVX512:
        return f"AMP_CPU_MASK: {os.environ.get('AMP_CPU_MASK', '')}"
    return f"torch: {_aten()}"


def _kind_in_words(mode: str, kind: str, dtype: torch.dtype) -> str:
    """Returns the routes of the products of a kind: "conv bf16", "conv FP32", or from which size which."""
    least = least_edge(kind, dtype)
    sizes = {0, *CLASSES[kind], _LARGE} | ({least} if least and least < _LARGE else set())
    parts: list[str] = []
    before = None
    for size in sorted(sizes):
        fast = _is_fast(mode, kind, dtype, size)
        if fast is not before:
            parts.append((_short(dtype) if fast else "FP32") + (f" from size {size}" if parts else ""))
        before = fast
    return f"{kind} {', '.join(parts)}"


def sentence(mode: str, dtype: torch.dtype) -> str:
    """Returns the rule in force for products of a 16-bit type on this CPU, in words."""
    low = _short(dtype)
    if mode == "off":
        return f'Products on the CPU: {low} by torch, at any speed (gate="off").'
    kinds = {kind: _kind_in_words(mode, kind, dtype) for kind in KINDS}
    code = f"{low} by torch's kernels ({_instructions(dtype)})"
    if mode == "measure":
        return f"Products on the CPU, as {_source} measured: {'; '.join(kinds.values())}. Results are {low}."
    if all(text == f"{kind} FP32" for kind, text in kinds.items()):
        slow = f"whose {low} units are slower" if unit(dtype) else f"which has no {low} units"
        return f"Products: FP32 on this CPU, {slow} ({_instructions(dtype)}). Results are {low}."
    unknown = [kind for kind in KINDS if least_edge(kind, dtype) is None]
    note = f' The speed of {", ".join(unknown)} is unknown here: gate="measure" times it.' if unknown else ""
    if all(text == f"{kind} {low}" for kind, text in kinds.items()):
        return f"Products on the CPU: {code}.{note}"
    return f"Products on the CPU ({_instructions(dtype)}): {'; '.join(kinds.values())}. Results are {low}.{note}"
