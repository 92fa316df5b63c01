# SPDX-License-Identifier: Apache-2.0
"""libamp.mlx: trainings at every level, states, what is skipped, what mx.compile and mx.checkpoint make of it."""
import functools
import os
import pathlib
import re
import subprocess
import sys

import libamp
import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed")
import mlx.nn as nn  # noqa: E402
import mlx.optimizers as optim  # noqa: E402
from levels import DYNAMIC, LEVELS, WITH_MASTERS  # noqa: E402
from libamp.mlx import amp  # noqa: E402
from mlx.utils import tree_flatten, tree_map, tree_unflatten  # noqa: E402
from mlxnet import (  # noqa: E402, F401
    ENABLED,
    NO_FUSE,
    TRAINED,
    Net,
    Training,
    arrays,
    compile_mode,
    data,
    dtypes,
    ends,
    loss_fn,
    same,
    unfused,
)

STEPS = 60


@functools.cache
def plain(seed):
    training = Training(None, seed)
    loss = training.run(*data(), STEPS)
    return training.accuracy(*data()), loss, arrays(training.model, training.optimizer.state)


# ---- levels ----


@pytest.mark.parametrize("level", LEVELS)
def test_digits_as_well_as_in_fp32(level):
    accuracies = [plain(seed)[0] for seed in range(3)]
    mean = sum(accuracies) / 3
    tested = len(data()[1]) - TRAINED
    noise = 3 * (2 * mean * (1 - mean) / tested) ** 0.5  # three deviations of the difference of two such tests
    training = Training(level)
    training.run(*data(), STEPS)
    assert training.accuracy(*data()) > mean - noise
    amp.check(training.model)


def test_o0_is_plain_mlx():
    training = Training("O0")
    assert training.run(*data(), STEPS) == plain(0)[1]
    assert same(arrays(training.model, training.optimizer.state), plain(0)[2])


def test_shutdown_leaves_plain_mlx():
    functions = [mx.matmul, mx.array.__matmul__, nn.gelu, nn.losses.cross_entropy, mx.fast.layer_norm]
    training = Training("O1")
    model = training.model
    assert mx.matmul is not functions[0] and nn.losses.cross_entropy is not functions[3]
    amp.shutdown()
    assert [mx.matmul, mx.array.__matmul__, nn.gelu, nn.losses.cross_entropy, mx.fast.layer_norm] == functions
    assert type(model) is Net and type(model.conv) is nn.Conv2d and "libamp" not in training.optimizer.state
    training = Training(None)
    training.run(*data(), STEPS)
    assert same(arrays(training.model, training.optimizer.state), plain(0)[2])


@pytest.mark.parametrize(("level", "low"), [("O2", mx.float16), ("O3", mx.float16), ("O5", mx.bfloat16)])
def test_types_of_a_model_in_16_bits(level, low):
    training = Training(level)
    training.optimizer.init(training.model.trainable_parameters())  # as before mx.compile
    assert dtypes(training.optimizer.state["layers"]) == {low if level == "O3" else mx.float32}
    training.run(*data(), 2)
    norm = dtypes(training.model.norm)
    assert norm == ({low} if level == "O3" else {mx.float32})
    assert dtypes(training.model.layers) == {low} == dtypes(training.model.conv)
    seen = []
    training.model.layers.layers[1] = lambda x: seen.append(x.dtype) or x
    assert training.model(data()[0][:2]).dtype == mx.float32
    assert seen == [low]  # also behind a batch norm in FP32
    moments = dtypes([training.optimizer.state["layers"], training.optimizer.state["conv"]])
    assert moments == ({low} if level == "O3" else {mx.float32})


@pytest.mark.parametrize("level", DYNAMIC)
def test_batch_norm_computes_in_fp32_and_returns_what_came(level):
    found = Training(level).model.norm(mx.full((64, 4, 4, 8), 1000.0, dtype=mx.float16))
    assert found.dtype == mx.float16 and (found == 0).all().item()  # a sum in fp16 overflows


def test_masters_begin_with_the_bits_that_16_lose_and_end_in_the_model():
    mx.random.seed(0)
    before = arrays(Net())
    training = Training("O2")
    assert same(arrays(amp.master_params(training.model)), before)
    training.run(*data(), 3)
    masters = arrays(amp.master_params(training.model))
    rounded = {path: value.astype(mx.float16) for path, value in masters.items() if "norm" not in path}
    now = arrays(training.model.parameters())
    assert same(rounded, {path: now[path] for path in rounded})
    amp.shutdown()
    assert same(arrays(training.model.parameters()), masters)


@pytest.mark.parametrize("level", WITH_MASTERS)
def test_masters_have_what_is_written_into_weights(level):
    training = Training(level)
    training.run(*data(), 2)
    fp32 = {path: value * 1.001 for path, value in tree_flatten(amp.master_params(training.model))}
    training.model.load_weights(list(fp32.items()))  # a file in FP32: with all its bits
    training.model.norm.eval()
    training.model(data()[0][:2])
    assert dtypes(training.model.layers) == {mx.float16 if level == "O2" else mx.bfloat16}
    assert same(arrays(amp.master_params(training.model)), arrays(tree_unflatten(list(fp32.items()))))
    training.model.layers.layers[0].bias = mx.ones(32, dtype=mx.float16)
    training.optimizer.learning_rate = 0.0
    training.run(*data(), 1, first=3)
    assert (amp.master_params(training.model)["layers"]["layers"][0]["bias"] == 1.0).all().item()


# ---- overflows ----


def overflowing(training, x, y):
    """A step whose gradients are not finite, by a batch that is not."""
    return training.step(x * float("inf"), y)


def everything(training):
    """But for the scalers."""
    states = {**training.optimizer.state, "libamp": {}}
    return arrays(training.model.parameters(), states, amp.master_params(training.model))


@pytest.mark.parametrize("level", DYNAMIC)
@pytest.mark.parametrize("scheduled", [False, True])
def test_an_overflow_changes_nothing_but_the_scale(level, scheduled):
    optimizer = optim.AdamW(optim.cosine_decay(1e-3, 9)) if scheduled else None
    training = Training(level, optimizer=optimizer, init_scale=256.0)
    training.model.norm.eval()
    x, y = data()
    training.run(x, y, 2)
    before = everything(training)
    overflowing(training, x[:64], y[:64])
    assert same(everything(training), before)
    assert amp.state_dict() == {"loss_scaler0": {"loss_scale": 128.0, "unskipped": 0}}
    training.run(x, y, 1, first=2)
    assert amp.state_dict() == {"loss_scaler0": {"loss_scale": 128.0, "unskipped": 1}}
    assert not same(everything(training), before)


def test_clipping_and_accumulation_see_fp32_gradients_without_the_scale():
    x, y = data()
    sums = {}
    for level in (None, "O1", "O2", "O5"):
        training = Training(level)
        halves = [training.gradients(training.model, x[i : i + 32], y[i : i + 32])[1] for i in (0, 32)]
        grads = tree_map(lambda a, b: (a + b) / 2, *halves)
        assert dtypes(grads) == {mx.float32}
        clipped, norm = optim.clip_grad_norm(grads, 0.1)
        training.optimizer.update(training.model, clipped)
        sums[level] = norm.item()
    for level, bits in (("O1", 11), ("O2", 11), ("O5", 8)):  # of the significand: some roundings in a row
        assert sums[level] == pytest.approx(sums[None], rel=16 * 2.0**-bits)


def test_an_overflow_in_one_of_several_brackets_skips():
    training = Training("O1", init_scale=256.0)
    x, y = data()
    before = arrays(training.model.trainable_parameters())
    bad = training.gradients(training.model, x[:64] * float("inf"), y[:64])[1]
    good = training.gradients(training.model, x[:64], y[:64])[1]
    grads, _ = optim.clip_grad_norm(tree_map(mx.add, bad, good), 1.0)
    training.optimizer.update(training.model, grads)
    assert same(arrays(training.model.trainable_parameters()), before)


def test_several_losses_have_a_scale_each():
    model, optimizer = Net(), optim.SGD(0.05)
    amp.initialize(model, optimizer, "O1", num_losses=2, init_scale=4.0)
    x, y = data()
    amp.value_and_grad(model, loss_fn, loss_id=1)(model, x[:8] * float("inf"), y[:8])
    assert [state["loss_scale"] for state in amp.state_dict().values()] == [4.0, 2.0]
    with pytest.raises(libamp.ArgumentError, match="num_losses"):
        amp.value_and_grad(model, loss_fn, loss_id=2)


@pytest.mark.parametrize("several", [False, True])
def test_several_optimizers(several):
    model = Net()
    parts = [optim.SGD(0.1), optim.Adam(1e-3)]
    optimizer = parts if several else optim.MultiOptimizer(parts, [lambda path, _: "conv" in path])
    amp.initialize(model, optimizer, "O2", init_scale=4.0)
    gradients, (x, y) = amp.value_and_grad(model, loss_fn), data()

    def update(x):
        grads = gradients(model, x, y[:32])[1]
        if not several:
            return optimizer.update(model, grads)
        parts[0].update(model, {"conv": grads["conv"]})
        parts[1].update(model, {"layers": grads["layers"]})

    before = arrays(model.trainable_parameters())
    update(x[:32] * float("inf"))
    assert same(arrays(model.trainable_parameters()), before)
    update(x[:32])
    after = arrays(model.trainable_parameters())
    assert {path for path in after if not mx.array_equal(after[path], before[path]).item()} >= {
        "0.conv.weight", "0.layers.layers.0.weight"
    }


RANK = """
import mlx.core as mx, mlx.nn as nn, mlx.optimizers as optim
from libamp.mlx import amp
world = mx.distributed.init(strict=True)
model, optimizer = nn.Linear(4, 2), optim.SGD(0.1)
model.weight = mx.ones((2, 4))
amp.initialize(model, optimizer, "O2", init_scale=8.0)
gradients = amp.value_and_grad(model, lambda x: model(x).sum())
for bad in (2, 1, 2):
    before = mx.array(model.weight)
    _, grads = gradients(mx.ones((2, 4)) * (float("inf") if world.rank() == bad else world.rank()))
    optimizer.update(model, nn.average_gradients(grads))
    print(world.rank(), not mx.array_equal(before, model.weight).item(), amp.state_dict()["loss_scaler0"]["loss_scale"])
"""


# mlx.launch, wherever it is installed
LAUNCH = """
import importlib.metadata
(launch,) = importlib.metadata.entry_points(group="console_scripts", name="mlx.launch")
launch.load()()
"""


def test_all_ranks_skip_where_one_overflows():
    command = [sys.executable, "-c", LAUNCH, "-n", "2", "--backend", "ring", "--", sys.executable, "-c", RANK]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert sorted(line.split() for line in done.stdout.splitlines()) == sorted(
        [*([["0", step, "8.0"] for step in ("True", "False", "True")]),
         ["1", "True", "8.0"], ["1", "False", "4.0"], ["1", "True", "4.0"]]
    ), done.stderr


# ---- states ----


@pytest.mark.parametrize("level", ["O1", "O2", "O5"])
def test_resumed_from_files_it_is_the_same_to_the_bit(level, tmp_path):
    x, y = data()
    training = Training(level, window=3)
    training.run(x, y, 5)
    mx.save_safetensors(str(tmp_path / "model.safetensors"), dict(tree_flatten(training.model.parameters())))
    mx.save_safetensors(str(tmp_path / "optimizer.safetensors"), dict(tree_flatten(training.optimizer.state)))
    training.run(x, y, 5, first=5)
    resumed = Training(level, seed=1, window=3)
    resumed.model.load_weights(str(tmp_path / "model.safetensors"))
    resumed.optimizer.state = tree_unflatten(list(mx.load(str(tmp_path / "optimizer.safetensors")).items()))
    resumed.run(x, y, 5, first=5)
    assert same(arrays(resumed.model, resumed.optimizer.state), arrays(training.model, training.optimizer.state))


def test_scalers_in_apex_words():
    training = Training("O2")
    training.run(*data(), 2)
    state = amp.state_dict()
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 32.0, "unskipped": 7}})
    assert amp.state_dict() == {"loss_scaler0": {"loss_scale": 32.0, "unskipped": 7}} != state
    with pytest.raises(libamp.ArgumentError, match="loss_scaler0"):
        amp.load_state_dict({})


# ---- compiled, checkpointed ----


def losses_and_masters(level, compiled):
    x, y = data()
    training = Training(level, init_scale=256.0, window=2)
    step = mx.compile(training.step, training.state, training.state) if compiled else training.step
    losses = []
    for factor in (1.0, 1.0, float("inf"), 1.0):
        losses.append(step(x[:16] * factor, y[:16]))
        mx.eval(losses, training.state)
        training.model.norm.eval()  # its averages take in what the inputs are
    assert amp.state_dict(training.model) == {"loss_scaler0": {"loss_scale": 256.0, "unskipped": 1}}
    return {str(i): loss for i, loss in enumerate(losses)}, arrays(amp.master_params(training.model))


@pytest.mark.parametrize("level", DYNAMIC)
def test_compiled_it_is_the_same_to_the_bit(level):
    """Nothing in the bracket looks at a value: what is compiled cannot."""
    if not compile_mode(NO_FUSE):
        pytest.skip("this mlx has no switch that keeps mx.compile from fusing, after which bits differ")
    for plain, compiled in zip(losses_and_masters(level, False), losses_and_masters(level, True)):
        assert same(plain, compiled)


@pytest.mark.skipif(os.environ.get("AMP_SLOW") != "true", reason="a minute of the C++ compiler: --slow")
@pytest.mark.parametrize("level", DYNAMIC)
def test_compiled_into_kernels_it_is_the_same_but_for_roundings(level):
    compile_mode(ENABLED)
    _, plain = losses_and_masters(level, False)
    _, compiled = losses_and_masters(level, True)
    compile_mode(NO_FUSE)
    for path, value in plain.items():  # three steps of some roundings to fp16 each
        assert mx.allclose(value, compiled[path], rtol=2.0**-8, atol=2.0**-10).item(), path


class Checkpointed(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self._again = nn.utils.checkpoint(layers)
        self.layers = layers.layers

    def __call__(self, x):
        return self._again(x)


def test_a_checkpointed_layer_is_computed_again_with_the_same_casts():
    x, y = data()
    found = []
    for checkpointed in (False, True):
        training = Training("O1")
        if checkpointed:
            training.model.layers = Checkpointed(training.model.layers)
        found.append(arrays(training.gradients(training.model, x[:16], y[:16])))
    assert same(*found)


# ---- the page ----


@pytest.mark.parametrize("level", ["O1", "O2", "O4", "O5"])
def test_the_program_of_the_page(level, capsys):
    page = (pathlib.Path(__file__).parents[3] / "docs" / "start" / "mlx.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    mx.random.seed(0)
    exec(program.replace('"O1"', f'"{level}"'), {})
    loss, state = capsys.readouterr().out.split(maxsplit=1)
    assert float(loss) < 0.5 and "'unskipped'" in state  # from log 2


# ---- looked at ----


def test_check_names_what_is_not_finite():
    x, y = data()
    stuck = Training("O2", max_skips=3)
    for _ in range(3):
        overflowing(stuck, x[:16], y[:16])
    with pytest.raises(libamp.Error, match=r"3 steps in a row .* gradient of conv\.weight"):
        amp.check(stuck.model)
    static = Training("O5")
    overflowing(static, x[:16], y[:16])
    with pytest.raises(libamp.Error, match="static scale of 1"):
        amp.check(static.model)


def test_importing_it_brings_no_torch():
    code = "import sys; from libamp.mlx import amp; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
