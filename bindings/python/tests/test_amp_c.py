# SPDX-License-Identifier: Apache-2.0
"""amp_C's functions as Apex's callers call them, through multi_tensor_applier."""

import itertools
import struct

import pytest
import torch
from libamp.torch import amp_C, apex_C
from libamp.torch import optimizers as fused
from libamp.torch.multi_tensor_apply import MultiTensorApply, multi_tensor_applier
from torch import nn

TYPES = [torch.float32, torch.float16, torch.bfloat16]
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")),
]
SIZES = [(777, 555), (4096, 1025), (1, 1), (33, 0), (5, 70001)]


def flag(device="cpu", value=0):
    return torch.tensor([value], dtype=torch.int32, device=device)


def test_the_applier_hands_everything_on():
    assert multi_tensor_applier.available and MultiTensorApply.import_err is None
    assert multi_tensor_applier.chunk_size == 65536
    seen = MultiTensorApply(7)(lambda *args: args, "flag", [[1]], 2, 3)
    assert seen == (7, "flag", [[1]], 2, 3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("a", "b"), SIZES)
@pytest.mark.parametrize(("source", "target"), list(itertools.product(TYPES, TYPES)))
def test_scale(source, target, a, b, device):
    for tensors in ([a, b] * 3, [b, a]):
        x = [torch.full((n,), 4.0, dtype=source, device=device) for n in tensors]
        out = [torch.full((n,), 99.0, dtype=target, device=device) for n in tensors]
        overflow = flag(device)
        multi_tensor_applier(amp_C.multi_tensor_scale, overflow, [x, out], 1.0 / 8)
        assert overflow.item() == 0
        assert all(bool((t == 0.5).all()) and t.dtype == target for t in out)
        for bad in (float("nan"), float("inf")):
            last = next(t for t in reversed(x) if t.numel())
            last[-1] = bad
            overflow = flag(device)
            multi_tensor_applier(amp_C.multi_tensor_scale, overflow, [x, out], 0.5)
            assert overflow.item() == 1
            last[-1] = 4.0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("x_type", "y_type", "out_type"), list(itertools.product(TYPES, TYPES, TYPES)))
def test_axpby(x_type, y_type, out_type, device):
    x = [torch.full((n,), 4.0, dtype=x_type, device=device) for n in (600, 0, 33)]
    y = [torch.full((n,), 16.0, dtype=y_type, device=device) for n in (600, 0, 33)]
    out = [torch.zeros(n, dtype=out_type, device=device) for n in (600, 0, 33)]
    overflow = flag(device)
    multi_tensor_applier(amp_C.multi_tensor_axpby, overflow, [x, y, out], 2.0, 0.5, -1)
    assert overflow.item() == 0 and all(bool((t == 16.0).all()) for t in out)
    for which, tensors in ((0, x), (1, y)):
        tensors[2][5] = float("inf")
        for check in (-1, 0, 1):
            overflow = flag(device)
            multi_tensor_applier(amp_C.multi_tensor_axpby, overflow, [x, y, out], 2.0, 0.5, check)
            assert overflow.item() == (check in (-1, which))
        tensors[2][5] = 4.0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("per_tensor", [False, True])
def test_norms(dtype, per_tensor, device):
    """In FP32: one rounding of a double, and one of the conversion of the reference."""
    torch.manual_seed(3)
    x = [torch.randn(n, device=device).to(dtype) for n in (777, 0, 65537)]
    wanted = torch.stack([t.double().norm() for t in x])
    scaled = [torch.empty_like(t) for t in x]
    inv_scale = torch.tensor([0.25], device=device)
    calls = [
        (amp_C.multi_tensor_l2norm, [x], (per_tensor,), 1.0),
        (amp_C.multi_tensor_l2norm_mp, [x], (per_tensor,), 1.0),
        (amp_C.multi_tensor_unscale_l2norm, [x], (inv_scale, per_tensor), 0.25),
        (amp_C.multi_tensor_l2norm_scale, [x, scaled], (0.5, per_tensor), 1.0),
    ]
    for op, lists, args, factor in calls:
        overflow = flag(device)
        norm, norms = multi_tensor_applier(op, overflow, lists, *args)
        assert overflow.item() == 0 and norm.shape == (1,) and norm.device == x[0].device
        torch.testing.assert_close(norm[0].double(), wanted.norm() * factor, rtol=2e-7, atol=0)
        assert norms.shape == ((3,) if per_tensor else (0,))
        if per_tensor:
            torch.testing.assert_close(norms.double(), wanted * factor, rtol=2e-7, atol=0)
        x[2][9] = float("nan")
        multi_tensor_applier(op, overflow, lists, *args)
        assert overflow.item() == 1
        x[2][9] = 0.0
        wanted = torch.stack([t.double().norm() for t in x])
    assert all(torch.equal(s, t * 0.5) for s, t in zip(scaled[:1], x[:1], strict=True))


def test_the_squares_of_large_numbers_do_not_overflow():
    overflow = flag()
    norm, _ = multi_tensor_applier(amp_C.multi_tensor_l2norm, overflow, [[torch.full((4,), 1e30)]], False)
    assert overflow.item() == 0 and float(norm) == pytest.approx(2e30, rel=1e-6)


def test_a_result_that_overflows_sets_the_flag():
    overflow, out = flag(), [torch.zeros(3, dtype=torch.float16)]
    multi_tensor_applier(amp_C.multi_tensor_scale, overflow, [[torch.full((3,), 1e5)], out], 1.0)
    assert overflow.item() == 1 and bool(torch.isinf(out[0]).all())


def test_lists_that_mix_types_and_layouts_and_have_empty_tensors_at_their_end():
    x = [
        torch.ones(n).to(t)
        for n, t in ((3, torch.float16), (5, torch.float32), (2, torch.bfloat16), (0, torch.float16))
    ]
    x.append(torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last))
    x.append(torch.ones(0))
    out = [torch.zeros_like(t, dtype=torch.float32) for t in x]
    multi_tensor_applier(amp_C.multi_tensor_scale, flag(), [x, out], 3.0)
    assert all(bool((t == 3).all()) for t in out)


def test_errors():
    one, two = [torch.ones(2)], [torch.ones(2), torch.ones(2)]
    for op, lists, args in (
        (amp_C.multi_tensor_scale, [one], (1.0,)),
        (amp_C.multi_tensor_scale, [one, two], (1.0,)),
        (amp_C.multi_tensor_scale, [[], []], (1.0,)),
        (amp_C.multi_tensor_scale, [one, [torch.ones(3)]], (1.0,)),
        (amp_C.multi_tensor_scale, [one, [torch.ones(2, dtype=torch.int32)]], (1.0,)),
        (amp_C.multi_tensor_adam, [one, one], (0.1, 0.9, 0.999, 1e-8, 1, 1, 1, 0.0)),
    ):
        with pytest.raises(RuntimeError):
            multi_tensor_applier(op, flag(), lists, *args)


# ---- optimizers: the same bits as the optimizers, which have tests of their own ----


def tensors(dtype, count=2, device="cpu"):
    torch.manual_seed(count)
    return [torch.randn(n, device=device).to(dtype) for n in (37, 1, 129)]


def stepped_by(make, dtype, steps, device):
    params = [nn.Parameter(t) for t in tensors(dtype, 2, device)]
    optimizer = make(params)
    for step in range(steps):
        for p, g in zip(params, tensors(dtype, 10 + step, device), strict=True):
            p.grad = g
        optimizer.step()
    return [p.detach() for p in params]


def zeros(like, dtype=torch.float32):
    return [torch.zeros_like(t, dtype=dtype) for t in like]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "name", ["sgd", "adam", "adamw", "adagrad", "novograd", "novograd-inf", "novograd-zero", "lamb"]
)
def test_optimizers(name, dtype, device):
    p = tensors(dtype, 2, device)
    m, v = zeros(p), zeros(p)
    norms = torch.zeros(3, device=device)
    betas = (0.9, 0.999)
    for step in range(3):
        g = tensors(dtype, 10 + step, device)
        if name == "sgd":
            args = (0.1, 0.9, 0.0, 0.1, True, step == 0, False, 1.0)
            multi_tensor_applier(amp_C.multi_tensor_sgd, flag(device), [g, p, m], *args)
        elif name in ("adam", "adamw"):
            args = (0.1, *betas, 1e-8, step + 1, int(name == "adamw"), 1, 0.1)
            multi_tensor_applier(amp_C.multi_tensor_adam, flag(device, 1), [g, p, m, v], *args)
        elif name == "adagrad":
            multi_tensor_applier(amp_C.multi_tensor_adagrad, flag(device), [g, p, m], 0.1, 1e-10, 0, 0.1)
        elif name.startswith("novograd"):
            kind = 0 if name.endswith("inf") else 2
            if step == 0 and name != "novograd-zero":
                norms = torch.stack([(t.float().abs().max() if kind == 0 else t.double().norm()).float() for t in g])
            args = (norms, 0.1, *betas, 1e-8, step + 1, 1, 0.1, 1, 1, kind)
            multi_tensor_applier(amp_C.multi_tensor_novograd, flag(device), [g, p, m], *args)
        else:
            norm = multi_tensor_applier(amp_C.multi_tensor_l2norm, flag(device), [g], False)[0]
            args = (0.1, *betas, 1e-6, step + 1, 1, 0.01, 1, 1, norm, 1.0, False)
            multi_tensor_applier(amp_C.multi_tensor_lamb, flag(device), [g, p, m, v], *args)
    make = {
        "sgd": lambda q: fused.FusedSGD(q, 0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
        "adam": lambda q: fused.FusedAdam(q, 0.1, weight_decay=0.1, adam_w_mode=False),
        "adamw": lambda q: fused.FusedAdam(q, 0.1, weight_decay=0.1),
        "adagrad": lambda q: fused.FusedAdagrad(q, 0.1, weight_decay=0.1),
        "novograd": lambda q: fused.FusedNovoGrad(q, 0.1, weight_decay=0.1),
        "novograd-zero": lambda q: fused.FusedNovoGrad(q, 0.1, weight_decay=0.1, init_zero=True),
        "novograd-inf": lambda q: fused.FusedNovoGrad(q, 0.1, weight_decay=0.1, norm_type=0),
        "lamb": lambda q: fused.FusedLAMB(q, 0.1),
    }[name]
    for found, wanted in zip(p, stepped_by(make, dtype, 3, device), strict=True):
        # NovoGrad's first norm is the caller's, and may be another FP32 number by its last bit
        torch.testing.assert_close(found, wanted, rtol=2 * torch.finfo(dtype).eps if name == "novograd" else 0, atol=0)


def lamb_by_hand(grads, params, m, v, decays, step, norm, limit, lr, adapts):
    """One step of NVIDIA's two kernels in FP64; the weights and moments, which change, and the updates."""
    factor = norm / limit if norm > limit else 1.0
    updates = []
    for i, (grad, decay) in enumerate(zip(grads, decays, strict=True)):
        g, p = grad.double() / factor, params[i]
        m[i], v[i] = 0.9 * m[i] + 0.1 * g, 0.99 * v[i] + 0.01 * g * g
        update = (m[i] / (1 - 0.9 ** (step + 1))) / ((v[i] / (1 - 0.99 ** (step + 1))).sqrt() + 1e-6) + decay * p
        rate = lr * p.norm() / update.norm() if adapts and float(p.norm()) and float(update.norm()) else lr
        params[i] = p - rate * update
        updates.append(update)
    return updates


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "limit, stage2, adapts", [(0.5, (), True), (1e9, (0.1,), True), (0.5, (0.0,), False), (1e9, (0.0, True), True)]
)
def test_lamb_in_two_stages(limit, stage2, adapts, dtype, device):
    """As NVIDIA's BERT calls it: norms of its own between the stages, decays for each tensor, one of zeros among
    them."""
    p = [*tensors(dtype, 2, device), torch.zeros(5, dtype=dtype, device=device)]
    m, v, updates = zeros(p), zeros(p), zeros(p)
    decays = torch.tensor([0.1, 0.0, 0.1, 0.0], device=device)
    wide, wide_m, wide_v = [t.double() for t in p], [t.double() for t in m], [t.double() for t in v]
    for step in range(3):
        g = [*tensors(dtype, 10 + step, device), torch.full((5,), 0.25 * step, dtype=dtype, device=device)]
        norm = multi_tensor_applier(amp_C.multi_tensor_l2norm, flag(device), [g], False)[0]
        given = norm if step else float(norm)  # it was a number before it was a tensor
        args = (decays, step, 0.9, 0.99, 1e-6, given, limit)
        multi_tensor_applier(amp_C.multi_tensor_lamb_stage1_cuda, flag(device, 1), [g, p, m, v, updates], *args)
        norms = [multi_tensor_applier(amp_C.multi_tensor_l2norm, flag(device), [t], True)[1] for t in (p, updates)]
        multi_tensor_applier(amp_C.multi_tensor_lamb_stage2_cuda, flag(device, 1), [p, updates], *norms, 0.1, *stage2)
        wanted = lamb_by_hand(g, wide, wide_m, wide_v, decays.tolist(), step, float(norm), limit, 0.1, adapts)
        if dtype != torch.float32:
            wide = [t.to(dtype).double() for t in wide]
        for found, exact in ((updates, wanted), (m, wide_m), (v, wide_v)):
            # some 10 roundings of FP32 a step; in 16 bits one of the weights' too
            for a, b in zip(found, exact, strict=True):
                torch.testing.assert_close(a.double(), b, rtol=64 * torch.finfo(dtype).eps, atol=1e-7)
        for a, b in zip(p, wide, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=(step + 1) * 8 * torch.finfo(dtype).eps, atol=1e-7)


@pytest.mark.parametrize("device", DEVICES)
def test_sgd_writes_copies_scales_and_obeys_the_flag(device):
    g = tensors(torch.float16, 10, device)
    p, m = tensors(torch.float32, 2, device), zeros(g)
    before = [t.clone() for t in p]
    low = zeros(g, torch.float16)
    args = (0.0, 0.9, 0.5, 0.1, False, True, False, 1.0 / 128)
    multi_tensor_applier(amp_C.multi_tensor_sgd, flag(device, 1), [g, p, m, low], *args)
    assert all(torch.equal(a, b) for a, b in zip(p, before, strict=True)) and not any(bool(t.any()) for t in low + m)
    multi_tensor_applier(amp_C.multi_tensor_sgd, flag(device), [g, p, m, low], *args)
    for i in range(3):
        torch.testing.assert_close(m[i], g[i].float() / 128, rtol=0, atol=0)
        torch.testing.assert_close(p[i], before[i] - 0.1 * m[i], rtol=2e-7, atol=1e-7)
        assert torch.equal(low[i], p[i].half())
    halves = [t.half() for t in p]
    momenta = zeros(halves, torch.float16)
    multi_tensor_applier(amp_C.multi_tensor_sgd, flag(device), [g, halves, momenta], *args)
    assert all(torch.equal(a, (b.float() / 128).half()) for a, b in zip(momenta, g, strict=True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("masters", "dtype"), [(False, torch.float16), (True, torch.float16), (True, torch.float32)])
def test_adam_with_numbers_in_tensors(masters, dtype, device):
    g, p = tensors(dtype, 10, device), tensors(dtype, 2, device)
    m, v = zeros(p), zeros(p)
    wide = [t.clone().float() for t in p]
    lists = [[t * 64 for t in g], p, m, v] + ([wide] if masters else [])
    op = amp_C.multi_tensor_adam_capturable_master if masters else amp_C.multi_tensor_adam_capturable
    lr, inv_scale = torch.tensor([0.1], device=device), torch.tensor([1 / 64], device=device)
    step = torch.tensor([1], dtype=torch.int32, device=device)
    args = (lr, 0.9, 0.999, 1e-8, step, 1, 1, 0.0, inv_scale)
    before = [t.clone() for t in p]
    multi_tensor_applier(op, flag(device, 1), lists, *args)
    assert all(torch.equal(a, b) for a, b in zip(p, before, strict=True))
    assert all(torch.equal(a, b * 64) for a, b in zip(lists[0], g, strict=True))
    multi_tensor_applier(op, flag(device), lists, *args)
    assert all(torch.equal(a, b) for a, b in zip(lists[0], g, strict=True))  # unscaled
    wanted = wide if masters else [t.clone() for t in before]
    if masters:
        assert all(torch.equal(a, b.to(dtype)) for a, b in zip(p, wide, strict=True))
    else:
        other = [zeros(p), zeros(p)]
        plain = (float(lr), 0.9, 0.999, 1e-8, 1, 1, 1, 0.0)
        multi_tensor_applier(amp_C.multi_tensor_adam, flag(device), [g, wanted, *other], *plain)
        assert all(torch.equal(a, b) for a, b in zip(p, wanted, strict=True))
    assert step.item() == 1  # the caller counts


@pytest.mark.parametrize("device", DEVICES)
def test_mixed_precision_lamb(device):
    g, low = tensors(torch.bfloat16, 10, device), tensors(torch.bfloat16, 2, device)
    p, m, v = [t.float() for t in low], zeros(low), zeros(low)
    scaled = [t * 64 for t in g]
    norm = multi_tensor_applier(amp_C.multi_tensor_l2norm_mp, flag(device), [scaled], False)[0]
    number = lambda x: torch.tensor([x], device=device)  # noqa: E731
    step = torch.tensor([1], dtype=torch.int32, device=device)
    head = (number(0.1), 0.9, 0.999, 1e-6, step, 1, 0.01, 1, 1, norm, number(64.0), False)
    lists = [scaled, p, m, v, low]
    before = [t.clone() for t in p]
    multi_tensor_applier(amp_C.multi_tensor_lamb_mp, flag(device), lists, *head, number(1.0), number(1 / 64))
    assert all(torch.equal(a, b) for a, b in zip(p, before, strict=True))
    multi_tensor_applier(amp_C.multi_tensor_lamb_mp, flag(device), lists, *head, number(0.0), number(1 / 64))
    plain, others = before, [zeros(p), zeros(p)]
    args = (0.1, 0.9, 0.999, 1e-6, 1, 1, 0.01, 1, 1, norm / 64, 1.0, False)
    multi_tensor_applier(amp_C.multi_tensor_lamb, flag(device), [g, plain, *others], *args)
    for a, b, c in zip(p, plain, low, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=0)  # lr is 0.1 in FP32 here, and in FP64 there
        assert torch.equal(c, a.bfloat16())


def single(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def by_hand(scale, growth, left, inf, factor, backoff, interval, hysteresis):
    if inf:
        left -= 1
        return (scale, 0, left) if left > 0 else (single(scale * backoff), 0, left)
    growth += 1
    if growth == interval:
        scale, growth = (single(scale * factor) if scale * factor < 3.4e38 else scale), 0
    return scale, growth, hysteresis


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("factor", "backoff"), [(2.0, 0.5), (1.0001, 0.9)])
@pytest.mark.parametrize(("hysteresis", "first"), [(1, 8.0), (2, 8.0), (3, 2.0**127)])
def test_loss_scale_with_hysteresis(hysteresis, first, factor, backoff, device):
    torch.manual_seed(hysteresis)
    overflows = (torch.rand(200) < 0.3).tolist()
    scale = torch.tensor([first], device=device)
    growth, left = (torch.tensor([n], dtype=torch.int32, device=device) for n in (0, hysteresis))
    state = (first, 0, hysteresis)
    for inf in overflows:
        found = torch.tensor([float(inf)], device=device)
        result = amp_C.update_scale_hysteresis(scale, growth, left, found, factor, backoff, 3, hysteresis)
        state = by_hand(*state, inf, factor, backoff, 3, hysteresis)
        assert result is scale and (float(scale), int(growth), int(left)) == state


def test_flatten_and_unflatten():
    x = [torch.randn(3, 4), torch.randn(5), torch.randn(0), torch.randn(2, 2).t()]
    flat = apex_C.flatten(x)
    assert flat.shape == (21,) and flat.data_ptr() != x[0].data_ptr()
    parts = apex_C.unflatten(flat, x)
    assert all(torch.equal(a, b) for a, b in zip(parts, x, strict=True))
    parts[0].fill_(7)
    assert bool((flat[:12] == 7).all())  # views
    with pytest.raises(RuntimeError):
        apex_C.flatten([])
    with pytest.raises(RuntimeError):
        apex_C.unflatten(flat[:3], x)
