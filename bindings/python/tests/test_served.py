# SPDX-License-Identifier: Apache-2.0
"""LIBAMP_TORCH_OPS=1: torch's operators do libamp's work, here on the CPU: values, scales, records and checkpoints are
the built-in code's, bit for bit."""
import contextlib
import io
import os
import random

import pytest

torch = pytest.importorskip("torch")

from levels import LEVELS, WITH_MASTERS  # noqa: E402
from libamp import kernels  # noqa: E402
from libamp.torch import _devices, _served, amp, optimizers  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

OUT, FETCHED = 4, 7  # amp_served_memory.kind: those that wait


class Calls:
    """Of the library on served devices, by kind."""

    def __init__(self):
        self.lists, self.memory = [], []

    def waits(self):
        return [kind for kind in self.memory if kind in (OUT, FETCHED)]


@contextlib.contextmanager
def torch_ops():
    calls, lists, memory = Calls(), _served.lists, _served.memory
    _served.lists = lambda index, kind, *rest: (calls.lists.append(kind), lists(index, kind, *rest))[1]
    _served.memory = lambda index, kind, *rest: (calls.memory.append(kind), memory(index, kind, *rest))[1]
    os.environ["LIBAMP_TORCH_OPS"] = "1"
    try:
        assert _devices.read_switch()
        yield calls
    finally:
        amp.shutdown()
        _served.lists, _served.memory = lists, memory
        del os.environ["LIBAMP_TORCH_OPS"]
        assert not _devices.read_switch()


@contextlib.contextmanager
def built_in():
    yield None
    amp.shutdown()


def net():
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16, 3)
    ).to(memory_format=torch.channels_last)


def sgd(params):
    return torch.optim.SGD(params, lr=0.05, momentum=0.9)


def batch(i):
    generator = torch.Generator().manual_seed(i)
    return torch.randn(4, 2, 4, 4, generator=generator)


def steps(model, optimizer, numbers, overflows=(), accumulate=False):
    """Records after each."""
    for i in numbers:
        optimizer.zero_grad()
        for k in range(2 if accumulate else 1):
            loss = model(batch(i + 100 * k)).float().pow(2).mean()
            with amp.scale_loss(loss, optimizer, delay_unscale=accumulate and k == 0) as scaled:
                (scaled * float("inf") if i in overflows else scaled).backward()
        optimizer.step()
        yield amp._amp_state.loss_scalers[0]._context.record(0)


def values(model, optimizer):
    state = optimizer.state_dict()["state"]
    moments = [value for key in sorted(state) for _, value in sorted(state[key].items()) if torch.is_tensor(value)]
    grads = [p.grad for p in amp.master_params(optimizer) if p.grad is not None]
    return [t.detach().clone() for t in [*amp.master_params(optimizer), *model.state_dict().values(), *moments, *grads]]


def same(one, other):
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert a.dtype is b.dtype and torch.equal(a, b)


def train(where, level, make=sgd, overflows=(2, 3), n=6, accumulate=False, **settings):
    with where() as calls:
        model = net()
        optimizer = make(model.parameters())
        amp.initialize(model, optimizer, opt_level=level, verbosity=0, **settings)
        records = list(steps(model, optimizer, range(n), overflows, accumulate))
        found = values(model, optimizer)
        given = [p.dtype for p in model.parameters()]
        amp.shutdown()
        return records, found, given, calls


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("accumulate", (False, True), ids=("plain", "accumulated"))
def test_levels(level, accumulate):
    overflows = () if level in ("O0", "O3", "O4", "O5") else (2, 3)  # a static scale of 1 steps on
    here, there = (train(where, level, overflows=overflows, accumulate=accumulate) for where in (built_in, torch_ops))
    assert here[0] == there[0]
    same(here[1], there[1])
    assert here[2] == there[2]
    assert there[3].lists or level in ("O0", "O3", "O4")  # those have nothing to do but types


@pytest.mark.parametrize("mode", ("apex", "torch", "megatron", "deepspeed", "jmp", "mxnet"))
@pytest.mark.parametrize("skips_by_itself", (False, True), ids=("waits", "fused"))
def test_scaler_traces(mode, skips_by_itself):
    """Records of 24 brackets; where an optimizer skips by itself nobody asks the device, but to tell of a skip."""
    if skips_by_itself and not hasattr(torch, "_fused_adam_"):
        pytest.skip("this torch has no fused Adam for the CPU")

    def run(where):
        random.seed(5)
        overflows = [random.random() < 0.3 for _ in range(24)]
        with where() as calls:
            model = torch.nn.Linear(2, 1, bias=False)
            torch.nn.init.ones_(model.weight)
            make = torch.optim.Adam if skips_by_itself else torch.optim.SGD
            optimizer = make(model.parameters(), lr=0.01, **({"fused": True} if skips_by_itself else {}))
            amp.initialize(model, optimizer, opt_level="O1", verbosity=0, scaler=mode, window=2, hysteresis=2,
                           loss_scale="dynamic", init_scale=2.0**12, growth=2.5, max_loss_scale=2.0**15)
            records = []
            for i, overflow in enumerate(overflows):
                before = len(calls.waits()) if calls else 0
                optimizer.zero_grad()
                with amp.scale_loss(model(torch.full((1, 2), 1e-4 * (i + 1))).float().sum(), optimizer) as scaled:
                    (scaled * (float("inf") if overflow else 1.0)).backward()
                optimizer.step()
                if calls and i and not overflows[i - 1]:
                    assert len(calls.waits()) - before == (0 if skips_by_itself else 1)
                records.append(amp._amp_state.loss_scalers[0]._context.record(0))
            return records, [p.detach().clone() for p in amp.master_params(optimizer)]

    here, there = run(built_in), run(torch_ops)
    assert here[0] == there[0]
    assert {record["scale_after"] for record in here[0]} != {2.0**12}
    same(here[1], there[1])


class Asks(TorchDispatchMode):
    """Ops that bring a number to the host, but for copies that have arrived there."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket.__name__ in ("_local_scalar_dense", "equal", "nonzero", "is_nonzero")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("level", WITH_MASTERS)
@pytest.mark.parametrize("name", ("FusedAdam", "FusedSGD", "FusedLAMB", "FusedNovoGrad", "FusedAdagrad"))
def test_fused_optimizers(level, name):
    """torch's square root on a CPU is MKL's, within an ulp, and norms are added in another order: 2^-24 each, which six
    steps multiply by less than 16; a 16-bit weight may then round to its neighbour."""

    def make(params):
        return getattr(optimizers, name)(params, lr=0.01)

    overflows = (2,) if level != "O5" else ()
    here, there = (train(where, level, make, overflows) for where in (built_in, torch_ops))
    assert here[0] == there[0]
    for a, b in zip(here[1], there[1], strict=True):
        if name == "FusedSGD":
            assert torch.equal(a, b)
        else:
            assert torch.allclose(a.float(), b.float(), rtol=1e-6 if a.dtype is torch.float32 else 1e-2, atol=1e-7)


@pytest.mark.parametrize("found", (None, 0.0, 1.0))
def test_kernels(found):
    """libamp.kernels by the library's calls: a step with 16-bit copies of some, and a count on the device."""
    made = []
    for where in (built_in, torch_ops):
        with where() as calls:
            torch.manual_seed(1)
            params, grads = ([torch.randn(n) for n in (5, 300)] for _ in range(2))
            low, steps = [torch.zeros(5, dtype=torch.bfloat16), None], torch.full((2,), 3)
            state = {"momentum_buffer": [torch.ones(n) for n in (5, 300)]}
            flag = None if found is None else torch.tensor([found])
            kernels.optimizer_step("sgd", params, grads, state, steps=steps, model_params=low, lr=0.1, momentum=0.9,
                                   inv_scale=torch.tensor([0.5]), found_inf=flag)
            norm, bad = torch.zeros(1), torch.zeros(1)
            kernels.axpby(grads, 0.5, params, 2.0, grads, found_inf=bad)
            kernels.l2norm(grads, norm=norm)
            made.append([*params, *grads, low[0], steps, bad, norm, *state["momentum_buffer"]])
            assert calls is None or calls.lists == [5, 3, 4]
    same(*made)


def test_a_bracket_asks_the_device_for_nothing(monkeypatch):
    with torch_ops():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
        amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
        # on a CPU a number that has arrived looks like one that is asked for
        monkeypatch.setattr(_devices.Copy, "tells", False)
        list(steps(model, optimizer, range(3)))
        with Asks() as asks:
            for i in (3, 4):
                optimizer.zero_grad()
                with amp.scale_loss(model(batch(i)).float().pow(2).mean(), optimizer) as scaled:
                    scaled.backward()
                optimizer.step()
        assert asks.count == 0


@pytest.mark.parametrize("first", (built_in, torch_ops), ids=("from the CPU's", "from torch's"))
@pytest.mark.parametrize("level", ("O1", "O2", "O5"))
def test_resume_on_the_other_side(level, first):
    second = torch_ops if first is built_in else built_in
    overflows = (1, 5) if level != "O5" else ()

    def make(params, lr):
        return optimizers.FusedSGD(params, lr=lr, momentum=0.9)

    with first():
        model = net()
        optimizer = make(model.parameters(), lr=0.01)
        amp.initialize(model, optimizer, opt_level=level, verbosity=0)
        list(steps(model, optimizer, range(4), overflows))
        file = io.BytesIO()
        torch.save([model.state_dict(), optimizer.state_dict(), amp.state_dict()], file)
        records = list(steps(model, optimizer, range(4, 7), overflows))
        expected = values(model, optimizer)
        amp.shutdown()
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    with second():
        model = net()
        optimizer = make(model.parameters(), lr=0.01)
        amp.initialize(model, optimizer, opt_level=level, verbosity=0)
        for what, state in zip((model, optimizer, amp), saved, strict=True):
            what.load_state_dict(state)
        again = list(steps(model, optimizer, range(4, 7), overflows))
        same(values(model, optimizer), expected)
        assert [r["scale_after"] for r in again] == [r["scale_after"] for r in records]


def test_a_result_is_checked_not_what_it_came_of():
    """At a scale below 1 a finite gradient may leave FP32's range: 3e38 / 0.25."""
    for where in (built_in, torch_ops):
        with where():
            model = torch.nn.Linear(1, 1, bias=False)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            amp.initialize(model, optimizer, opt_level="O0", loss_scale=0.25, verbosity=0)
            before = model.weight.detach().clone()
            with amp.scale_loss(model(torch.ones(1, 1)).sum(), optimizer) as scaled:
                scaled.backward()
                model.weight.grad.fill_(3e38)
            optimizer.step()
            assert amp.stepped(optimizer) is False and torch.equal(model.weight, before)


def test_what_needs_the_plugin_says_so_and_the_banner_names_the_device(capsys):
    with torch_ops():
        model = net()
        optimizer = sgd(model.parameters())
        with pytest.raises(RuntimeError, match="master_weights='split' needs libamp's own kernels"):
            amp.initialize(model, optimizer, opt_level="O5", master_weights="split", verbosity=0)
        capsys.readouterr()
        amp.initialize(model, optimizer, opt_level="O5")
        assert capsys.readouterr().out.count("On cpu torch's operators do libamp's work (LIBAMP_TORCH_OPS is on).") == 1
        with pytest.raises(RuntimeError, match=r"amp\.compress_activations (needs libamp's own kernels|is not in)"):
            amp.compress_activations(model)


def test_what_was_seen_in_inference_mode_is_written_later():
    found = []
    for where in (built_in, torch_ops):
        with where():
            model = net()
            optimizer = sgd(model.parameters())
            amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
            with torch.no_grad():
                model[0].weight.mul_(0.5)
            with torch.inference_mode():
                model.eval()(batch(0))
                amp.state_dict(), model.state_dict(), list(amp.master_params(optimizer))
            model.train()
            list(steps(model, optimizer, range(2)))
            found.append(values(model, optimizer))
    same(*found)


def test_a_failure_is_torchs_own(monkeypatch):
    with torch_ops():
        model = net()
        optimizer = sgd(model.parameters())
        amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
        monkeypatch.setattr(_served.ops, "scale", lambda *args, **named: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            list(steps(model, optimizer, range(1)))
        monkeypatch.undo()
        list(steps(model, optimizer, range(2)))


def test_observing_counts_there():
    """Statistics of gradients and operands are the CPU's."""
    found = []
    for where in (built_in, torch_ops):
        with where():
            model = net()
            optimizer = sgd(model.parameters())
            amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
            amp.observe(model, every=1)
            list(steps(model, optimizer, range(2)))
            context = amp._amp_state.loss_scalers[0]._context
            found.append(sorted((row[:4], row[8][:7]) for row in context.observations()))
    assert found[0] and found[0] == found[1]
