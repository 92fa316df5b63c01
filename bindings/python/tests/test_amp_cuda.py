# SPDX-License-Identifier: Apache-2.0
"""What amp does where tensors are a GPU's: on a fake one (fakegpu.py), in a process of its own, held against the same
on the CPU to the bit. test_amp_hardware has the same of a real one."""

import contextlib
import gc
import io
import itertools
import json
import os
import subprocess
import sys
import traceback
from unittest import mock

import extras
import fakegpu
import pytest
import torch
from levels import DYNAMIC
from libamp.torch import amp, optimizers
from torch import nn

STEPS, SPOILT = 9, (0, 5)  # of these the gradients are not finite


def _adamw(params):
    return torch.optim.AdamW(params, lr=0.01, fused=True)


def _sgd(params):
    return torch.optim.SGD(params, lr=0.05, momentum=0.9, fused=True)


def _fused_adam(params):
    return optimizers.FusedAdam(params, lr=0.01, capturable=True)


def _own_adam(params):
    return optimizers.FusedAdam(params, lr=0.01)


def _own_sgd(params):
    return optimizers.FusedSGD(params, lr=0.05, momentum=0.9)


def _own_sgd_dampened(params):
    return optimizers.FusedSGD(params, lr=0.05, momentum=0.9, dampening=0.1)


def _own_lamb(params):
    return optimizers.FusedLAMB(params, lr=0.01)


def _own_novograd(params):
    return optimizers.FusedNovoGrad(params, lr=0.01)


def _own_adagrad(params):
    return optimizers.FusedAdagrad(params, lr=0.05)


def _lamb(params):
    return optimizers.FusedMixedPrecisionLamb(params, lr=0.01)


def _plain(params):
    return torch.optim.AdamW(params, lr=0.01)


def _around(params):
    """An optimizer that has what the one inside it has, and hands on nothing that it is told."""

    class Around:
        def __init__(self, inner):
            vars(self).update(vars(inner), inner=inner)

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def step(self, closure=None):
            return self.inner.step(closure)

    return Around(_adamw(params))


OWN = (_own_adam, _own_sgd, _own_sgd_dampened, _own_lamb, _own_novograd, _own_adagrad)
MAKE = {make.__name__: make for make in (_adamw, _sgd, _fused_adam, _lamb, *OWN, _plain, _around)}


def _start(make, level, layers=1, loss_scale="dynamic", **settings):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [layer for _ in range(layers) for layer in (nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))]
    model = nn.Sequential(*layers[:-1], nn.Linear(16, 4))
    optimizer = MAKE[make](model.parameters())
    return amp.initialize(model, optimizer, opt_level=level, verbosity=0, loss_scale=loss_scale, **settings)


def _inputs():
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(4, 8, generator=generator) for _ in range(STEPS)]
    for i in SPOILT:
        inputs[i][0, 0] = float("inf")
    return inputs


def _iterate(model, optimizer, x):
    optimizer.zero_grad()
    loss = model(x).float().pow(2).mean()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()


def _values(optimizer):
    return [param.detach().flatten().tolist() for param in amp.master_params(optimizer)]


def _train(make, level, waits=lambda: (0, 0, 0)):
    """Values, scales, who stepped; and the waits of each iteration."""
    model, optimizer = _start(make, level)
    stepped, waited = [], []
    for x in _inputs():
        before = waits()
        _iterate(model, optimizer, x)
        waited.append([now - then for now, then in zip(waits(), before, strict=True)])
        stepped.append(amp.stepped(optimizer))
    result = [_values(optimizer), amp.state_dict(), stepped]
    amp.shutdown()
    return json.loads(json.dumps(result)), waited


# ---- in a process with a fake GPU ----

TRAININGS = [(make, level) for make in MAKE for level in ("O1", "O2", "O0") if level != "O0" or make == "_adamw"]


def on_gpu_trainings(gpu):
    return {f"{make} {level}": _train(make, level, gpu.waits) for make, level in TRAININGS}


LEVELS = (("O0", 1.0), ("O5", 1.0), ("O2", "dynamic"))
COUNTED = [(make.__name__, level, scale) for make in OWN for level, scale in LEVELS]


def on_gpu_counts(gpu):
    """Launches, uploads and waits of a bracket and of a step, of four parameters and of four times as many."""
    found = {}
    for make, level, scale in COUNTED:
        for layers in (1, 4):
            model, optimizer = _start(make, level, layers, scale)
            for x in _inputs()[1:5]:
                _iterate(model, optimizer, x)
            optimizer.zero_grad()
            loss = model(_inputs()[6]).float().pow(2).mean()
            counts = []

            def count(counts=counts):
                counts.append((gpu.fake.launches, gpu.fake.uploads, sum(gpu.waits())))

            count()
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
            count()
            optimizer.step()
            count()
            deltas = [[b - a for a, b in zip(*pair, strict=True)] for pair in itertools.pairwise(counts)]
            found.setdefault(f"{make} {level}", []).append(deltas)
            amp.shutdown()
    return found


def _capture(gpu, model, optimizer):
    x, graph = torch.zeros(4, 8), torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = model(x).float().pow(2).mean()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
    return x, graph


def on_gpu_captures(gpu):
    """The first iterations one by one, the others in a graph. After one alone mistakes are looked for still."""
    found = {}
    for make, warm in (("_adamw", 4), ("_sgd", 4), ("_fused_adam", 1), ("_own_adam", 4)):
        for level in DYNAMIC:
            model, optimizer = _start(make, level)
            inputs, stepped = _inputs(), []
            for x in inputs[:warm]:
                _iterate(model, optimizer, x)
                stepped.append(amp.stepped(optimizer))
            broke = gpu.fake.broke_capture
            static, graph = _capture(gpu, model, optimizer)
            assert gpu.fake.broke_capture == broke
            for x in inputs[warm:]:
                static.copy_(x)
                before = gpu.waits()
                graph.replay()
                assert gpu.waits() == before
                stepped.append(amp.stepped(optimizer))
            found[f"{make} {level}"] = [_values(optimizer), amp.state_dict(), stepped]
            amp.shutdown()
    return found


def _refused(run):
    try:
        run()
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def on_gpu_refusals(gpu):
    found = {}
    for name, make, level, iterations in (
        ("waits", "_plain", "O1", 3), ("cold", "_adamw", "O2", 0), ("momentum", "_sgd", "O1", 0),
    ):
        model, optimizer = _start(make, level)
        for x in _inputs()[1 : 1 + iterations]:
            _iterate(model, optimizer, x)
        found[name] = _refused(lambda pair=(model, optimizer): _capture(gpu, *pair))
        for x in _inputs()[1:4]:  # it goes on without a graph
            _iterate(model, optimizer, x)
        found[name + " after"] = amp.stepped(optimizer)
        amp.shutdown()
    return found


def on_gpu_graphed_callables(gpu):
    found = {}
    for level in DYNAMIC:
        model, optimizer = _start("_adamw", level)
        launches = gpu.fake.launches
        torch.cuda.make_graphed_callables(model, (torch.zeros(4, 8),))
        assert gpu.fake.launches == launches  # the graphs have nothing of libamp's
        for x in _inputs():
            before = gpu.read
            _iterate(model, optimizer, x)
        assert gpu.read == before
        found[level] = [_values(optimizer), amp.state_dict()]
        amp.shutdown()
        fresh = nn.Linear(8, 4)
        torch.cuda.make_graphed_callables(fresh, (torch.zeros(4, 8),))
        found["before " + level] = _refused(lambda fresh=fresh: amp.initialize(fresh, opt_level="O1", verbosity=0))
    return found


def on_gpu_blocks(gpu):
    """Each block of the library's is told to torch's allocator before it goes; nothing is put on the null stream."""
    sizes = [param.numel() for param in _start("_adamw", "O2")[0].parameters()]
    amp.shutdown()
    return [sorted(block.numel() for block in gpu.retired), sizes, gpu.fake.on_null_stream]


def on_gpu_skips(gpu):
    """What is printed, and what is raised in the end."""
    model, optimizer = _start("_adamw", "O2", max_skips=3)
    amp._amp_state.verbosity = optimizer._amp_stash.session.verbosity = 1
    bad = torch.full((4, 8), float("inf"))
    with contextlib.redirect_stdout(io.StringIO()) as out:
        words = _refused(lambda: [_iterate(model, optimizer, bad) for _ in range(20)])
    amp.shutdown()
    return [out.getvalue().splitlines(), words]


def on_gpu_by_hand(gpu):
    """update_scale says what the GPU has decided."""
    model, optimizer = _start("_adamw", "O1")
    told = []
    for x in _inputs()[4:7]:
        with amp.scale_loss(model(x).pow(2).mean(), optimizer, delay_overflow_check=True) as scaled_loss:
            scaled_loss.backward()
        told.append(amp._amp_state.loss_scalers[0].update_scale())
        if not told[-1]:
            optimizer.step()
        optimizer.zero_grad()
    amp.shutdown()
    return told


class _Saves(nn.Module):
    """Of each kind that is saved: floats, masks, -infinity in a tensor that is not to be rounded."""

    def __init__(self):
        super().__init__()
        self.register_buffer("masked", torch.arange(32) % 4 == 0)
        self.layers = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))

    def forward(self, x):
        kept = torch.ones(x.shape[0], 64, dtype=torch.bool, device=x.device)
        kept[:, ::3] = False
        x = torch.where(kept, self.layers[:3](x), 0.0)
        scores = self.layers[3:](x).masked_fill(self.masked, float("-inf"))
        return torch.logsumexp(scores, 1)


def _train_compressed(unheard, master_weights, device="cpu"):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = _Saves().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O5", verbosity=0, master_weights=master_weights)
    handle = amp.compress_activations(model, bits=4, min_size=64, seed=3)
    for x in _inputs()[1:5]:
        optimizer.zero_grad()
        with mock.patch("libamp.torch.amp.packed._UNHEARD", unheard):
            loss = model(x.to(device)).float().pow(2).mean()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
    wide = [value.flatten().tolist() for value in model.state_dict().values()]
    counts = dict(handle.store.counts)
    amp.shutdown()
    return [wide, counts]


COMPRESSED = [(0, True), (1, True), (8, True), (100, "split")]


def on_gpu_activations(gpu):
    return [_train_compressed(*case) for case in COMPRESSED]


class _Writes(nn.Module):
    """What GELU has saved is written in place."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x):
        y = self.linear(x)
        z = nn.functional.gelu(y)
        y.add_(1.0)
        return z


def _written_later(unheard, value, device="cpu"):
    torch.manual_seed(0)
    model, x = _Writes().to(device), torch.ones(16, 64, device=device)
    x[0, 0] = value
    heard = mock.patch("libamp.torch.amp.packed._UNHEARD", unheard)
    with amp.compress_activations(model, bits=8, min_size=64, seed=5), heard:
        loss = model(x).sum()
        said = _refused(loss.backward)
    return [said, [param.grad.flatten().tolist() for param in model.parameters() if param.grad is not None]]


WRITTEN = [(0, 1.0), (100, 1.0), (100, float("inf"))]


def on_gpu_written_later(gpu):
    return [_written_later(*case) for case in WRITTEN]


def on_gpu_split_masters(gpu):
    found = {}
    for make in ("_plain", "_adamw", "_fused_adam", "_sgd"):
        sides = []
        for masters in (True, "split"):
            model, optimizer = _start(make, "O5", master_weights=masters)
            for x in _inputs()[1:5]:
                _iterate(model, optimizer, x)
            sides.append([value.flatten().tolist() for value in model.state_dict().values()])
            amp.shutdown()
        found[make] = sides[0] == sides[1]
    return found


SCENARIOS = {name: value for name, value in list(globals().items()) if name.startswith("on_gpu_")}


def main():
    gpu, results = fakegpu.install(), {}
    gc.freeze()  # as in conftest
    with gpu:
        for name, scenario in SCENARIOS.items():
            del gpu.retired[:]
            try:
                results[name] = scenario(gpu)
            except Exception:
                results[name] = traceback.format_exc()
                amp.shutdown()
    print(json.dumps(results))


if __name__ == "__main__":
    sys.exit(main())


# ---- and what came of it ----


@pytest.fixture(scope="module")
def gpu():
    why = fakegpu.why_not()
    if why:
        pytest.skip(why)
    folder = os.environ[fakegpu.FOLDER]
    env = os.environ | {"AMP_BACKEND_PATH": folder, "AMP_CUBLASLT": os.path.join(folder, "libfake_cublasLt.so")}
    ran = subprocess.run([sys.executable, "-W", "error::libamp.FindingWarning", __file__], env=env, text=True,
                         capture_output=True)
    assert ran.returncode == 0, ran.stderr
    results = json.loads(ran.stdout.splitlines()[-1])

    def of(name):
        result = results["on_gpu_" + name]
        if isinstance(result, str):
            pytest.fail(result)
        return result

    return of


@pytest.mark.parametrize("make, level", TRAININGS)
def test_trainings_are_the_cpus(gpu, make, level):
    values, waited = gpu("trainings")[f"{make} {level}"]
    assert values == _train(make, level)[0]
    assert values[2] == [i not in SPOILT for i in range(STEPS)]
    alone = make not in ("_plain", "_around")
    # mistakes are looked for in the first two, where a look waits; a skip is asked after when it has been heard of
    assert [i for i in range(3, STEPS) if sum(waited[i])] == ([7] if alone else list(range(3, STEPS)))


@pytest.mark.parametrize("make", ["_adamw", "_sgd", "_fused_adam", "_own_adam"])
@pytest.mark.parametrize("level", DYNAMIC)
def test_an_iteration_in_a_graph_is_one_without(gpu, make, level):
    assert gpu("captures")[f"{make} {level}"] == _train(make, level)[0]


def test_a_step_of_ours_is_one_launch_and_no_wait(gpu):
    """Unscaling, update and rounding by one kernel where the host knows the step's number and no norm is asked for;
    with amp's masters one more. Nothing grows with the parameters."""
    for case, sizes in gpu("counts").items():
        make, level = case.split()
        (few, more), norms = sizes, make in ("_own_lamb", "_own_novograd")
        bracket, step = few
        assert few == more and bracket[2] == step[2] == 0, case
        assert bracket[0] <= (2 if level != "O0" else 0), case
        if not norms:
            assert step[0] == {"O0": 1, "O5": 2}.get(level, 2 + (make == "_own_adam")), case


def test_what_a_capture_cannot_have_is_refused_in_words(gpu):
    found = gpu("refusals")
    assert "AdamW cannot be captured" in found["waits"] and "fused=True" in found["waits"]
    assert "run two or three before the capture" in found["cold"]
    assert "before the capture" in found["momentum"]
    assert all(found[name + " after"] for name in ("waits", "cold", "momentum"))


@pytest.mark.parametrize("level", DYNAMIC)
def test_graphed_callables_train_as_the_model_does(gpu, level):
    found = gpu("graphed_callables")
    assert found[level] == _train("_adamw", level)[0][:2]
    assert "AFTER amp.initialize" in found["before " + level]


def test_blocks_are_retired_on_the_current_stream(gpu):
    retired, sizes, on_null_stream = gpu("blocks")
    assert len(retired) >= len(sizes) and on_null_stream == 0


def test_skips_are_told_without_a_wait_and_end_in_an_error(gpu):
    lines, words = gpu("skips")
    told = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to "
    assert lines and all(line.startswith(told) for line in lines)
    assert words.startswith("Error") and "0.weight" in words


def test_update_scale_asks_the_gpu(gpu):
    assert gpu("by_hand") == [False, True, False]


@extras.needs("activations")
@pytest.mark.parametrize("i", range(len(COMPRESSED)))
def test_activations_are_packed_as_the_cpus(gpu, i):
    values, counts = gpu("activations")[i]
    expected, expected_counts = _train_compressed(*COMPRESSED[i])
    assert values == expected
    assert counts["4 bits"] == expected_counts["4 bits"] and counts["1 bit"][0] > 0
    assert counts["not finite"] == expected_counts["not finite"]


def test_split_masters_are_fp32_masters(gpu):
    assert all(gpu("split_masters").values()), gpu("split_masters")


@extras.needs("activations")
@pytest.mark.parametrize("i", range(len(WRITTEN)))
def test_what_was_packed_may_be_written_before_the_gpu_has_said_that_it_is_finite(gpu, i):
    assert gpu("written_later")[i] == _written_later(*WRITTEN[i])
    assert ("inplace operation" in gpu("written_later")[i][0]) == (i == 2)
