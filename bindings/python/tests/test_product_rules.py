# SPDX-License-Identifier: Apache-2.0
"""The gate of products on CPUs: routes by the table, under masks of instruction sets, and the calls of a product in
blocks. Nothing here reads a clock."""

import collections
import datetime
import json
import os
import platform
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from libamp import _core  # noqa: E402
from libamp.torch import amp  # noqa: E402
from libamp.torch.amp import product_gate, widening  # noqa: E402
from libamp.torch.amp import product_rules as rules  # noqa: E402
from libamp.torch.amp.product_rules import FP32, TORCH  # noqa: E402
from ranks import on_ranks  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

BF16, FP16 = torch.bfloat16, torch.float16
NEVER = 2**64 - 1
CACHED = rules.least_edge, rules._decided
MASKS = [
    {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
    {"AMP_CPU_MASK": "sse2,avx2"},
]
SWITCHES = {name for mask in MASKS for name in mask} | {"DNNL_MAX_CPU_ISA"}
if platform.machine() != "x86_64":
    MASKS = [{"AMP_CPU_MASK": "none"}]
ASK = """
import json, torch
from libamp.torch.amp import product_rules as rules
sizes = {"matmul": (1024, 1024, 1024), "conv": (2048, 64, 576), "attention": (512, 512, 64)}
print(json.dumps([[str(dtype), rules.unit(dtype), {kind: rules.route(kind, dtype, shape).name
                  for kind, shape in sizes.items()}] for dtype in (torch.bfloat16, torch.float16)]))
"""


@pytest.fixture(autouse=True)
def _ends(monkeypatch):
    monkeypatch.setattr(rules, "_measured", {})
    yield
    amp.shutdown()
    rules._decided.cache_clear()


@pytest.fixture
def units(monkeypatch):
    """Returns a function that gives the CPU units, in oneDNN's words."""

    def give(**named):
        for cached in CACHED:
            cached.cache_clear()
        monkeypatch.setattr(rules, "unit", lambda dtype: named[str(dtype).removeprefix("torch.")])

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
    least = rules.least_edge("attention", BF16)
    assert 0 < least < 1024
    assert _square("attention", BF16, least) is TORCH
    assert _square("attention", BF16, least - 1) is FP32
    assert rules.route("attention", BF16, (0, 8, 8)) is FP32  # an empty one
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


@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: ",".join(mask.values()))
def test_masks(mask):
    """A CPU masked to AVX2 has no 16-bit units, and so no product in torch's 16-bit kernels, by either switch."""
    plain = {name: value for name, value in os.environ.items() if name not in SWITCHES}
    run = subprocess.run([sys.executable, "-c", ASK], env=plain | mask, check=True, capture_output=True)
    for dtype, unit, routes in json.loads(run.stdout):
        assert unit == "", dtype
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
    with pytest.raises(ValueError, match="must be one of matmul, conv, attention"):
        rules.route("linear", BF16, (4, 4, 4))


def test_a_cpu_s_best_unit(monkeypatch):
    has = {"avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16"}
    monkeypatch.setattr(rules.kernels, "cpu_flags", lambda: 7)
    monkeypatch.setattr(rules, "_aten", lambda: "AVX512")
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


# ---- the setting ----


def _start(level="O4", gate=None, verbosity=0, **settings):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return amp.initialize(model, optimizer, opt_level=level, verbosity=verbosity, gate=gate, **settings)


@pytest.mark.parametrize("value", ["", "ON", "measured", 1, 0.5, []])
def test_bad_values(value):
    with pytest.raises(ValueError, match='must be "default", "on", "off" or "measure"'):
        _start(gate=value)
    assert not rules._sessions


def test_modes(units, monkeypatch):
    units(bfloat16="", float16="no row")
    assert [rules.read(value) for value in (None, True, False, "measure")] == [None, "on", "off", "measure"]
    known = {"default": FP32, "on": FP32, "off": TORCH}
    unknown = {"default": TORCH, "on": FP32, "off": TORCH}
    for mode in known:
        model, _ = _start(gate=mode)
        assert _square("matmul", BF16, 64) is known[mode]
        assert _square("matmul", FP16, 64) is unknown[mode]
        low = [dtype for dtype, routes in ((FP16, unknown), (BF16, known)) if routes[mode] is FP32]
        assert rules.slow_types(mode) == tuple(low)
        amp.shutdown(model)
        assert rules.mode_now() == "default"


class _Types(TorchDispatchMode):
    """Collects the types of the products that torch computes, forward and backward."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if any(part in name for part in ("mm", "convolution", "attention", "mv", "rnn", "linear")):
            self.seen.append(next(arg.dtype for arg in args if isinstance(arg, torch.Tensor)))
        return func(*args, **(kwargs or {}))


class _AllProducts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.images = torch.nn.Conv2d(3, 8, 3)
        self.words = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.time = torch.nn.LSTM(8, 8, batch_first=True)
        self.last = torch.nn.Parameter(torch.randn(8, 4))

    def forward(self, x):
        x = self.images(x).flatten(2).transpose(1, 2)
        return torch.einsum("bij,jk->bik", self.time(self.words(x))[0], self.last)


@pytest.mark.parametrize("level", ["O1", "O2", "O4", "O5"])
def test_without_units_no_product_is_computed_in_16_bits(units, level):
    units(bfloat16="", float16="")
    model = _AllProducts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    with _Types() as types:
        loss = model(torch.randn(2, 3, 6, 6)).float().sum()
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
    assert len(types.seen) > 20
    assert set(types.seen) == {torch.float32}


def test_each_session_has_its_mode(units):
    units(bfloat16="", float16="")
    seen = []

    class Look(torch.nn.Module):
        def forward(self, x):
            seen.append(_square("matmul", BF16, 64))
            return x

    models = [torch.nn.Sequential(torch.nn.Linear(2, 2), Look()) for _ in range(3)]
    for model, gate in zip(models, ("off", None, "on"), strict=True):
        amp.initialize(model, opt_level="O4", verbosity=0, gate=gate)
    for model in models:
        model(torch.ones(1, 2))
    assert seen == [TORCH, FP32, FP32]
    assert rules.mode_now() == "on"  # outside of any scope: the newest session's
    amp.shutdown(models[2])
    assert rules.mode_now() == "default"
    amp.shutdown(models[1])
    assert rules.mode_now() == "off"


def test_the_rule_is_named(units, capsys):
    units(bfloat16="", float16="avx512_core_fp16")
    for level, gate, said in (
        ("O4", None, "Products: FP32 on this CPU, which has no bf16 units"),
        ("O5", None, "Products: FP32 on this CPU, which has no bf16 units"),
        ("O4", "off", 'Products on the CPU: bf16 by torch, at any speed (gate="off").'),
        ("O1", None, "matmul fp16; conv FP32; attention FP32. Results are fp16."),
    ):
        model, _ = _start(level, gate, verbosity=1)
        assert said in capsys.readouterr().out
        assert said in amp.explain(model)
        assert said in amp.health(model)
        assert amp.health(model).rstrip().endswith(("sound", "finding", "findings"))
        amp.shutdown()
    _start("O0", verbosity=1)
    assert "Products" not in capsys.readouterr().out
    units(bfloat16="bf16", float16="fp16")
    _start("O4", verbosity=1)
    assert 'is unknown here: gate="measure" times it' in capsys.readouterr().out


# ---- gate="measure" ----


def _fast_from(edge, timed):
    """Returns a stand-in for the timing of a class: 16 bits win from this edge on."""

    def ratio(kind, size, low, clock):
        timed.append((kind, size, low))
        return 2.0 if size >= edge else 0.8

    return ratio


def test_each_class_is_timed_once(units, monkeypatch):
    units(bfloat16="", float16="")
    timed = []
    monkeypatch.setattr(product_gate, "_ratio", _fast_from(128, timed))
    for _ in range(2):
        model, _ = _start(gate="measure")
    assert sorted(timed) == sorted((kind, size, BF16) for kind, sizes in rules.CLASSES.items() for size in sizes)
    assert [_square("matmul", BF16, edge) for edge in (1, 127, 128, 5000)] == [FP32, FP32, TORCH, TORCH]
    assert _square("matmul", FP16, 4096) is FP32  # not measured: the table's
    assert "as this process measured: matmul FP32, bf16 from size 128" in amp.explain(model)
    _start("O1", gate="measure")
    assert timed[-1][2] is FP16


def test_hopeless_classes_are_not_timed(monkeypatch):
    timed = []

    def ratio(kind, size, low, clock):
        timed.append(size)
        return 0.1

    monkeypatch.setattr(product_gate, "_ratio", ratio)
    answers = product_gate.measure(FP16)
    assert timed == [16, 32] * 3
    assert set(answers) == {f"{kind} float16 {size}" for kind, sizes in rules.CLASSES.items() for size in sizes}
    assert not any(answers.values())


@pytest.mark.parametrize("kind", ["matmul", "conv", "attention"])
def test_a_timing(kind, monkeypatch):
    """The clock is the test's: a call of torch's kernels takes 10, any other 30. The ratio is theirs."""
    pieces, ticks, calls = product_gate._pieces, [0], []

    def timed(*which):
        def piece(name, run, cost):
            def call():
                calls.append(name)
                ticks[0] += cost
                return run()

            return call

        low, wide = pieces(*which)
        return piece("low", low, 10**7), piece("fp32", wide, 3 * 10**7)

    monkeypatch.setattr(product_gate, "_pieces", timed)
    state = torch.random.get_rng_state()
    with rules.forced(FP32):
        assert product_gate._ratio(kind, 64, BF16, lambda: ticks[0]) == 3.0
        low, wide = (run() for run in pieces(kind, 64, BF16))
    assert calls.count("low") == calls.count("fp32") == 2 + product_gate._ROUNDS
    assert torch.equal(torch.random.get_rng_state(), state)
    assert [each.dtype for each in low] == [each.dtype for each in wide]  # the gradients' types too
    assert [each.shape for each in low] == [each.shape for each in wide]


def test_checkpoints_keep_the_answers(units, monkeypatch, capsys):
    units(bfloat16="", float16="")
    monkeypatch.setattr(product_gate, "_ratio", _fast_from(64, []))
    _start(gate="measure")
    saved = amp.state_dict()
    assert saved["gate"]["matmul bfloat16 64"] is True
    assert saved["gate"]["matmul bfloat16 32"] is False
    amp.shutdown()
    monkeypatch.setattr(rules, "_measured", {})
    rules._decided.cache_clear()
    monkeypatch.setattr(product_gate, "_ratio", _fast_from(1024, []))  # another machine
    model, _ = _start(gate="measure")
    assert _square("matmul", BF16, 64) is FP32
    amp.load_state_dict(saved)
    assert _square("matmul", BF16, 64) is TORCH
    assert amp.state_dict() == saved
    assert "as the checkpoint's run measured" in amp.explain(model)
    for bad in (3, {"matmul bfloat16 64": 1}):
        with pytest.raises(ValueError, match=r"gate is .* a dict of bools"):
            amp.load_state_dict({**saved, "gate": bad})
    amp.shutdown()
    _start(verbosity=1)
    assert "gate" not in amp.state_dict()
    amp.load_state_dict(saved)  # the table decides, and the script is told
    assert _square("matmul", BF16, 64) is FP32
    assert 'gate="measure"' in capsys.readouterr().out


def _trained(model, x, call=None):
    """Returns the output and the gradients of a step."""
    model.zero_grad()
    out = (model if call is None else call)(x)
    out.float().square().sum().backward()
    return [out.detach(), *(param.grad.clone() for param in model.parameters())]


def _same(found, expected):
    return all(a.dtype is b.dtype and torch.equal(a, b) for a, b in zip(found, expected, strict=True))


class _Net(torch.nn.Module):
    """Two layers. recomputes: use_reentrant of a checkpoint around the first, None for none."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.recomputes = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4), None

    def forward(self, x):
        again = self.recomputes
        x = self.first(x) if again is None else checkpoint(self.first, x, use_reentrant=again)
        return self.second(torch.relu(x))


def test_recomputation_and_graphs_have_the_same_answer(units, monkeypatch):
    """FP32 products do not round their weights, so that a forward by the other route has other bits."""
    units(bfloat16="", float16="")
    x = torch.randn(32, 8, requires_grad=True)
    results, states = {}, {}
    for least in (16, 1024):
        monkeypatch.setattr(rules, "_measured", {})
        rules._decided.cache_clear()
        monkeypatch.setattr(product_gate, "_ratio", _fast_from(least, []))
        torch.manual_seed(0)
        amp.shutdown()
        model = amp.initialize(_Net(), opt_level="O4", verbosity=0, gate="measure")
        results[least], states[least] = _trained(model, x), amp.state_dict()
        assert results[least][0].dtype is BF16
        for model.recomputes in (True, False):
            assert _same(_trained(model, x), results[least])
        model.recomputes = None
    assert not torch.equal(results[16][0], results[1024][0])
    try:
        compiled = torch.compile(model, backend="aot_eager")
        assert _same(_trained(model, x, compiled), results[1024])
        amp.load_state_dict(states[16])
        assert _same(_trained(model, x), results[16])
        assert _same(_trained(model, x, compiled), results[16])  # not by the graph of the old answers
    finally:
        torch._dynamo.reset()


def _measured_on(rank, world):
    timed = []
    product_gate._ratio = _fast_from(64 if rank == 0 else 1024, timed)
    if rank == 0:  # the others ask first
        torch.distributed.distributed_c10d._get_default_store().wait(["libamp test asks"])
    else:
        torch.distributed.distributed_c10d._get_default_store().set("libamp test asks", "now")
    model, _ = _start(gate="measure")
    agreed = amp.state_dict()["gate"]
    explained = amp.explain(model)
    amp.shutdown()
    rules._measured.clear()
    _start(gate="measure", process_group=False)
    return agreed, bool(timed), "as rank 0 measured" in explained, amp.state_dict()["gate"]["matmul bfloat16 64"]


def test_rank_0_decides():
    (first, *one), (second, *other) = on_ranks(_measured_on)
    assert first == second
    assert first["matmul bfloat16 64"] is True
    assert one == [True, True, True]
    assert other == [True, True, False]  # its own, without a group


def _waits(rank, world):
    product_gate.WAIT = datetime.timedelta(milliseconds=200)
    if rank == 1:
        with pytest.raises(RuntimeError, match=r"rank 0 has measured nothing.*Every rank calls"):
            _start(gate="measure")
    return rules._sessions == []


def test_a_rank_that_never_measures_is_no_hang():
    assert on_ranks(_waits) == [True, True]


# ---- products in blocks ----


class Calls(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = collections.Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("rows", [24, 20])
def test_a_block_of_a_weight_is_three_calls(rows, monkeypatch):
    """Widened, multiplied and rounded, without a view for each, but for a last block that is shorter. Sums of small
    integers are exact in any order."""
    monkeypatch.setattr(widening, "_BLOCK", 64)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    weight, shorter = torch.randint(-3, 4, (rows, 8)).to(FP16), int(rows % 8 > 0)
    x, grad, bias = (torch.randint(-3, 4, shape).float() for shape in ((4, 8), (4, rows), (rows,)))
    with Calls() as calls:
        out = widening.by_rows(x, weight, bias, 1, 1, FP16)
    wanted = torch.addmm(bias, x, weight.float().t()).to(FP16)
    assert torch.equal(out, wanted) and out.stride() == wanted.stride() and out.dtype is FP16
    wanted = {"addmm": 3, "copy_": 6, "clone": 2, "slice": 2 * shorter}
    assert {name: calls.names[name] for name in wanted} == wanted
    with Calls() as calls:
        out = widening.by_columns(grad, weight, None, 1, 1)
    wanted = {"mm": 1, "addmm": 2, "copy_": 3, "slice": shorter}
    assert torch.equal(out, grad @ weight.float()) and {name: calls.names[name] for name in wanted} == wanted
    with Calls() as calls:
        out = widening.gradient(grad, x, torch.empty(rows, 8, dtype=FP16))
    wanted = {"mm": 3, "copy_": 3, "slice": shorter}
    assert torch.equal(out, (grad.t() @ x).to(FP16)) and {name: calls.names[name] for name in wanted} == wanted
