# SPDX-License-Identifier: Apache-2.0
"""compress_activations where a model is not a plain one: parts, fused attention, interrupted forwards."""
from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from libamp.torch import amp  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402


def off_by(make, forward, bits=8):
    """How far a model's gradients are from the exact ones."""
    torch.manual_seed(0)
    model = make()

    def gradients():
        model.zero_grad()
        forward(model).float().square().mean().backward()
        return torch.cat([param.grad.flatten() for param in model.parameters()])

    exact = gradients()
    with amp.compress_activations(model, bits, seed=1):
        return ((gradients() - exact).norm() / exact.norm()).item()


class Chunks(torch.nn.Linear):
    def forward(self, x):
        a, b = super().forward(x).unsafe_chunk(2, 1)
        return a.sigmoid_() * b.tanh_()


def test_parts_with_versions_of_their_own():
    x = torch.randn(32, 64)
    assert off_by(lambda: Chunks(64, 128), lambda model: model(x)) < 0.03
    assert off_by(lambda: torch.nn.GRUCell(64, 64), lambda model: model(x)) < 0.03


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(64, 192)
        with torch.no_grad():
            self.qkv.weight.mul_(5)  # logits of a trained model's size

    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 16).permute(2, 0, 3, 1, 4)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def test_fused_attention_has_its_query_and_key():
    x = torch.randn(4, 64, 64)
    assert off_by(Attention, lambda model: model(x), bits=4) < 0.3


def test_an_interrupted_forward_leaves_nothing():
    def interrupt(*args):
        raise KeyboardInterrupt

    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8))
    handle = amp.compress_activations(model, 2, seed=0)
    hook = model[1].register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        model(torch.randn(64, 64))
    hook.remove()
    z = torch.randn(64, 64, requires_grad=True)
    w = z.exp()
    assert torch.equal(torch.autograd.grad(w.sum(), z)[0], w)
    model(torch.randn(64, 64)).sum().backward()
    assert handle.bytes.now < handle.bytes.before
    handle.remove()


@pytest.mark.parametrize("wrong", [
    {"bits": 4.0}, {"bits": None}, {"min_size": -1}, {"min_size": "a"}, {"steps": 1.5}, {"steps": 0}, {"seed": 1.5},
    {"skip": 5}, {"skip": [5]}, {"skip": torch.nn.Linear},
])
def test_wrong_arguments_are_refused_at_once(wrong):
    with pytest.raises((ValueError, TypeError), match=rf"amp.compress_activations: {next(iter(wrong))}"):
        amp.compress_activations(torch.nn.Linear(4, 4), **wrong)


class Squares(torch.autograd.Function):
    """Its backward writes into what it saved."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return x.mul_(2.0).mul_(grad)


def test_a_backward_may_write_into_what_it_saved():
    torch.manual_seed(0)
    model, x = torch.nn.Sequential(torch.nn.Linear(64, 64)), torch.randn(64, 64)
    y = model(x)
    exact = torch.autograd.grad((y * y + y.sin()).sum(), list(model.parameters()))
    model.register_forward_hook(lambda module, args, out: Squares.apply(out) + out.sin())
    with amp.compress_activations(model, 8, seed=1):
        got = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    for a, b in zip(got, exact, strict=True):
        assert (a - b).norm() < 0.02 * b.norm()


class Derives(torch.nn.Module):
    """A model that differentiates forwards by itself, beside a layer that does not."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)

    def forward(self, x):
        with forward_ad.dual_level():
            dual = self.last(torch.tanh(forward_ad.make_dual(x, torch.ones_like(x))))
            return sum(forward_ad.unpack_dual(dual))


def _jvp(model, x):
    return torch.func.jvp(model, (x,), (x.cos(),))


def _dual(model, x):
    """Forwards, and backwards over it."""
    with forward_ad.dual_level():
        value, tangent = forward_ad.unpack_dual(model(forward_ad.make_dual(x, x.cos())))
        return value, tangent, *torch.autograd.grad(tangent.square().sum() + value.sum(), list(model.parameters()))


def _forward_over_vmap(model, x):
    return torch.vmap(lambda row: torch.func.jvp(model, (row,), (row,))[1])(x)


def _jacfwd(model, x):
    return torch.func.jacfwd(model)(x[0])


def _nested(model, x):
    rows = torch.nested.nested_tensor([x[:50], x[:30]], requires_grad=True)
    out = model(rows).to_padded_tensor(0.0)
    return out, *torch.autograd.grad(out.square().sum(), list(model.parameters()))


def _flat(results):
    return results if isinstance(results, (list, tuple)) else [results]


@pytest.mark.parametrize("how", [_jvp, _dual, _forward_over_vmap, _jacfwd, _nested])
def test_forward_mode_and_nested_tensors_are_exact(how):
    torch.manual_seed(2)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
    x = torch.randn(64, 64)
    expected = _flat(how(model, x))
    with amp.compress_activations(model, 2, min_size=0) as handle:
        assert all(map(torch.equal, _flat(how(model, x)), expected))
        model(x).sum().backward()  # and the next forward is packed as ever
        assert handle.bytes.now < 0.6 * handle.bytes.before  # its input stays


def test_forward_mode_inside_a_model():
    torch.manual_seed(2)
    model, x = Derives(), torch.randn(64, 64)

    def gradient():
        return torch.autograd.grad(model(x).square().sum(), model.last.weight)[0]

    expected = gradient()
    with amp.compress_activations(model, 2):
        assert torch.equal(gradient(), expected)
