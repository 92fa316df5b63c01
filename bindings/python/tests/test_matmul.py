# SPDX-License-Identifier: Apache-2.0
"""libamp.kernels.matmul against NumPy in double."""
import libamp
import numpy as np
import pytest
from libamp import kernels


def sample(*shape, dtype=np.float32, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def near(got, want, rtol=1e-5):
    np.testing.assert_allclose(got.astype(float), want, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_product_with_everything(dtype):
    a, b, c, bias = sample(5, 7, dtype=dtype), sample(7, 3, dtype=dtype), sample(5, 3), sample(3)
    d = np.zeros((5, 3), np.float32)
    kernels.matmul(d, a, b, c=c, bias=bias, alpha=0.5, beta=2.0, activation="relu")
    near(d, np.maximum(0.5 * (a.astype(float) @ b.astype(float)) + 2.0 * c + bias, 0))


def test_transposed_views_and_flags_are_the_same():
    a, b = sample(7, 5), sample(3, 7)
    want = a.T.astype(float) @ b.T.astype(float)
    for how in ({}, {"transpose_a": True}, {"transpose_b": True}, {"transpose_a": True, "transpose_b": True}):
        d = np.zeros((5, 3), np.float32)
        kernels.matmul(d, a if "transpose_a" in how else a.T, b if "transpose_b" in how else b.T, **how)
        near(d, want)


def test_parts_of_larger_matrices():
    big, d = sample(20, 30), np.zeros((9, 12), np.float32)
    a, b, part = big[2:6, 3:10], big[8:15, 11:16], d[1:5, 2:7]
    kernels.matmul(part, a, b)
    near(part, a.astype(float) @ b.astype(float))
    assert not d[0].any() and not d[5:].any() and not d[:, :2].any() and not d[:, 7:].any()


def test_a_product_is_not_written_over_its_factors():
    big = sample(64, 192)
    one, two, three = big[:, :64], big[:, 64:128], big[:, 128:]
    want = one.astype(float) @ two.astype(float)
    kernels.matmul(three, one, two)  # side by side in one matrix
    near(three, want, 1e-4)
    before = big.copy()
    bad = [
        (one, one, two, "a"),
        (one, two, one, "b"),
        (two, big[:, 60:124], one, "a"),
        (one, two.T, big[:, 10:74], "b"),
        (big[1:, :64], one[:63], two, "a"),
    ]
    for d, a, b, name in bad:
        with pytest.raises(libamp.ArgumentError, match=f"d: shares memory with {name}"):
            kernels.matmul(d, a, b)
    stack = sample(2, 3, 3)
    with pytest.raises(libamp.ArgumentError, match="d: shares memory with b"):
        kernels.matmul(stack, sample(2, 3, 3), stack)
    d, bias = np.zeros((5, 4), np.float32), sample(5)
    with pytest.raises(libamp.ArgumentError, match="d: shares memory with bias"):
        kernels.matmul(d, sample(5, 3), sample(3, 4), bias=d[2])
    kernels.matmul(d[:0], bias.reshape(5, 1)[:0], d[:1])  # of nothing, nothing is written
    assert (big == before).all()


@pytest.mark.parametrize("stacks", [(4, 4), (4, 1), (1, 4), (4, None), (None, 4)])
def test_stacks(stacks):
    a = sample(*([stacks[0]] if stacks[0] else []), 2, 3)
    b = sample(*([stacks[1]] if stacks[1] else []), 3, 5, seed=2)
    d = np.zeros((4, 2, 5), np.float32)
    kernels.matmul(d, a, b)
    near(d, a.astype(float) @ b.astype(float))


def test_nothing_to_sum_and_nothing_to_write():
    d = sample(2, 3)
    kernels.matmul(d, np.zeros((2, 0), np.float32), np.zeros((0, 3), np.float32))
    assert not d.any()
    kernels.matmul(np.zeros((0, 3), np.float32), sample(0, 4), sample(4, 3))
    whole = np.ones((2, 2, 2), np.float32)
    kernels.matmul(whole[:0], sample(2, 2), sample(0, 2, 2))
    assert whole.all()


@pytest.mark.parametrize(
    ("d", "a", "b", "more", "words"),
    [
        (sample(2, 2), sample(2, 3), sample(2, 2), {}, "b: has 2 rows, and a 3 columns"),
        (sample(2, 3), sample(2, 3), sample(3, 2), {}, "d: must be 2 x 2"),
        (sample(4), sample(2, 2), sample(2, 2), {}, "d: has 1 dimension: "),
        (sample(2, 2).T, sample(2, 2), sample(2, 2), {}, "d: must have rows"),
        (sample(2, 2), sample(4, 4)[::2, ::2], sample(2, 2), {}, "a: has neither rows"),
        (sample(2, 2), sample(2, 2)[::-1], sample(2, 2), {}, "a: has neither rows"),
        (sample(2, 2), sample(2, 2), sample(2, 2), {"bias": sample(3)}, "bias: must be a contiguous vector of 2"),
        (sample(2, 2), sample(2, 2), sample(2, 2), {"c": sample(2, 3), "beta": 1.0}, "c: must be 2 x 2"),
        (sample(2, 2), sample(2, 2).astype(float), sample(2, 2), {}, "a: has a type"),
        (sample(2, 2), sample(2, 2), sample(2, 2), {"activation": "tanh"}, "activation: there is no 'tanh'"),
        (sample(3, 2, 2), sample(0, 2, 2), sample(2, 2), {}, "a: must be 2 x 2, as many as d has"),
        (sample(3, 2, 2), sample(2, 2, 2), sample(2, 2), {}, "a: must be 2 x 2, as many as d has"),
    ],
)
def test_what_is_refused_is_named(d, a, b, more, words):
    before = d.copy()
    with pytest.raises(libamp.ArgumentError, match=words):
        kernels.matmul(d, a, b, **more)
    assert d.tobytes() == before.tobytes()


def test_torch_linear_with_gelu():
    torch = pytest.importorskip("torch")
    x, w, bias = torch.randn(6, 8), torch.randn(4, 8, requires_grad=True), torch.randn(4)
    d = torch.zeros(6, 4)
    version = d._version
    kernels.matmul(d, x, w.t(), bias=bias, activation="gelu")
    torch.testing.assert_close(d, torch.nn.functional.gelu(torch.nn.functional.linear(x, w.detach(), bias)))
    assert d._version > version


def test_products_on_a_gpu():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    x, w, bias = torch.randn(64, 32).half(), torch.randn(48, 32).half(), torch.randn(48)
    want = torch.nn.functional.gelu(x.float() @ w.float().t() + bias)
    d = torch.zeros(64, 48, device="cuda")
    kernels.matmul(d, x.cuda(), w.cuda().t(), bias=bias.cuda(), activation="gelu")
    torch.testing.assert_close(d.cpu(), want, rtol=1e-3, atol=1e-3)
    with pytest.raises(libamp.ArgumentError, match="a: is on another device than d"):
        kernels.matmul(d, x, w.cuda().t())
