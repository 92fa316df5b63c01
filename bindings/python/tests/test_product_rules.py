# SPDX-License-Identifier: Apache-2.0
"""The gate of products on CPUs: routes by the table, under masks of instruction sets. Nothing here reads a clock."""

import json
import os
import platform
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from libamp import _core  # noqa: E402
from libamp.torch.amp import product_rules as rules  # noqa: E402
from libamp.torch.amp.product_rules import FP32, LIBAMP, TORCH  # noqa: E402

BF16, FP16 = torch.bfloat16, torch.float16
NEVER = 2**64 - 1
CACHED = rules.least_edge, rules._libamp_edge, rules.route
MASKS = [
    {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
    {"DNNL_MAX_CPU_ISA": "avx512_core_bf16"},
    {"AMP_CPU_MASK": "sse2,avx2"},
]
SWITCHES = {name for mask in MASKS for name in mask}
if platform.machine() != "x86_64":
    MASKS = [{"AMP_CPU_MASK": "none"}]
ASK = """
import json, torch
from libamp.torch.amp import product_rules as rules
sizes = {"matmul": (1024, 1024, 1024), "conv": (2048, 64, 576), "attention": (512, 512, 64)}
print(json.dumps([[str(dtype), rules.unit(dtype), {kind: rules.route(kind, dtype, shape).name
                  for kind, shape in sizes.items()}] for dtype in (torch.bfloat16, torch.float16)]))
"""


@pytest.fixture
def units(monkeypatch):
    """Returns a function that gives the CPU units, in oneDNN's words, and libamp one of its own."""

    def give(libamp="", **named):
        for cached in CACHED:
            cached.cache_clear()
        monkeypatch.setattr(rules, "unit", lambda dtype: named[str(dtype).removeprefix("torch.")])
        monkeypatch.setattr(rules, "_libamp_unit", lambda: libamp)

    yield give
    for cached in CACHED:
        cached.cache_clear()


def _square(kind, dtype, edge):
    """Returns the route of a square product."""
    return rules.route(kind, dtype, (edge, edge, edge))


def _row(who, kind, unit, dtype):
    """Returns the least edge that C's table has for a question."""
    name = str(dtype).removeprefix("torch.")
    return {row[:4]: row[4] for row in _core.gate_rows()}.get((who, kind, unit, name))


def test_the_rows_are_c_s(units):
    units(bfloat16="avx512_core_amx", float16="avx512_core_fp16")
    for kind in ("matmul", "conv", "attention"):
        assert rules.least_edge(kind, BF16) == _row("torch", kind, "avx512_core_amx", BF16) is not None
        assert rules.least_edge(kind, FP16) == _row("torch", kind, "avx512_core_fp16", FP16) is not None
    least = rules.least_edge("matmul", BF16)
    assert 0 < least < 1024
    assert _square("matmul", BF16, least) is TORCH
    assert _square("matmul", BF16, least - 1) is FP32
    assert rules.route("matmul", BF16, (0, 8, 8)) is FP32  # an empty one
    assert rules.slow_types() == (FP16, BF16)


def test_without_units_nothing_is_lowered(units):
    units(bfloat16="", float16="")
    for kind in ("matmul", "conv", "attention"):
        for dtype in (BF16, FP16):
            assert rules.least_edge(kind, dtype) == NEVER
            assert {_square(kind, dtype, edge) for edge in (1, 64, 4096)} == {FP32}


def test_onednn_s_rows_stand_in(units):
    units(bfloat16="avx512_core_bf16", float16="bf16")  # no row of torch's, and none at all
    assert _row("torch", "matmul", "avx512_core_bf16", BF16) is None
    assert rules.least_edge("matmul", BF16) == _row("onednn", "matmul", "avx512_core_bf16", BF16) is not None
    assert rules.least_edge("matmul", FP16) is None
    assert _square("matmul", FP16, 4) is TORCH  # of unknown speed: as the level says


def test_libamp_multiplies_with_as_many_threads(units, monkeypatch):
    units(libamp="avx2", bfloat16="", float16="")
    monkeypatch.setattr(torch, "get_num_threads", lambda: rules.kernels.get_num_threads())
    assert _square("matmul", FP16, 64) is LIBAMP
    assert _square("conv", FP16, 64) is FP32
    rules.route.cache_clear()
    monkeypatch.setattr(torch, "get_num_threads", lambda: rules.kernels.get_num_threads() + 1)
    assert _square("matmul", FP16, 64) is FP32


@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: ",".join(mask.values()))
def test_masks(mask):
    """A masked CPU has no unit that is faster than its FP32, and so no product in torch's 16-bit kernels, by any of the
    three switches. A Zen 4 has one below AVX512_CORE_BF16."""
    plain = {name: value for name, value in os.environ.items() if name not in SWITCHES}
    run = subprocess.run([sys.executable, "-c", ASK], env=plain | mask, check=True, capture_output=True)
    for dtype, unit, routes in json.loads(run.stdout):
        if unit == "avx512_core_bf16":
            continue
        assert unit == ("avx512_core_bf16, amx off" if unit else ""), dtype
        assert "TORCH" not in routes.values()


def test_limits_are_read_as_onednn_does(monkeypatch):
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)
    assert rules._onednn_limit() == ""
    monkeypatch.setenv("DNNL_MAX_CPU_ISA", "Avx2")
    assert rules._onednn_limit() == "avx2"
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    assert rules._onednn_limit() == "avx512_core_bf16"
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "no such set")  # oneDNN ignores it
    assert rules._onednn_limit() == ""


def test_sizes_are_c_s():
    """Those of tests/levels/test_gate.c, products_have_an_edge."""
    assert [rules.edge(shape) for shape in ((64, 64, 64), (2048, 16, 144), (8, 32, 16), (0, 4, 4))] == [64, 42, 13, 0]
    with pytest.raises(ValueError, match="kind is 'linear'.*matmul, conv, attention"):
        rules.route("linear", BF16, (4, 4, 4))


def test_a_cpu_s_best_unit(monkeypatch):
    has = {"avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16"}
    monkeypatch.setattr(rules.kernels, "cpu_flags", lambda: 7)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(rules, "_capabilities", lambda: frozenset(has))
    expected = {
        "": ("avx512_core_amx", "avx512_core_amx_fp16"),
        "avx512_core_amx": ("avx512_core_amx", "avx512_core_fp16"),
        "avx512_core_fp16": ("avx512_core_bf16, amx off", "avx512_core_fp16"),
        "avx512_core_bf16": ("avx512_core_bf16, amx off", ""),
        "avx512_core": ("", ""),
    }
    for limit, units in expected.items():
        monkeypatch.setattr(rules, "_onednn_limit", lambda limit=limit: limit)
        assert (rules._x86_unit(BF16), rules._x86_unit(FP16)) == units
    has.discard("amx_bf16")  # a Zen 4
    monkeypatch.setattr(rules, "_onednn_limit", lambda: "")
    assert rules._x86_unit(BF16) == "avx512_core_bf16"
    monkeypatch.setattr(rules.kernels, "cpu_flags", lambda: 5)
    assert rules._x86_unit(BF16) == ""
