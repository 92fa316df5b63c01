# SPDX-License-Identifier: Apache-2.0
"""libamp.kernels over lists, against NumPy's bits."""
import libamp
import numpy as np
import pytest
from libamp import kernels

DTYPES = [np.float16, np.float32, np.float64]


def sample(*shape, dtype=np.float32, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("to", DTYPES)
@pytest.mark.parametrize("of", DTYPES)
def test_cast_has_numpys_bits(of, to):
    source = [sample(*shape, dtype=of) for shape in [(1000,), (3, 5), (), (0, 4)]]
    target = [np.full(x.shape, 7, dtype=to) for x in source]
    assert kernels.cast(target, source) is None
    for got, x in zip(target, source, strict=True):
        assert got.tobytes() == x.astype(to).tobytes()


def test_copy_zero_and_one_tensor_instead_of_a_list():
    x = sample(10)
    y = np.zeros_like(x)
    kernels.copy(y, x)
    assert y.tobytes() == x.tobytes()
    kernels.zero(y)
    assert not y.any()
    with pytest.raises(libamp.ArgumentError, match=r"dst\[0\] is fp16"):
        kernels.copy(np.zeros(10, np.float16), x)


def test_scale_says_whether_something_overflowed():
    x = sample(50)
    y = np.zeros(50, np.float16)
    assert kernels.scale(y, x, 4.0) is False
    assert y.tobytes() == (x * np.float32(4)).astype(np.float16).tobytes()
    assert kernels.scale(y, x, 1e6) is True
    found = np.zeros(1, np.float32)
    assert kernels.scale(y, x, 1e6, found_inf=found) is None
    assert found[0] == 1.0
    assert kernels.scale(y, x, 1.0, found_inf=found) is None
    assert found[0] == 1.0, "a flag is raised, never lowered"


def test_axpby_rounds_each_operation():
    x, y, d = sample(99, seed=2), sample(99, seed=3), np.zeros(99, np.float32)
    assert kernels.axpby(d, 0.3, x, -1.7, y) is False
    assert d.tobytes() == (np.float32(0.3) * x + np.float32(-1.7) * y).tobytes()


def test_norms():
    xs = [sample(1000), sample(3, 4, dtype=np.float16), sample(0)]
    each = [float(np.float32(np.sqrt(np.sum(x.astype(np.float64) ** 2)))) for x in xs]
    norm, norms = kernels.l2norms(xs)
    assert norms == pytest.approx(each, rel=1e-7)
    assert norm == pytest.approx(np.sqrt(np.sum(np.square(each))), rel=1e-6) and norm == kernels.l2norm(xs)
    assert kernels.check(xs, 0.5) == (pytest.approx(norm / 2, rel=1e-6), False)
    xs[1][2, 1] = np.nan
    assert kernels.check(xs)[1] is True
    assert kernels.first_nonfinite(xs) == 1 and kernels.first_nonfinite(xs[:1]) == -1


def test_clip():
    xs = [sample(100), sample(7)]
    before = kernels.l2norm(xs)
    assert kernels.clip_norm(xs, xs, before / 3) == before
    assert kernels.l2norm(xs) == pytest.approx(before / 3, rel=1e-5)
    kernels.clip_value(xs, xs, 0.01)
    assert max(np.abs(x).max() for x in xs) == np.float32(0.01)


def test_adamw_follows_the_paper():
    p, g, m, v = sample(20), sample(20, seed=9), np.zeros(20, np.float32), np.zeros(20, np.float32)
    want, steps = p.astype(np.float64), [0]

    def step(**more):
        return kernels.optimizer_step("adamw", [p], [g], {"exp_avg": [m], "exp_avg_sq": [v]}, steps=steps, lr=0.1,
                                      weight_decay=0.01, **more)

    for t in range(1, 4):
        assert step() is True
        mean, square = (1 - 0.9**t) * g.astype(float), (1 - 0.999**t) * g.astype(float) ** 2
        want -= 0.1 * ((mean / (1 - 0.9**t)) / (np.sqrt(square / (1 - 0.999**t)) + 1e-8) + 0.01 * want)
    assert steps == [3]
    np.testing.assert_allclose(p, want, rtol=1e-5)
    before = p.copy()
    assert step(found_inf=1.0) is False
    assert steps == [3] and p.tobytes() == before.tobytes()
