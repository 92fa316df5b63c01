# SPDX-License-Identifier: Apache-2.0
"""What reads 16 bits and computes in FP32 is what a cast and the op compute; on a GPU test_amp_hardware calls it."""

import itertools

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from libamp.torch.amp.in_fp32 import in_fp32  # noqa: E402

LOW = [torch.float16, torch.bfloat16]
OPS = [
    ("torch.nn.functional", F, "softmax", {"dim": -1}), ("torch.nn.functional", F, "log_softmax", {"dim": 0}),
    ("torch.nn.functional", F, "softmin", {"dim": -1}), ("torch", torch, "softmax", {"dim": 1}),
    ("torch", torch, "log_softmax", {"dim": 1}), ("torch", torch, "sum", {}),
    ("torch:Tensor", torch.Tensor, "sum", {"dim": (0, 1)}), ("torch:Tensor", torch.Tensor, "softmax", {"dim": -1}),
]


def _same(ours, expected, x, y):
    assert ours.dtype == expected.dtype == torch.float32
    assert torch.equal(ours, expected)
    ours.float().pow(2).sum().backward()
    expected.float().pow(2).sum().backward()
    assert x.grad.dtype == x.dtype and torch.equal(x.grad, y.grad)


def _leaves(dtype, *shape):
    x = (3 * torch.randn(*shape)).to(dtype)
    return x.clone().requires_grad_(), x.clone().requires_grad_()


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize(("place", "owner", "name", "given"), OPS, ids=[f"{p}.{n}" for p, _, n, _ in OPS])
def test_an_op_with_a_dtype_is_the_op_of_a_cast(place, owner, name, given, dtype):
    original = getattr(owner, name)
    ours = in_fp32(place, name, original)
    x, y = _leaves(dtype, 5, 33)
    _same(ours(x, **given), original(y.float(), **given), x, y)
    assert torch.equal(ours(x, **given, dtype=torch.float32), original(x, **given, dtype=torch.float32))
    assert ours(x, **given, dtype=torch.float64) is NotImplemented
    if place == "torch":
        assert ours(x, **given, out=torch.empty(0)) is NotImplemented


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_of_classes_is_that_of_a_cast(reduction, dtype):
    ours = in_fp32("torch.nn.functional", "cross_entropy", F.cross_entropy)
    for shape, weighted, ignored in itertools.product([(7,), (6, 7), (2, 7, 3, 4)], [False, True], [-100, 2]):
        torch.manual_seed(len(shape))
        x, y = _leaves(dtype, *shape)
        target = torch.randint(0, 7, shape[:1] + shape[2:] if len(shape) > 1 else ())
        weight = torch.rand(7).to(dtype) if weighted else None
        settings = {"ignore_index": ignored, "reduction": reduction}
        wide = None if weight is None else weight.float()
        mine, expected = ours(x, target, weight, **settings), F.cross_entropy(y.float(), target, wide, **settings)
        if not expected.isnan().any():
            _same(mine, expected, x, y)
        else:  # all classes were ignored
            assert torch.equal(mine.isnan(), expected.isnan())


def test_what_needs_the_cast_says_so():
    ours = in_fp32("torch.nn.functional", "cross_entropy", F.cross_entropy)
    x, target = torch.randn(4, 7).half(), torch.randint(0, 7, (4,))
    assert ours(x, torch.rand(4, 7)) is NotImplemented
    assert ours(x, target, label_smoothing=0.1) is NotImplemented
    assert ours(x, target, None, False) is NotImplemented
    assert ours(x[0, 0], target) is NotImplemented
    assert ours(x[0, :1], target[:1]) is NotImplemented  # of as many: probabilities, says torch
    assert ours(x, target, label_smoothing=None) is NotImplemented
    assert ours(x, target, torch.ones(7, dtype=torch.int64)) is NotImplemented
    assert ours(x, None) is NotImplemented and ours(x, [0, 1, 2, 3]) is NotImplemented
    assert in_fp32("torch", "softmax", torch.softmax)(x, 1, torch.float16) is NotImplemented
    assert in_fp32("torch", "norm", torch.norm) is None
    assert in_fp32("torch", "cumsum", torch.cumsum) is None and in_fp32("torch", "prod", torch.prod) is None
