# SPDX-License-Identifier: Apache-2.0
"""amp_pack.h's format in plain torch, slowly: what libamp's kernels are compared with, bit for bit."""

import torch

GROUP, MASK32, MASK64 = 256, 0xFFFFFFFF, (1 << 64) - 1
LANE, ROW = torch.arange(256) % 16, torch.arange(256) // 16


def _random(seed, group, bits):
    """16 - bits bits for each element of a group, as int64: a progression of 32-bit words for each lane."""
    z = (seed + (group + 1) * 0x9E3779B97F4A7C15) & MASK64
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK64
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK64
    z ^= z >> 31
    x = (torch.arange(32) * 0x9E3779B9 + (z & MASK32)) & MASK32
    x = ((x ^ x >> 16) * 0x21F0AAAD) & MASK32
    x ^= x >> 15
    x = ((x ^ z >> 32) * 0x735A2D97) & MASK32
    x ^= x >> 15
    rows = 16 // bits
    half = ROW // rows
    words = (x[LANE] + (half // 2 * rows + ROW % rows) * x[16 + LANE]) & MASK32
    return torch.where(half % 2 == 1, words >> 16, words & 0xFFFF) >> bits


def _up(value):
    """A float32 >= 0, rounded up to bfloat16."""
    return ((value.view(torch.int32) + 0xFFFF) & -0x10000).view(torch.float32)


def _down(value):
    """A float32, rounded to bfloat16 toward minus infinity."""
    low = (value.view(torch.int32) & -0x10000).view(torch.float32)
    return torch.where(low > value, ((value.view(torch.int32) + 0xFFFF) & -0x10000).view(torch.float32), low)


def _one(x, bits, random):
    """Codes of a whole group, its least and its step (float32; below 0: zeros are kept)."""
    f = torch.tensor
    if not x.isfinite().all():
        return torch.zeros(256, dtype=torch.int64), f(0.0), f(float("nan"))
    zeros = bool(x.min() == 0)
    most = 2**bits - (2 if zeros else 1)
    least = f(0.0) if zeros else _down(x.min())
    spread = x.max() - least
    if spread == 0:
        return torch.zeros(256, dtype=torch.int64), least, f(-0.0 if zeros else 0.0)
    step = torch.maximum(_up(spread / most), f(2.0**-110))
    scaled = ((x - least) * (2 ** (16 - bits) / step)).round().long()
    codes = (scaled + random) >> (16 - bits)
    return (torch.where(x > 0, codes + 1, 0), least, -step) if zeros else (codes, least, step)


def roundtrip(x, bits, seed):
    """What comes back of a float tensor whose ranges are not huge, in its order of memory."""
    flat = x.flatten().float()
    out = torch.empty_like(flat)
    tiny = torch.finfo(torch.float16 if x.dtype is torch.float16 else torch.float32).tiny
    for group, part in enumerate(flat.split(GROUP)):
        whole = torch.cat([part, part[-1:].expand(GROUP - len(part))])
        codes, least, step = _one(whole, bits, _random(seed, group, bits))
        if torch.signbit(step):
            values = torch.where(codes > 0, ((codes - 1).float() * -step).clamp(min=tiny), 0.0)
        else:
            values = least + codes.float() * step
        out[group * GROUP : group * GROUP + len(part)] = values[: len(part)]
    return out.to(x.dtype).view(x.shape)
