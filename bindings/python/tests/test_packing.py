# SPDX-License-Identifier: Apache-2.0
"""libamp.kernels.pack and unpack, beside amp_pack.h's format in plain torch (packing.py)."""

import pytest

torch = pytest.importorskip("torch")

import packing  # noqa: E402
from libamp import kernels  # noqa: E402

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def packed(x, bits, seed=0):
    codes = torch.empty(kernels.packed_bytes(x.numel(), bits), dtype=torch.uint8)
    return codes, kernels.pack(codes, x, bits, seed)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bits", [8, 4, 2])
def test_roundtrip_is_the_formats(bits, dtype):
    random = torch.Generator().manual_seed(bits)
    x = torch.randn(1000, generator=random).to(dtype)
    for values in (x, x.relu(), x * 0, torch.full_like(x, 3.0), x.abs() + 1, x[:1]):
        codes, found = packed(values, bits, 7)
        assert found == (False, False)
        out = torch.empty_like(values)
        kernels.unpack(out, codes, bits)
        assert torch.equal(out, packing.roundtrip(values, bits, 7))


def test_the_mean_of_roundings_is_the_value():
    """Each is off by less than a step s and deviates by s / 2 at most: the mean of n by s / (2 sqrt(n)), times six."""
    x = torch.randn(256, generator=torch.Generator().manual_seed(1))
    step, total, n = (x.max() - x.min()).item() / 3 * 1.02, torch.zeros(256), 2000
    for seed in range(n):
        codes, _ = packed(x, 2, seed * 7919)
        out = torch.empty_like(x)
        kernels.unpack(out, codes, 2)
        assert (out - x).abs().max() < step
        total += out
    assert (total / n - x).abs().max() < step * (3 / n**0.5 + 2**-17)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_masks_are_exact_in_one_bit(dtype):
    mask = (torch.rand(3000, generator=torch.Generator().manual_seed(0)) < 0.3).to(dtype) / 0.7
    codes, found = packed(mask, 1)
    out = torch.empty_like(mask)
    kernels.unpack(out, codes, 1)
    assert found == (False, False) and torch.equal(out, mask)
    assert packed(mask * torch.arange(3000).to(dtype), 1)[1] == (False, True)


def test_what_is_not_finite_is_told():
    x = torch.ones(600)
    x[300] = torch.inf
    assert packed(x, 4)[1] == (True, False)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda x, p: kernels.pack(p, x, 3, 0), "bits"),
        (lambda x, p: kernels.pack(p[:5], x, 4, 0), "packed"),
        (lambda x, p: kernels.pack(p, x.double(), 4, 0), "src"),
        (lambda x, p: kernels.pack(p, torch.ones(8, 8)[:, ::2], 4, 0), "gaps"),
        (lambda x, p: kernels.unpack(x, p[:5], 4), "packed"),
        (lambda x, p: kernels.unpack(x.int(), p, 4), "dst"),
    ],
)
def test_arguments_that_are_wrong(call, words):
    with pytest.raises(ValueError, match=words):
        call(torch.ones(300), torch.zeros(600, dtype=torch.uint8))


@pytest.mark.parametrize("bits", [2**32 + 4, -(2**32) + 4])
def test_bits_are_not_cut(bits):
    src, packed = torch.zeros(256), torch.zeros(132, dtype=torch.uint8)
    with pytest.raises(ValueError):
        kernels.pack(packed, src, bits, 0)
    with pytest.raises(ValueError):
        kernels.unpack(src, packed, bits)
