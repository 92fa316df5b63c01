# SPDX-License-Identifier: Apache-2.0
"""amp.observe: what torch's functions get and make is seen under the names of modules, and it trains the same."""

import inspect
import json
import os
import threading

import forks
import pytest

torch = pytest.importorskip("torch")
from half import LACKS_HALF  # noqa: E402

if LACKS_HALF:
    pytest.skip("observing is a mode, and so is what computes half for this torch here", allow_module_level=True)

from levels import DYNAMIC, LEVELS  # noqa: E402
from libamp.torch import amp  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


class Block(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.fc = nn.Linear(n, n)

    def forward(self, x):
        return F.relu(self.fc(x)) + x


class Net(nn.Module):
    def __init__(self, n=8):
        super().__init__()
        self.blocks = nn.Sequential(Block(n), Block(n))
        self.head = nn.Linear(n, 4)

    def forward(self, x):
        return self.head(self.blocks(x))


def training(level, lr=0.1, **observe):
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    if observe:
        amp.observe(model, **observe)
    return model, optimizer


def step(model, optimizer, x=None):
    if x is None:
        x = torch.randn(16, 8)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x).float(), torch.arange(16) % 4)
    with amp.scale_loss(loss, optimizer) as scaled:
        scaled.backward()
    optimizer.step()
    return loss.item()


@pytest.fixture(autouse=True)
def _shutdown():
    yield
    amp.shutdown()
    assert torch._C._len_torch_function_stack() == 0


def by_name(model, what):
    return {(seen.op, seen.name): seen for seen in amp.observations(model) if seen.what == what}


@pytest.mark.parametrize("level", LEVELS)
def test_ops_have_the_names_of_modules(level):
    model, optimizer = training(level, every=1)
    step(model, optimizer)
    inputs, outputs = by_name(model, "inputs"), by_name(model, "outputs")
    low = {"O0": "float32", "O4": "bfloat16", "O5": "bfloat16"}.get(level, "float16")
    for name in ("blocks.0.fc", "blocks.1.fc", "head"):
        assert inputs[f"{name}: linear", "weight"].dtype == low
        assert inputs[f"{name}: linear", "input"].last.elements == 16 * 8
        assert outputs[f"{name}: linear", "output"].last.elements in (16 * 8, 16 * 4)
        assert (f"{name}: linear (backward)", "gradient of output") in inputs
        assert (f"{name}: linear (backward)", "gradient of input") in outputs
    assert ("blocks.0: relu", "output") in outputs
    assert outputs["cross_entropy", "output"].last.elements == 1
    assert not any(op.endswith(("view", "detach", "to", "float")) for op, _ in outputs)
    assert "blocks.0.fc.weight" in {name for _, name in by_name(model, "gradients")}


def weights_after(level, **observe):
    model, optimizer = training(level, **observe)
    losses = [step(model, optimizer) for _ in range(6)]
    values = [p.detach().clone() for p in model.parameters()]
    amp.shutdown()
    return losses, values


@pytest.mark.parametrize("level", LEVELS)
def test_the_same_is_trained(level):
    plain, observed = weights_after(level), weights_after(level, every=2)
    assert plain[0] == observed[0]
    assert all(torch.equal(a, b) for a, b in zip(plain[1], observed[1], strict=True))


def test_only_observed_iterations_are_seen():
    model, optimizer = training("O1", every=4, first=1)
    for _ in range(8):
        step(model, optimizer)
    seen = by_name(model, "outputs")["head: linear", "output"]
    assert seen.iterations == 2
    assert seen.total.elements == 2 * seen.last.elements


def test_evaluation_is_not_seen():
    model, optimizer = training("O1", every=1)
    with torch.no_grad():
        model(torch.randn(3, 8))
    assert not by_name(model, "outputs")
    step(model, optimizer)
    assert by_name(model, "outputs")["head: linear", "output"].last.elements == 16 * 4


def test_a_pass_in_the_mode_for_evaluation_is_not_seen():
    """Without no_grad; a model that is never in training mode is trained as it is."""
    model, optimizer = training("O1", every=1)
    step(model, optimizer)
    seen = by_name(model, "outputs")["head: linear", "output"].total.elements
    model.eval()
    model(torch.full((3, 8), float("inf")))
    model.train()
    assert by_name(model, "outputs")["head: linear", "output"].total.elements == seen
    step(model, optimizer)
    assert by_name(model, "outputs")["head: linear", "output"].total.elements == 2 * seen
    amp.shutdown()
    model, optimizer = training("O1", every=1)
    model.eval()
    step(model, optimizer)
    assert ("head: linear", "output") in by_name(model, "outputs")


@pytest.mark.parametrize("end", [amp.observe_stop, amp.shutdown])
def test_a_forward_that_came_to_nothing_is_over_with_the_observing(end):
    model, _ = training("O1", every=1)
    model(torch.randn(16, 8))  # and no scale_loss
    end(model)
    assert torch._C._len_torch_function_stack() == 0


def test_an_evaluation_after_a_forward_that_came_to_nothing():
    model, optimizer = training("O1", every=1)
    model(torch.randn(16, 8))  # and no scale_loss
    with torch.no_grad():
        model(torch.randn(16, 8))
        F.mse_loss(torch.ones(3), torch.zeros(3))
    assert by_name(model, "outputs")["head: linear", "output"].total.elements == 16 * 4
    assert ("mse_loss", "output") not in by_name(model, "outputs")
    step(model, optimizer)


@pytest.mark.parametrize("level", DYNAMIC)
def test_the_first_gradient_is_that_of_backward(level):
    """Not parameter 0: all of them overflow, and backward comes to the last layer first."""
    model, optimizer = training(level, every=1)
    step(model, optimizer)
    x = torch.randn(16, 8)
    loss = model(x).float().sum() * float("inf")
    with amp.scale_loss(loss, optimizer) as scaled:
        scaled.backward()
    assert amp.culprit(model).parameter in ("head.weight", "head.bias")


def test_the_first_gradient_is_the_first_that_is_made():
    """In the order of backward, whatever the order of the list or of forward."""
    torch.manual_seed(0)
    model = nn.ParameterDict({name: nn.Parameter(torch.ones(4)) for name in ("a", "b", "c")})
    made = []
    for name, param in model.items():
        param.register_hook(lambda grad, name=name: made.append(name))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
    amp.observe(model, every=1)
    loss = ((model["c"] * 2 + model["a"]).exp() * model["b"]).sum() * float("inf")
    with amp.scale_loss(loss, optimizer) as scaled:
        scaled.backward()
    assert sorted(made) == ["a", "b", "c"]
    assert amp.culprit(model).parameter == made[0]


def test_a_culprit_is_told_once(capsys):
    model, optimizer = training("O1")
    amp.shutdown()
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    amp.observe(model, every=1)
    for _ in range(5):
        step(model, optimizer, torch.full((16, 8), float("inf")))
    assert amp.culprit(model).bracket == 5
    assert capsys.readouterr().out.count("the overflow of bracket") == 1


def test_patterns_and_kinds():
    model, optimizer = training("O1", every=1, what="outputs", names=["head: *"])
    step(model, optimizer)
    assert {(seen.what, seen.op) for seen in amp.observations(model)} == {
        ("outputs", "head: linear"),
        ("outputs", "head: linear (backward)"),
    }


class Fault(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        return torch.exp(self.fc(x)) * 1.0


def test_the_culprit_has_its_module_and_line():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), Fault(), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
    amp.observe(model, every=1)
    step(model, optimizer)
    assert amp.culprit(model) is None
    step(model, optimizer, torch.full((16, 8), 300.0))
    found = amp.culprit(model)
    assert found.op in ("1: exp", "1: mul", "1: __mul__", "2: linear")
    assert found.filename == __file__ or found.op == "2: linear"
    lines, start = inspect.getsourcelines(Fault)
    if found.op == "1: exp":
        assert "exp" in lines[found.lineno - start]
    assert any(argument.nonfinite for argument in found.arguments if argument.is_output) or found.was_cast


def test_it_is_told_with_the_line(capsys):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), Fault(), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    amp.observe(model, every=1)
    step(model, optimizer, torch.full((16, 8), 3000.0))
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("the overflow of bracket 1")]
    assert len(told) == 1
    assert os.path.basename(__file__) in told[0]


class Odd(nn.Module):
    """What has no plain elements: transformed, sparse, complex, without a gradient, in place, lists."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 4)
        self.drop = nn.Dropout(0.5, inplace=True)

    def forward(self, x):
        y = torch.func.vmap(lambda row: row.float().exp().sum())(x)
        z = torch.sparse.mm(torch.eye(16).to_sparse(), x.float())
        c = torch.fft.fft(x.float()).real
        parts = torch.chunk(self.drop(F.relu(z + c, inplace=True)), 2)
        return self.fc(torch.cat(parts)) + 0.0 * y.mean()


@pytest.mark.parametrize("level", ["O0", "O1", "O4"])
def test_odd_tensors_are_left_out(level):
    def trained(**observed):
        torch.manual_seed(0)
        model = Odd()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
        if observed:
            amp.observe(model, **observed)
        losses = [step(model, optimizer) for _ in range(3)]
        seen = {one.op for one in amp.observations(model)}
        amp.shutdown()
        return losses, seen

    plain, _ = trained()
    losses, seen = trained(every=1)
    assert losses == plain
    assert {"fc: linear", "cat", "chunk"} & {str(op).replace("Odd: ", "") for op in seen}


def test_a_mode_that_the_script_enters_is_its_own():
    model, optimizer = training("O1", every=1)
    for _ in range(2):
        x, target = torch.randn(16, 8), torch.arange(16) % 4
        out = model(x)
        with torch.device("cpu"):
            loss = F.cross_entropy(out.float(), target)
            with amp.scale_loss(loss, optimizer) as scaled:
                scaled.backward()
        optimizer.step()
    with torch.device("cpu"):
        step(model, optimizer)
    step(model, optimizer)
    assert by_name(model, "outputs")["head: linear", "output"].iterations == 4


def test_forwards_on_threads():
    model, optimizer = training("O1", every=1)
    outs = [None] * 4

    def run(i):
        outs[i] = model(torch.randn(16, 8))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with amp.scale_loss(sum(out.float().sum() for out in outs), optimizer) as scaled:
        scaled.backward()
    optimizer.step()
    assert by_name(model, "outputs")["head: linear", "output"].total.elements == 4 * 16 * 4


def test_a_forward_that_raises_leaves_no_mode():
    model, optimizer = training("O1", every=1)
    with pytest.raises(RuntimeError):
        model(torch.randn(3, 5))
    step(model, optimizer)
    assert ("head: linear", "output") in by_name(model, "outputs")


def test_survey_and_memory():
    model, optimizer = training("O0", every=1)
    step(model, optimizer)
    step(model, optimizer)
    survey = amp.survey(model)
    assert survey.level in LEVELS
    assert survey.iterations == 2
    assert survey.init_scale >= 1.0
    assert [level.memory.level for level in survey.levels] == LEVELS
    assert str(survey).startswith("survey of 2 iterations at O0")
    elements = sum(p.numel() for p in model.parameters())
    now = amp.memory(model)
    assert (now.level, now.weights, now.gradients, now.masters) == ("O0", 4 * elements, 4 * elements, 0)
    o2 = amp.memory(model, level="O2")
    assert (o2.weights, o2.masters, o2.master_gradients) == (2 * elements, 4 * elements, 4 * elements)
    assert 0 < o2.outputs < now.outputs
    amp.shutdown()
    model, optimizer = training("O2")
    step(model, optimizer)
    assert amp.memory(model)[1:5] == o2[1:5]


def test_the_survey_names_what_would_overflow():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    with torch.no_grad():
        model[0].bias.fill_(1e5)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O0", verbosity=0)
    amp.observe(model, every=1)
    step(model, optimizer)
    survey = amp.survey(model)
    assert "amp.register_float_function" in survey.text
    assert not any(word in survey.text + "".join(a.message for a in survey.advice) for word in ("amp_", "AMP_"))
    named = {(advice.code, advice.op) for advice in survey.advice}
    assert ("AMP-A01", "0: linear") in named
    assert all("O1" in advice.levels for advice in survey.advice if advice.op == "0: linear")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("span", [6, 20, 40])
def test_fp8_loses_what_casts_of_ml_dtypes_lose(dtype, span):
    """At the greatest power of two without an overflow. bfloat16 has ties: one number in 128 is a power of two."""
    ml_dtypes, np = pytest.importorskip("ml_dtypes"), pytest.importorskip("numpy")
    torch.manual_seed(span)
    x = (torch.randn(32, 32) * 2.0 ** torch.randint(-span, 1, (32, 32))).to(dtype)
    model = nn.Linear(32, 4).to(dtype)
    model, optimizer = amp.initialize(model, torch.optim.SGD(model.parameters(), lr=1e-6), opt_level="O0", verbosity=0)
    amp.observe(model, every=1)
    with amp.scale_loss(model(x).float().sum(), optimizer) as scaled:
        scaled.backward()
    (seen,) = [each for each in amp.survey(model).fp8 if (each.op, each.name) == ("Linear: linear", "input")]
    exact = x.double().numpy()
    formats = {"e4m3": (ml_dtypes.float8_e4m3fn, 448.0, 2.0**-6), "e5m2": (ml_dtypes.float8_e5m2, 57344.0, 2.0**-14)}
    for name, (kind, most, normal) in formats.items():
        scale = 2.0 ** np.floor(np.log2(most / np.abs(exact).max()))
        cast = (exact * scale).astype(kind).astype(np.float64)
        assert np.isfinite(cast).all()
        zeros, small = ((cast == 0) & (exact != 0)).sum(), ((cast != 0) & (np.abs(exact * scale) < normal)).sum()
        assert getattr(seen, name) == (zeros, small, 0)
        blocks = exact.reshape(-1, 32)
        shared = 2.0 ** (np.floor(np.log2(np.abs(blocks).max(axis=1, keepdims=True))) - np.floor(np.log2(most)))
        scaled_blocks = blocks / shared
        beyond = ~np.isfinite(scaled_blocks.astype(kind).astype(float))
        cast = np.clip(scaled_blocks, -most, most).astype(kind).astype(np.float64)
        zeros, small = ((cast == 0) & (blocks != 0)).sum(), ((cast != 0) & (np.abs(scaled_blocks) < normal)).sum()
        assert getattr(seen, f"{name}_blocks") == (zeros, small, beyond.sum())
    assert seen.numbers == seen.block_numbers == int((exact != 0).sum())


def test_it_ends():
    model, optimizer = training("O1", every=1)
    step(model, optimizer)
    amp.observe_stop(model)
    assert amp.observations(model) == []
    step(model, optimizer)
    assert amp.observations(model) == []


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"what": "weight"}, "'weight'"),
        ({"every": 0}, "every is 0"),
        ({"first": -1}, "first is -1"),
        ({"max_bytes": 0}, "max_bytes is 0"),
        ({"sample": 0}, "sample is 0"),
        ({"sample": 1025}, "sample is 1025"),
    ],
)
def test_what_cannot_be(given, says):
    model, _ = training("O1")
    with pytest.raises(ValueError, match=says):
        amp.observe(model, **given)


def test_errors_speak_python():
    model, optimizer = training("O1")
    with pytest.raises(RuntimeError, match=r"^amp.survey: nothing was observed: call amp.observe\(model, every=1\)"):
        amp.survey(model)
    with amp.scale_loss(model(torch.randn(16, 8)).sum(), optimizer) as scaled:
        for function in (amp.observe, amp.observe_stop):
            with pytest.raises(RuntimeError, match=f"^amp.{function.__name__} inside a block of amp.scale_loss"):
                function(model)
        scaled.backward()


def test_without_initialize():
    for function in (amp.observe, amp.observe_stop, amp.observations, amp.culprit, amp.memory, amp.survey):
        with pytest.raises(RuntimeError, match=f"amp.{function.__name__}: nothing went through"):
            function()
    with pytest.raises(RuntimeError, match="this Linear went through no"):
        amp.survey(nn.Linear(2, 2))


SCRIPT = """
import torch
from apex import amp
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = amp.initialize(model, optimizer, opt_level="O0", verbosity=0)
for _ in range(3):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(torch.randn(16, 8)), torch.arange(16) % 4)
    with amp.scale_loss(loss, optimizer) as scaled:
        scaled.backward()
    optimizer.step()
print("done")
"""


def run(tmp_path, *options, script=SCRIPT):
    (tmp_path / "script.py").write_text(script)
    return forks.run("-m", "libamp.run", *options, "script.py", cwd=tmp_path, whole=True)


def test_a_script_is_surveyed(tmp_path):
    done = run(tmp_path, "--survey", "--trace", "run.jsonl")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"
    assert "libamp.run: amp.initialize 1 of 1: survey of 3 iterations at O0" in done.stderr
    assert "advised: O" in done.stderr
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert {"0: linear", "2: linear (backward)"} <= {line["op"] for line in lines if line["kind"] == "seen"}
    assert any(line["kind"] == "survey" for line in lines)
    assert lines[-1]["kind"] == "end"
    assert any(line["kind"] == "memory" for line in lines)


@pytest.mark.parametrize("end", ["", "raise ValueError", "del model, optimizer"])
def test_a_trace_has_its_last_lines_however_the_script_ends(tmp_path, end, monkeypatch):
    monkeypatch.setenv("AMP_OBSERVE", "every=1")
    fork = "import os\nif os.fork() == 0:\n    raise SystemExit\nos.wait()\n"  # a child has no part in it
    done = run(tmp_path, "--trace", "run.jsonl", script=SCRIPT + fork + end)
    assert done.returncode == (end == "raise ValueError"), done.stderr
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert kinds[-1] == "end" and kinds.count("end") == 1
    assert kinds.count("survey") == 1
    assert ("Traceback" in done.stderr) is (end == "raise ValueError")


def test_a_survey_is_told_of_a_script_that_ends_badly(tmp_path):
    done = run(tmp_path, "--survey", script=SCRIPT + "raise SystemExit(7)")
    assert done.returncode == 7
    assert "survey of 3 iterations" in done.stderr
    done = run(tmp_path, "--survey", "--check", script=SCRIPT.replace('"O0"', '"O2"') + "amp.shutdown()\n")
    assert done.returncode == 0, done.stderr
    assert "survey of 3 iterations at O2" in done.stderr
    assert "no finding" in done.stderr
    done = run(tmp_path, "--survey", script="print('nothing')")
    assert "nothing was observed" in done.stderr
