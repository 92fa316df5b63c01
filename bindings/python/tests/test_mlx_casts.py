# SPDX-License-Identifier: Apache-2.0
"""libamp.mlx: what is cast while a model runs, and what is refused."""
import copy
import pickle

import libamp
import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed")
import mlx.nn as nn  # noqa: E402
import mlx.optimizers as optim  # noqa: E402
from libamp.mlx import amp  # noqa: E402
from mlx.core import matmul as imported  # noqa: E402 - as scripts do
from mlxnet import Net, data, dtypes, ends, loss_fn, unfused  # noqa: E402, F401


class Probe(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.weight, self._fn = mx.ones((4, 4)), fn

    def __call__(self, x):
        return self._fn(x, self.weight)


@pytest.mark.parametrize(
    ("fn", "fp16", "bf16"),
    [
        (lambda x, w: x @ w, "float16", "bfloat16"),
        (lambda x, w: imported(x, w), "float16", "bfloat16"),
        (lambda x, w: mx.addmm(x, x, w), "float16", "bfloat16"),
        (lambda x, w: mx.einsum("ij,jk->ik", x, w), "float16", "bfloat16"),
        (lambda x, w: nn.relu(x @ w), "float16", "bfloat16"),
        (lambda x, w: mx.exp(x @ w), "float32", "float32"),
        (lambda x, w: (x @ w).sum(), "float32", "float32"),
        (lambda x, w: mx.mean(x @ w), "float32", "float32"),
        (lambda x, w: (x @ w) ** 2, "float32", "float32"),
        (lambda x, w: nn.gelu(x @ w), "float32", "float32"),
        (lambda x, w: nn.ReLU2()(x @ w), "float32", "float32"),
        (lambda x, w: mx.fast.layer_norm(x @ w, None, None, 1e-5), "float32", "float32"),
        (lambda x, w: mx.linalg.norm(x @ w), "float32", "float32"),
        (lambda x, w: nn.losses.mse_loss(x @ w, w), "float32", "float32"),
        (lambda x, w: nn.losses.binary_cross_entropy(x @ w, w), "float32", "float32"),
        (lambda x, w: (x @ w) + w, "float32", "float32"),  # promoted by MLX itself
        (lambda x, w: amp.half_function(lambda a: mx.exp(a))(x), "float16", "bfloat16"),  # no casts inside
        (lambda x, w: amp.float_function(lambda a: a)(x @ w), "float32", "float32"),
    ],
)
def test_functions_are_cast_by_the_lists(fn, fp16, bf16):
    x, model = mx.ones((4, 4)), Probe(fn)
    untouched = model(x).dtype
    for level, wanted in (("O1", fp16), ("O4", bf16)):
        amp.initialize(model, opt_level=level)
        assert str(model(x).dtype).endswith(wanted)
        with amp.disable_casts():
            assert fn(x, model.weight).dtype == untouched
        assert fn(x, model.weight).dtype == untouched  # outside of model and gradient nothing is cast
        amp.shutdown(model)


def test_a_banned_function_says_what_to_do():
    model = amp.initialize(Probe(lambda x, w: nn.losses.binary_cross_entropy(x @ w, w, None, False)), opt_level="O1")
    with pytest.raises(NotImplementedError, match="register_float_function"):
        model(mx.ones((4, 4)))
    amp.shutdown()
    amp.register_float_function(nn.losses, "binary_cross_entropy")
    amp.initialize(model, opt_level="O1")
    assert model(mx.ones((4, 4))).dtype == mx.float32


def test_each_model_has_its_own_level_and_none_where_casts_are_disabled():
    inner = amp.initialize(Probe(lambda x, w: x @ w), opt_level="O4")
    outer = amp.initialize(Probe(lambda x, w: inner(x @ w)), opt_level="O1")
    assert outer(mx.ones((4, 4))).dtype == mx.bfloat16
    with amp.disable_casts():
        assert outer(mx.ones((4, 4))).dtype == mx.float32
    amp.shutdown(inner)
    assert outer(mx.ones((4, 4))).dtype == mx.float16


@pytest.mark.parametrize("level", ["O1", "O2", "O5"])
def test_a_transformer_with_a_mask_in_fp32_trains(level):
    model, optimizer = nn.TransformerEncoder(1, 8, 2, 16), optim.AdamW(1e-2)
    x, mask = mx.random.normal((2, 4, 8)), nn.MultiHeadAttention.create_additive_causal_mask(4)
    amp.initialize(model, optimizer, level)
    step = amp.value_and_grad(model, lambda x: (model(x, mask) - 1).square().mean())
    losses = []
    for _ in range(12):
        loss, grads = step(x)
        optimizer.update(model, grads)
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


def test_a_model_in_bfloat16_keeps_that_disabled_and_after_shutdown():
    model, optimizer = Net(), optim.SGD(0.1)
    model.set_dtype(mx.bfloat16)
    amp.initialize(model, optimizer, "O2", enabled=False)
    x, y = data()
    _, grads = amp.value_and_grad(model, loss_fn)(model, x[:4], y[:4])
    optimizer.update(model, grads)
    assert dtypes(model.trainable_parameters()) == {mx.bfloat16}
    amp.shutdown()
    amp.initialize(model, optimizer, "O2")
    assert dtypes(model.layers) == {mx.float16}
    amp.shutdown()
    assert dtypes(model.trainable_parameters()) == {mx.bfloat16}


def test_elu_of_large_values_has_gradients_at_o1():
    model = Probe(lambda x, w: nn.elu(100 * (x @ w)).mean())  # mlx's elu forms exp(400)
    optimizer = optim.SGD(0.1)
    amp.initialize(model, optimizer, "O1", init_scale=1.0)
    value, grads = amp.value_and_grad(model, lambda: model(mx.ones((4, 4)) / 8))()
    assert value.item() == 50.0 and mx.isfinite(grads["weight"]).all().item()


# ---- mistakes ----


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_are_plain_modules(copied):
    model = Net()
    amp.initialize(model, optim.SGD(0.1), "O2")
    twin = copied(model)
    assert type(twin) is Net and type(twin.norm) is nn.BatchNorm and dtypes(twin) == dtypes(model)
    x = data()[0][:8].astype(mx.float16)
    before = mx.array(model.norm.running_mean)
    assert twin(x).shape == (8, 10)
    assert (model.norm.running_mean == before).all().item() and not (twin.norm.running_mean == before).all().item()


def test_mistakes_are_told():
    model, optimizer = Net(), optim.SGD(0.1)
    wrong = libamp.ArgumentError
    with pytest.raises(wrong, match="O1"):
        amp.initialize(model, optimizer, "01")
    with pytest.raises(wrong, match="no trainable floating parameter"):
        amp.initialize(nn.ReLU(), optimizer)
    with pytest.raises(wrong, match="wants optimizers of"):
        amp.initialize(model, object())
    with pytest.raises(wrong, match="wants a model of"):
        amp.initialize(lambda x: x, optimizer)
    with pytest.raises(ValueError, match="no setting 'loss_scal'"):
        amp.initialize(model, optimizer, loss_scal=1.0)
    with pytest.raises(wrong, match="growth is"):
        amp.initialize(model, optimizer, growth=1.1)
    with pytest.raises(wrong, match="deepspeed"):
        amp.initialize(model, optimizer, scaler="deepspeed")
    with pytest.raises(wrong, match="was not given to"):
        amp.value_and_grad(model, loss_fn)
    half = Net()
    half.set_dtype(mx.float16)
    with pytest.raises(wrong, match="set_dtype"):
        amp.initialize(half, optimizer, "O1")
    amp.initialize(model, optimizer)
    for again in ((model, optim.SGD(0.1)), (Net(), optimizer)):
        with pytest.raises(wrong, match="already"):
            amp.initialize(*again)
    with pytest.raises(wrong, match="a Net that was not given to"):
        amp.value_and_grad(copy.deepcopy(model), loss_fn)
    x, y = data()
    _, grads = nn.value_and_grad(model, loss_fn)(model, x[:4], y[:4])
    with pytest.raises(libamp.Error, match="instead of nn"):
        optimizer.update(model, grads)
    with pytest.raises(wrong, match="another model"):
        optimizer.update(Net(), grads)
    gradients = amp.value_and_grad(model, loss_fn)
    amp.shutdown()
    with pytest.raises(libamp.Error, match="has ended"):
        gradients(model, x[:4], y[:4])
