# SPDX-License-Identifier: Apache-2.0
"""torch.compile(model, fullgraph=True) at every level: one graph of the model's own forward, with the casts in it."""

import importlib
import os
import shutil

import pytest

torch = pytest.importorskip("torch")

from levels import DYNAMIC, IN_BF16, LEVELS, PATCHES  # noqa: E402
from libamp.torch import amp  # noqa: E402

F = torch.nn.functional
if tuple(int(number) for number in torch.__version__.split(".")[:2]) < (2, 5):
    pytest.skip("torch before 2.5 breaks more graphs by itself", allow_module_level=True)

SLOW = os.environ.get("AMP_SLOW") == "true"  # tools/test --slow
importlib.import_module("torch._dynamo")  # torch imports it when something is compiled
importlib.import_module("torch._inductor.config")
QUICK = {"cpp.vec_isa_ok": False}  # inductor compiles programs to see which instructions there are, and headers
if hasattr(torch._inductor.config, "cpp_cache_precompile_headers"):
    QUICK["cpp_cache_precompile_headers"] = False
X = torch.linspace(-1, 1, 24).reshape(6, 4)


@pytest.fixture(autouse=True)
def _ends():
    yield
    amp.shutdown()
    torch._dynamo.reset()


class Net(torch.nn.Module):
    """Functions that lists cast down, up and by what they get; methods and operators; batch norm, dropout in eval."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 4)

    def forward(self, x, scale=None):
        h = torch.relu(self.norm(self.first(x)))
        h = torch.cat([self.last(h), x], 1)
        h = F.softmax(h, -1) + h.tanh().exp().mean(1, keepdim=True) * F.layer_norm(h, (8,))
        out = (h @ h.transpose(0, 1)).mm(h) * 0.01 if scale is None else h * scale
        return {"out": out, "norm": out.float().pow(2).mean()}


def made(level, module=Net, **kwargs):
    torch.manual_seed(0)
    model = module()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return amp.initialize(model, optimizer, opt_level=level, verbosity=0, **kwargs)


def trained(model, optimizer, forward):
    """Losses and types of four steps; between two of them somebody halves the masters."""
    seen = []
    for step in range(4):
        optimizer.zero_grad()
        out = forward(X * (1 + step))
        seen.append((out["norm"].item(), out["out"].dtype, out["norm"].dtype))
        with amp.scale_loss(out["norm"] + out["out"].float().mean(), optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
        if step == 1:
            with torch.no_grad():
                for master in amp.master_params(optimizer):
                    master.mul_(0.5)
    assert all(0 < loss < 1e9 for loss, *_ in seen)
    return seen


@pytest.mark.parametrize(
    "level, backend", [*((level, "aot_eager") for level in LEVELS if SLOW or level != "O3"), ("O1", "eager")]
)
def test_training_in_one_graph_is_training(level, backend):
    model, optimizer = made(level)
    wanted = trained(model, optimizer, model)
    amp.shutdown()
    model, optimizer = made(level)
    torch._dynamo.utils.counters.clear()
    found = trained(model, optimizer, torch.compile(model, backend=backend, fullgraph=True))
    assert found == wanted
    assert dict(torch._dynamo.utils.counters["graph_break"]) == {}
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.skipif(not shutil.which("g++"), reason="inductor needs a C++ compiler")
@pytest.mark.parametrize("level", LEVELS if SLOW else ["O1"])
def test_code_of_inductor(level, tmp_path, monkeypatch):
    """It fuses, and rounds less often: within some units of the type. What is not slow is one forward."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    model, optimizer = made(level, Inner)
    low = {"O0": torch.float32, "O4": torch.bfloat16, "O5": torch.bfloat16}.get(level, torch.float16)
    with torch.set_grad_enabled(SLOW), torch._inductor.config.patch({} if SLOW else QUICK):
        found, wanted = torch.compile(model, fullgraph=True)(X), model(X)
        assert found.dtype == wanted.dtype
        torch.testing.assert_close(found, wanted, rtol=8 * torch.finfo(low).eps, atol=0)
    grads = []
    for out in (found, wanted) if SLOW else ():
        optimizer.zero_grad()
        with amp.scale_loss(out.float().pow(2).mean() * 0.125, optimizer) as scaled_loss:
            scaled_loss.backward()
        grads.append([param.grad.clone() for param in amp.master_params(optimizer)])
    for ours, eager in zip(*grads) if SLOW else ():
        torch.testing.assert_close(ours, eager, rtol=32 * torch.finfo(low).eps, atol=32 * torch.finfo(low).eps)


class Inner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sigmoid())

    def forward(self, x):
        return self.layers(x)


def of_torch():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sigmoid())


@pytest.mark.parametrize(
    "module", [of_torch, Inner, lambda: torch.nn.Linear(4, 4)], ids=["Sequential", "nested", "Linear"]
)
def test_modules_of_torchs_own(module):
    """Whose forward torch.compile does not take for the first frame of a graph. Several models, each with graphs of its
    own."""
    for level in DYNAMIC:
        model, _ = made(level, module)
        torch._dynamo.utils.counters.clear()
        assert torch.equal(torch.compile(model, backend="eager", fullgraph=True)(X), model(X))
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
        amp.shutdown()
    models = [made("O2", module)[0] for _ in range(9)]  # of one code torch keeps eight graphs
    for model in models:
        assert torch.equal(torch.compile(model, backend="eager", fullgraph=True)(X), model(X))


@pytest.mark.parametrize("module", [of_torch, Inner])
def test_each_model_has_its_level_also_in_a_graph(module):
    """All of one class, whose code torch would look for graphs by."""
    (first, _), (second, _), (plain, _) = made("O4", module), made("O1", module), made("O0", module)
    compiled = {model: torch.compile(model, backend="aot_eager", fullgraph=True) for model in (first, second, plain)}
    for model, dtype in (
        (first, torch.bfloat16),
        (second, torch.float16),
        (plain, torch.float32),
        (first, torch.bfloat16),
    ):
        assert compiled[model](X).dtype == dtype
    with amp.disable_casts():
        assert compiled[first](X).dtype == torch.float32
    assert compiled[first](X).dtype == torch.bfloat16


def test_a_failing_forward_leaves_no_scope():
    class Fails(Net):
        def forward(self, x):
            return super().forward(x)["out"].reshape(5, 5, 5)

    model, _ = made("O1", Fails)
    other, _ = made("O4", of_torch)
    for call in (model, torch.compile(model, backend="eager")):
        with pytest.raises((RuntimeError, torch._dynamo.exc.TorchRuntimeError), match="shape"):
            call(X)
        assert torch.mm(X, X.T).dtype == torch.bfloat16 and other(X).dtype == torch.bfloat16


def test_a_graph_around_a_model_breaks_there():
    """What is around the forward is not traced: torch says so, or goes on in pieces."""
    model, _ = made("O1", of_torch)

    def loss(x):
        return model(x * 2).float().sum()

    assert torch.equal(torch.compile(loss, backend="eager")(X), loss(X))
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(loss, backend="eager", fullgraph=True)(X)




class Spared(torch.nn.Module):
    """A stretch without casts, of the model's own."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x):
        low = self.layer(x)
        with amp.disable_casts():
            full = self.layer(x)
        return low, full, self.layer(x)


@pytest.mark.parametrize("level", PATCHES)
def test_disable_casts_is_in_the_graph(level):
    model, _ = made(level, Spared)
    found, wanted = torch.compile(model, backend="aot_eager", fullgraph=True)(X), model(X)
    assert [out.dtype for out in found] == [out.dtype for out in wanted]
    assert found[1].dtype is torch.float32 and found[0].dtype is found[2].dtype is not torch.float32
    assert all(map(torch.equal, found, wanted))

    def outside_of_models(x):
        with amp.disable_casts():
            return torch.mm(x, x.T)

    product = torch.compile(outside_of_models, backend="aot_eager", fullgraph=True)(X)
    assert product.dtype is torch.float32


@pytest.mark.parametrize("level", IN_BF16)
def test_attention_in_one_graph(level):
    """torch asks whether its fast path may be taken, and that is patched."""
    model, _ = made(level, lambda: torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True))
    x = X.reshape(2, 3, 4)
    assert torch.equal(torch.compile(model, backend="aot_eager", fullgraph=True)(x), model(x))


def test_a_scale_that_changes_compiles_nothing_anew():
    model, optimizer = made("O1", of_torch, loss_scale="dynamic")
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch._dynamo.utils.counters.clear()
    scales = []
    for factor in (1.0, float("inf"), 1.0):
        with amp.scale_loss(compiled(X).float().sum() * factor, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scales.append(amp.state_dict()["loss_scaler0"]["loss_scale"])
    assert scales[1] < scales[0]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def steps(step):
    """Losses of three steps, and how often graphs broke."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    losses = [float(step(X * factor)) for factor in (1, 2, 3)]
    return losses, sum(torch._dynamo.utils.counters["graph_break"].values())


def bracketed(model, optimizer):
    def step(x):
        loss = model(x).float().square().mean()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def scaled_by_torch():
    torch.manual_seed(0)
    model = Inner()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")

    def step(x):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.detach()

    return step


@pytest.mark.parametrize("level", ["O1", "O5"])
def test_a_compiled_step_breaks_as_torchs_and_at_the_model(level):
    """Of libamp torch.compile sees the model's forward alone: the bracket and what is around a step run as they are."""
    _, theirs = steps(torch.compile(scaled_by_torch(), backend="eager"))
    wanted, _ = steps(bracketed(*made(level, Inner)))
    amp.shutdown()
    found, ours = steps(torch.compile(bracketed(*made(level, Inner)), backend="eager"))
    assert found == wanted
    assert 0 < ours <= theirs + 1  # the model's call
    breaks = "".join(torch._dynamo.utils.counters["graph_break"])
    assert "Context." not in breaks


class Counted:
    """A compiler that traces as inductor does and counts its graphs."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, graph, inputs):
        self.graphs += 1
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    def of(self, function):
        return torch.compile(function, backend=self)


def functions(x):
    return F.linear(x, x[:4])


def operators(x):
    return x @ x.T


class Unrelated(torch.nn.Module):
    def forward(self, x):
        x = F.linear(x, x[:4])
        torch._dynamo.graph_break()
        return x @ x.T


@pytest.mark.parametrize("other", [functions, operators, Unrelated()], ids=["functions", "operators", "module"])
def test_graphs_of_others_stay(other):
    counted = Counted()
    compiled = counted.of(other)
    assert compiled(X).dtype == torch.float32
    before = counted.graphs
    for level in ("O4", "O1"):
        kept = made(level)
        amp.shutdown()
        assert compiled(X).dtype == torch.float32 and counted.graphs == before, level
        kept = made(level)
        compiled(X)
        during = counted.graphs
        amp.shutdown()
        assert compiled(X).dtype == torch.float32 and counted.graphs == during, level
        before = counted.graphs
        del kept


@pytest.mark.parametrize("other", [functions, operators, Unrelated()], ids=["functions", "operators", "module"])
def test_a_graph_does_not_outlive_its_policy(other):
    """Also where nothing that torch.compile checks has changed: patched functions are the same ones in each session.
    Graphs of operators alone that were compiled without a policy stay, and have no casts."""
    compiled = Counted().of(other)
    for level, dtype in (("O4", torch.bfloat16), ("O1", torch.float16), ("O0", torch.float32), ("O4", torch.bfloat16)):
        kept = made(level)
        assert compiled(X).dtype in ((dtype,) if other is functions else (dtype, torch.float32)), level
        amp.shutdown()
        assert compiled(X).dtype == torch.float32, level
        del kept


class Broken(torch.nn.Module):
    """Behind the break a frame of its own goes on, without a function that torch.compile would check."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4, 4))

    def forward(self, x):
        torch._dynamo.graph_break()
        return x @ self.weight


def test_a_model_that_ran_compiled_before_initialize_is_compiled_anew():
    counted = Counted()
    plain = torch.nn.Sequential(Broken())
    assert counted.of(plain)(X).dtype == torch.float32
    model, _ = amp.initialize(plain, torch.optim.SGD(plain.parameters(), lr=0.1), opt_level="O4", verbosity=0)
    assert counted.of(model)(X).dtype == torch.bfloat16


def test_the_graphs_of_a_session_stay_when_another_begins_and_ends():
    counted = Counted()
    first, _ = made("O4", of_torch)
    compiled = counted.of(first)
    assert compiled(X).dtype == torch.bfloat16 and counted.graphs == 1
    kept = made("O1", of_torch)
    assert compiled(X).dtype == torch.bfloat16 and counted.graphs == 1
    del kept


class Mixed(torch.nn.Module):
    """Arithmetic and comparisons of 16-bit results with FP32."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x):
        low = self.layer(x)
        out = torch.add(low * x - x, x) / (x + 2)
        return out * (low < x)


def test_promotion_is_torchs_in_a_graph_too():
    """The casts in a graph are those of linear, to bfloat16: none is made for what torch promotes by itself."""
    from torch._dynamo.backends.common import aot_autograd

    model, _ = made("O4", Mixed)
    graphs = []
    with torch.no_grad():
        wanted = model(X)
        compiled = torch.compile(
            model, backend=aot_autograd(fw_compiler=lambda graph, _: graphs.append(graph) or graph), fullgraph=True
        )
        assert torch.equal(compiled(X), wanted)
    (graph,) = graphs
    casts = [node.kwargs.get("dtype") or node.args[1] for node in graph.graph.nodes
             if "_to_copy" in str(node.target) or "convert_element_type" in str(node.target)]
    assert casts and set(casts) == {torch.bfloat16}
