# SPDX-License-Identifier: Apache-2.0
"""libamp.kernels.statistics against NumPy: counts, binades, and what a cast loses."""

import collections
import math

import pytest

np = pytest.importorskip("numpy")

import libamp  # noqa: E402
from libamp import kernels  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered")  # signalling NaN, in NumPy's casts
FLOATS = [np.float16, np.float32, np.float64]


def patterns(dtype, n=200_000):
    """All of fp16; of others random bits, infinities, NaN and subnormals among them."""
    if dtype == np.float16:
        return np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 1 << 32, n, dtype=np.uint64)
    if dtype == np.float64:  # of fp32's range: below and above are no binades
        return bits.astype(np.uint32).view(np.float32).astype(np.float64)
    return np.concatenate([bits.astype(np.uint32), rng.integers(0, 1 << 23, n, dtype=np.uint32)]).view(np.float32)


def finite(x):
    x = abs(x.astype(np.float64))
    return x[np.isfinite(x) & (x != 0)]


@pytest.mark.parametrize("dtype", FLOATS)
def test_counts_are_numpys(dtype):
    x = patterns(dtype)
    found = kernels.statistics(x)
    assert found.elements == x.size
    assert found.zeros == (x == 0).sum()
    assert found.nans == np.isnan(x).sum()
    assert found.plus_infinities == (x == np.inf).sum()
    assert found.minus_infinities == (x == -np.inf).sum()
    assert found.largest == finite(x).max()
    assert found.least == finite(x).min()
    assert found.binades == collections.Counter((np.frexp(finite(x))[1] - 1).tolist())


@pytest.mark.parametrize("dtype", FLOATS)
def test_sums(dtype):
    x = np.random.default_rng(2).standard_normal(100_003).astype(dtype)
    found = kernels.statistics(x)
    exact = x.astype(np.float64)
    off = 1e-12 if dtype == np.float64 else 5 * 2.0**-24 + 1e-12  # docs/reference/numerics.md
    assert abs(found.sum - math.fsum(exact.tolist())) <= off * abs(exact).sum()
    assert math.isclose(found.sum_squares, math.fsum((exact**2).tolist()), rel_tol=off)


@pytest.mark.parametrize("exponent", [-30, -8, 0, 1, 16, 24, 100])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_losses_are_those_of_a_cast(dtype, exponent):
    x = patterns(dtype)
    scaled = np.ldexp(x.astype(np.float64), exponent)
    with np.errstate(over="ignore"):
        cast = scaled.astype(np.float16)
    lost = kernels.statistics(x).lost("float16", 2.0**exponent)
    numbers = np.isfinite(x) & (x != 0)
    assert lost.zeros == (numbers & (cast == 0)).sum()
    assert lost.infinities == (numbers & np.isinf(cast)).sum()
    assert lost.subnormals == (numbers & (cast != 0) & (abs(scaled) < 2.0**-14)).sum()


def test_bf16_keeps_the_range():
    lost = kernels.statistics(patterns(np.float32)).lost("bfloat16")
    assert lost.infinities > 0  # what rounds up to 2^128
    x = np.array([1e-8, 1e30, 65536], np.float32)
    assert kernels.statistics(x).lost("bfloat16") == (0, 0, 0)
    assert kernels.statistics(x).lost("float16") == (1, 0, 2)


def test_a_list_is_counted_together():
    xs = [np.ones(3, np.float32), np.full(2, 4, np.float16), np.zeros(0, np.float32)]
    found = kernels.statistics(xs)
    assert (found.elements, found.sum, found.largest, found.binades) == (5, 11.0, 4.0, {0: 3, 2: 2})
    assert kernels.statistics([]).elements == 0
    assert kernels.statistics(np.zeros(0, np.float32)).largest == 0.0


def test_torch_types_are_names_too():
    torch = pytest.importorskip("torch")
    x = torch.tensor([1e-8, 1.0], dtype=torch.float32)
    assert kernels.statistics(x).lost(torch.float16).zeros == 1
    assert kernels.statistics(x.bfloat16()).binades == {-27: 1, 0: 1}


def test_what_cannot_be():
    found = kernels.statistics(np.ones(3, np.float32))
    with pytest.raises(libamp.ArgumentError):
        found.lost("float32")
    with pytest.raises(libamp.ArgumentError):
        found.lost("float16", 3.0)
    with pytest.raises(libamp.ArgumentError, match="src"):
        kernels.statistics(np.ones(3, np.int32))
    with pytest.raises(ValueError, match="bytes"):
        found._replace(memory=b"").lost("float16")
