# SPDX-License-Identifier: Apache-2.0
"""Attention's backward on the CPU in 16 bits: libamp's in the place of torch's, as long as a session needs it."""

import gc
import itertools

import pytest

torch = pytest.importorskip("torch")

from levels import IN_BF16  # noqa: E402
from libamp.torch import amp  # noqa: E402
from libamp.torch.amp import attention  # noqa: E402

if not hasattr(torch.library, "get_kernel"):
    pytest.skip("before torch 2.9 its own kernel stays", allow_module_level=True)
F = torch.nn.functional
FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
BF16, FP16 = torch.bfloat16, torch.float16


def begin(level="O5"):
    model = torch.nn.Linear(2, 2)
    return amp.initialize(model, torch.optim.SGD(model.parameters(), 0.1), opt_level=level, verbosity=0)


def heads(dtype, batch=2, heads=3, rows=5, columns=7, width=8):
    """Query, key, value and the gradient of what comes out, transposed as torch's layers hand them over."""
    random = torch.Generator().manual_seed(rows * columns)
    sizes = (rows, columns, columns, rows)
    made = [torch.randn(batch, n, heads, width, generator=random).to(dtype).transpose(1, 2) for n in sizes]
    return [each.requires_grad_() for each in made[:3]], made[3]


def gradients(inputs, grad, **options):
    out = FLASH(*inputs, **options)[0]
    return torch.autograd.grad(out, inputs, grad)


def exact(inputs, grad, attn_mask=None, **options):
    wide = [each.detach().double().requires_grad_() for each in inputs]
    mask = None if attn_mask is None else attn_mask.double()
    out = F.scaled_dot_product_attention(*wide, attn_mask=mask, **options)
    return torch.autograd.grad(out, wide, grad.double())


def distance(some, others):
    """The relative error of each gradient."""
    return [((a.double() - b).norm() / b.norm()).item() for a, b in zip(some, others, strict=True)]


@pytest.fixture
def counted(monkeypatch):
    """How many times libamp's kernel was asked."""
    calls = []
    own = attention._gradients
    monkeypatch.setattr(attention, "_gradients", lambda *args: calls.append(1) or own(*args))
    return calls


SHAPES = {
    "short": {"batch": 16, "heads": 8, "rows": 12, "columns": 10},
    "one query": {"batch": 64, "heads": 8, "rows": 1},
    "several at a time": {"rows": 300, "columns": 500, "width": 16},
    "wide": {"batch": 8, "width": 128},
}


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_is_as_exact_as_torchs(dtype, shape, counted):
    inputs, grad = heads(dtype, **SHAPES[shape])
    torchs = gradients(inputs, grad)
    assert not counted
    begin()
    ours = gradients(inputs, grad)
    assert counted and [each.dtype for each in ours] == [dtype] * 3
    assert [each.stride() for each in ours] == [each.stride() for each in torchs]  # what inductor compiles relies on
    wanted = exact(inputs, grad)
    for mine, theirs in zip(distance(ours, wanted), distance(torchs, wanted), strict=True):
        assert mine <= 1.1 * theirs


MASKS = {
    "of each head": (2, 3, 5, 7),
    "of each sequence": (2, 1, 1, 7),
    "of all": (5, 7),
}


@pytest.mark.parametrize("shape", MASKS.values(), ids=MASKS)
def test_masks_are_added(shape):
    begin()
    inputs, grad = heads(BF16)
    mask = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(BF16)
    mask[..., 0] = -torch.inf
    ours = gradients(inputs, grad, attn_mask=mask)
    assert max(distance(ours, exact(inputs, grad, attn_mask=mask))) < 5e-3
    assert not ours[1][:, :, 0].any() and not ours[2][:, :, 0].any()


def test_a_query_that_may_look_nowhere_has_no_gradient():
    begin()
    inputs, grad = heads(BF16)
    mask = torch.zeros(5, 7, dtype=BF16)
    mask[2] = -torch.inf
    ours = gradients(inputs, grad, attn_mask=mask)
    assert all(each.isfinite().all() for each in ours)
    assert not ours[0][:, :, 2].any() and ours[0][:, :, 1].any()


@pytest.mark.parametrize("rows, columns", [(6, 6), (4, 6), (6, 4)])
def test_causal(rows, columns):
    begin()
    inputs, grad = heads(BF16, rows=rows, columns=columns)
    assert max(distance(gradients(inputs, grad, is_causal=True), exact(inputs, grad, is_causal=True))) < 5e-3


def test_the_scale_is_the_callers():
    begin()
    inputs, grad = heads(BF16)
    assert max(distance(gradients(inputs, grad, scale=0.25), exact(inputs, grad, scale=0.25))) < 5e-3


def test_with_any_number_of_threads_and_at_a_time(monkeypatch):
    """The bits do not depend on them."""
    begin()
    inputs, grad = heads(BF16, rows=40, columns=30)
    made = []
    for cached, threads in itertools.product((1, 1200 * 4, 1 << 17), (1, 2)):
        monkeypatch.setattr(attention, "_CACHED", cached)
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        made.append(gradients(inputs, grad))
    assert all(torch.equal(a, b) for each in made[1:] for a, b in zip(each, made[0], strict=True))


def test_inside_of_autocast(counted):
    """A backward in an autocast block is the same: scores in bfloat16 would be off by whole units."""
    begin()
    inputs, grad = heads(BF16)
    with torch.no_grad():
        inputs[0].mul_(8)
    outside = gradients(inputs, grad)
    with torch.autocast("cpu", torch.bfloat16):
        inside = gradients(inputs, grad)
    assert len(counted) == 2 and all(map(torch.equal, outside, inside))


def test_what_is_torchs_stays_torchs(counted):
    """FP32, and more keys than torch's blocks are slow with: the bits are torch's."""
    cases = [heads(torch.float32), heads(BF16, columns=attention._MOST_KEYS + 1)]
    before = [gradients(*case) for case in cases]
    begin()
    after = [gradients(*case) for case in cases]
    assert not counted
    assert all(torch.equal(a, b) for x, y in zip(before, after, strict=True) for a, b in zip(x, y, strict=True))


@pytest.mark.parametrize("level, serves", [("O0", False), ("O1", True), ("O3", True), ("O4", True), ("O5", True)])
def test_levels(level, serves, counted):
    case = heads(BF16)
    begin(level)
    gradients(*case)
    assert bool(counted) is serves


def test_the_last_session_takes_it_away(counted):
    case = heads(BF16)
    before = gradients(*case)
    first, second = begin("O5")[0], begin("O4")[0]
    amp.shutdown(first)
    gradients(*case)
    assert counted
    amp.shutdown(second)
    del counted[:]
    assert all(torch.equal(a, b) for a, b in zip(gradients(*case), before, strict=True)) and not counted
    begin()
    gradients(*case)
    assert counted


def test_a_session_that_was_collected_serves_nobody(counted):
    case = heads(BF16)
    model, optimizer = begin()
    del model, optimizer
    gc.collect()
    gradients(*case)
    assert not counted


@pytest.mark.parametrize("level", IN_BF16)
def test_a_transformer_trains_with_it(level, counted):
    torch.manual_seed(0)
    model = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model, optimizer = amp.initialize(
        model, torch.optim.Adam(model.parameters(), 1e-2), opt_level=level, verbosity=0
    )
    x = torch.randn(4, 6, 16)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = (model(x).float() - x.flip(0)).square().mean()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert len(counted) == 8 and losses[-1] < 0.8 * losses[0]
