# SPDX-License-Identifier: Apache-2.0
"""The gate of products on CPUs: which code computes a product whose result has a 16-bit type.

torch's 16-bit kernels are slower than its FP32 kernels on a CPU without 16-bit units, and for small products on all.
The rows of C's table (src/call/gate_table.inc) say from which size they are faster. No clock is read: two processes
with the same CPU and settings decide alike. Types never depend on the decision: the result has the 16-bit type.
"""
from __future__ import annotations

import enum
import functools
import os
import platform
from collections.abc import Sequence

import torch

from ... import _core, kernels

KINDS = ("matmul", "conv", "attention")
_LOW = (torch.float16, torch.bfloat16)
_AVX2, _AVX512 = 1, 2  # AMP_CPU_* of amp_kernels.h

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
    LIBAMP = "libamp.kernels.matmul"
    FP32 = "torch's FP32 kernels"


TORCH, LIBAMP, FP32 = Route


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
    if not kernels.cpu_flags() & _AVX512 or not torch.backends.cpu.get_cpu_capability().startswith("AVX512"):
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


def _libamp_unit() -> str:
    flags = kernels.cpu_flags()
    return "avx512" if flags & _AVX512 else "avx2" if flags & _AVX2 else ""


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


@functools.cache
def _libamp_edge(kind: str, dtype: torch.dtype) -> int | None:
    return _table().get(("amp_matmul beside torch", kind, _libamp_unit(), dtype))


# ---- a product ----


def edge(shape: Sequence[int]) -> int:
    """Returns the edge of the square product with as many multiplications per element of its matrices, 0 for an empty
    one, as in amp_gate.h."""
    return int(3.0 / sum(1.0 / size for size in shape) + 1e-9) if all(shape) else 0


@functools.lru_cache(4096)
def route(kind: str, dtype: torch.dtype, shape: tuple[int, int, int]) -> Route:
    """Returns the code for a product on a CPU whose result has a 16-bit type.

    kind: "matmul", "conv" or "attention". dtype: torch.float16 or torch.bfloat16. shape: m, n and k of one product of a
    batch. Of a convolution: pixels of all outputs, output channels of a group, elements of a filter. Of attention:
    queries, keys, elements of a head.
    """
    size = edge(shape)
    least = least_edge(kind, dtype)
    if least is None or size >= least:
        return TORCH
    libamp = _libamp_edge(kind, dtype)
    if libamp is not None and size >= libamp and kernels.get_num_threads() >= torch.get_num_threads():
        return LIBAMP
    return FP32


def slow_types() -> tuple[torch.dtype, ...]:
    """Returns the 16-bit types in which torch's own kernels are too slow for some products on this CPU."""
    return tuple(dtype for dtype in _LOW if any(least_edge(kind, dtype) for kind in KINDS))
