# SPDX-License-Identifier: Apache-2.0
"""Apex's losses and its clipping against the formulas and tolerances of NVIDIA's tests, in smaller shapes."""

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from libamp.torch import amp, xentropy_cuda  # noqa: E402
from libamp.torch.contrib.clip_grad import clip_grad_norm_  # noqa: E402
from libamp.torch.contrib.focal_loss import focal_loss  # noqa: E402
from libamp.torch.contrib.xentropy import SoftmaxCrossEntropyLoss  # noqa: E402

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(1234)


# ---- xentropy ----


def smoothed(logits, labels, smoothing, padding_idx):
    """By log_softmax in FP32, with the mean of all classes for the smoothed part."""
    logs = torch.log_softmax(logits, -1, dtype=torch.float64 if logits.dtype == torch.float64 else torch.float32)
    losses = -(1 - smoothing) * logs[torch.arange(len(labels)), labels] - smoothing * logs.mean(-1)
    return torch.where(labels == padding_idx, 0.0, losses)


def rows(dtype, count=37, classes=320):
    labels = torch.randint(0, classes, (count,))
    labels[::6] = 0
    return torch.randn(count, classes).to(dtype).requires_grad_(), labels


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
def test_xentropy_is_log_softmax_with_smoothing(dtype, smoothing):
    logits, labels = rows(dtype)
    losses = SoftmaxCrossEntropyLoss.apply(logits, labels, smoothing, 0, dtype == torch.float16)
    wanted = smoothed(logits, labels, smoothing, 0)
    assert losses.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(losses, wanted)
    (grad,), (exact,) = (torch.autograd.grad(x.sum(), logits) for x in (losses, wanted))
    assert grad.dtype == dtype
    torch.testing.assert_close(grad, exact)
    assert not grad[labels == 0].any()


def test_xentropy_keeps_nothing_of_the_logits_size_but_them():
    logits, labels = rows(torch.float16)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        SoftmaxCrossEntropyLoss.apply(logits, labels, 0.1, 0, True)
    assert [t.data_ptr() for t in kept if t.numel() >= logits.numel()] == [logits.data_ptr()]


def test_xentropy_padding_need_not_be_a_class_nor_a_masked_class_finite():
    logits, labels = rows(torch.float32)
    labels[::6] = -100
    with torch.no_grad():
        logits[:, -3:] = -float("inf")
    labels.clamp_(max=300)
    losses = SoftmaxCrossEntropyLoss.apply(logits, labels, 0.0, -100)
    torch.testing.assert_close(losses, F.cross_entropy(logits, labels, reduction="none"))
    (grad,) = torch.autograd.grad(losses.sum(), logits)
    assert torch.isfinite(grad).all() and not grad[::6].any()


def test_xentropy_has_a_second_derivative():
    logits, labels = rows(torch.float64, 5, 7)
    assert torch.autograd.gradcheck(lambda x: SoftmaxCrossEntropyLoss.apply(x, labels, 0.1, 0), logits)
    assert torch.autograd.gradgradcheck(lambda x: SoftmaxCrossEntropyLoss.apply(x, labels, 0.1, 0), logits)


@pytest.mark.skipif(not hasattr(torch, "get_autocast_dtype"), reason="no autograd functions in its graphs")
def test_xentropy_compiles():
    logits, labels = rows(torch.float16)
    plain = SoftmaxCrossEntropyLoss.apply
    compiled = torch.compile(plain, backend="aot_eager", fullgraph=True)
    grads = [torch.autograd.grad(f(logits, labels, 0.1, 0, True).sum(), logits)[0] for f in (compiled, plain)]
    assert torch.equal(*grads)


@pytest.mark.parametrize("level", ["O1", "O2", "O4", "O5"])
def test_losses_take_what_a_model_returns_at_every_level(level):
    class Model(torch.nn.Linear):
        def forward(self, x, labels):
            logits = super().forward(x)
            self.seen = logits.dtype
            xentropy = SoftmaxCrossEntropyLoss.apply(logits, labels, 0.1, 0, True)
            return logits, xentropy, focal_loss.focal_loss(logits, labels, torch.ones(1), 8, 0.25, 2.0)

    model = amp.initialize(Model(4, 8), opt_level=level, verbosity=0)
    labels = torch.tensor([0, 3, 7])
    logits, xentropy, focal = model(torch.randn(3, 4), labels)
    assert model.seen == (torch.float16 if level in ("O1", "O2") else torch.bfloat16)
    assert xentropy.dtype == focal.dtype == torch.float32
    with amp.disable_casts():
        torch.testing.assert_close(xentropy, smoothed(logits.float(), labels, 0.1, 0))
        torch.testing.assert_close(focal, sigmoid_focal(logits.float(), F.one_hot(labels, 8).float(), 0.25, 2.0))
    (xentropy.sum() + focal).backward()
    assert model.weight.grad.any()


def test_xentropy_cuda_is_called_as_copies_of_apexs_function_call_it():
    logits, labels = rows(torch.bfloat16)
    losses, max_log_sum_exp = xentropy_cuda.forward(logits, labels, 0.1, False)
    wanted = smoothed(logits, labels, 0.1, -1)
    torch.testing.assert_close(losses, wanted)
    torch.testing.assert_close(max_log_sum_exp, torch.logsumexp(logits.float(), -1))
    grad = xentropy_cuda.backward(torch.ones_like(losses), logits.detach(), max_log_sum_exp.detach(), labels, 0.1)
    torch.testing.assert_close(grad, torch.autograd.grad(wanted.sum(), logits)[0])


# ---- focal loss ----


def sigmoid_focal(logits, wanted, alpha, gamma):
    """The paper's, as torchvision computes it, summed."""
    p = torch.sigmoid(logits)
    p_t = p * wanted + (1 - p) * (1 - wanted)
    loss = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none") * (1 - p_t) ** gamma
    return ((alpha * wanted + (1 - alpha) * (1 - wanted)) * loss).sum()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_focal_loss_is_the_papers(dtype):
    x = torch.randn(12, 8).to(dtype).requires_grad_()
    classes = torch.randint(0, 8, (12,))
    wanted = sigmoid_focal(x.float(), F.one_hot(classes, 8).float(), 0.24, 2.0)
    loss = sum(
        focal_loss.FocalLoss.apply(x[i : i + 1], classes[i : i + 1], torch.ones([]), 8, 0.24, 2.0, 0.0)
        for i in range(12)
    )
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(*(torch.autograd.grad(y, x)[0] for y in (loss, wanted)))


def test_focal_loss_of_no_match_of_ignored_rows_of_padding_and_positives():
    x = torch.randn(2, 3, 8, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([[-1, -2, 4], [0, -2, 5]])
    loss = focal_loss.focal_loss(x, y, torch.tensor([4.0]), 6, 0.24, 2.0)
    kept = x[..., :6].reshape(6, 6)[[0, 2, 3, 5]]
    wanted = F.one_hot(torch.tensor([6, 4, 0, 5]), 7)[:, :6].double()
    torch.testing.assert_close(loss, sigmoid_focal(kept, wanted, 0.24, 2.0) / 4)
    (grad,) = torch.autograd.grad(loss, x)
    assert not grad[:, 1].any() and not grad[..., 6:].any() and grad[0, 0, :6].all()


def test_focal_loss_smooths_between_match_and_none():
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0, 1, 2, -1])
    loss = focal_loss.focal_loss(x, y, torch.ones(1), 6, 0.25, 1.5, 0.2)
    hard = F.one_hot(y.clamp(min=0), 6) * (y >= 0).unsqueeze(-1)
    weight = torch.where(hard > 0, 0.25 * (1 - x.sigmoid()) ** 1.5, 0.75 * x.sigmoid() ** 1.5)
    soft = hard * 0.8 + 0.1
    torch.testing.assert_close(loss, -(weight * (soft * F.logsigmoid(x) + (1 - soft) * F.logsigmoid(-x))).sum())
    assert torch.autograd.gradgradcheck(lambda x: focal_loss.focal_loss(x, y, torch.ones(1), 6, 0.25, 1.5, 0.2), x)


def test_focal_loss_of_what_is_sure_has_a_gradient():
    x = torch.tensor([[200.0, -200.0]], requires_grad=True)
    (grad,) = torch.autograd.grad(focal_loss.focal_loss(x, torch.tensor([0]), torch.ones(1), 2, 0.25, 0.5), x)
    assert torch.equal(grad, torch.zeros(1, 2))


def test_shapes_that_do_not_fit_are_said():
    logits, labels = torch.randn(4, 6), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(RuntimeError, match=r"\[4, 6\] want a label for each row, not \[3\]"):
        SoftmaxCrossEntropyLoss.apply(logits, labels[:3])
    with pytest.raises(RuntimeError, match=r"want logits of \[4, 7\]"):
        focal_loss.focal_loss(logits, labels, torch.ones(1), 7, 0.25, 2.0)
    with pytest.raises(RuntimeError, match="one number, not 2"):
        focal_loss.focal_loss(logits, labels, torch.ones(2), 6, 0.25, 2.0)


# ---- clipping ----


def gradients(dtypes, count=41):
    shapes = [tuple(torch.randint(1, 6, (1 + i % 3,)).tolist()) for i in range(count)]
    pairs = [(torch.nn.Parameter(torch.randn(shape)), torch.randn(shape)) for shape in shapes]
    for i, (parameter, grad) in enumerate(pairs):
        parameter.data = parameter.data.to(dtypes[i % len(dtypes)])
        parameter.grad = grad.to(parameter.dtype)
    copies = [parameter.detach().clone() for parameter, _ in pairs]
    for copy, (parameter, _) in zip(copies, pairs, strict=True):
        copy.grad = parameter.grad.clone()
    return [parameter for parameter, _ in pairs], copies


@pytest.mark.parametrize("norm_type", [2.0, 1.0, float("inf")])
@pytest.mark.parametrize(
    ("dtypes", "rtol"),
    [
        ([torch.float32], 1e-6),
        ([torch.float64], 1e-15),
        ([torch.float16], 1e-3),
        ([torch.bfloat16], 8e-3),
        ([torch.float32, torch.float16], 1e-3),
        ([torch.float32, torch.float16, torch.float64], 1e-3),
    ],
    ids=str,
)
def test_clipping_is_torchs(dtypes, rtol, norm_type):
    mine, torchs = gradients(dtypes)
    norm = clip_grad_norm_(mine, 0.54321, norm_type)
    wanted = torch.nn.utils.clip_grad_norm_(torchs, 0.54321, norm_type)
    assert norm.shape == wanted.shape == ()
    torch.testing.assert_close(norm, wanted, rtol=rtol, atol=1e-20, check_dtype=False)
    for a, b in zip(mine, torchs, strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a.grad, b.grad, rtol=rtol, atol=1e-7)


def test_small_gradients_stay_as_they_are():
    mine, copies = gradients([torch.float16])
    clip_grad_norm_(iter(mine), 1e6)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(mine, copies, strict=True))
    assert clip_grad_norm_([torch.nn.Parameter(torch.ones(2))], 1.0) == 0


@pytest.mark.parametrize(("layout", "norm"), [(lambda grad: grad.t(), 24.0), (lambda grad: grad[:, ::2], 24.0)])
def test_gradients_of_any_layout(layout, norm):
    parameter = torch.nn.Parameter(torch.zeros(layout(torch.zeros(12, 12)).shape))
    parameter.grad = layout(torch.full((12, 12), norm / parameter.numel() ** 0.5))
    torch.testing.assert_close(clip_grad_norm_(parameter, 6.0), torch.tensor(norm))
    torch.testing.assert_close(parameter.grad.norm(), torch.tensor(6.0))


def test_the_norm_of_half_gradients_may_be_beyond_half():
    parameter = torch.nn.Parameter(torch.zeros(64, 64, dtype=torch.float16))
    parameter.grad = torch.full_like(parameter, 2048)
    assert clip_grad_norm_(parameter, 32.0) == 2048 * 64
    assert torch.equal(parameter.grad, torch.full_like(parameter, 0.5))


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_what_is_not_finite_is_refused_where_that_is_wanted_and_else_as_in_torch(value):
    mine, torchs = gradients([torch.float32], 5)
    for parameter in (mine[2], torchs[2]):
        parameter.grad.view(-1)[-1] = value
    with pytest.raises(RuntimeError, match="error_if_nonfinite"):
        clip_grad_norm_(mine, 1.0, error_if_nonfinite=True)
    torch.testing.assert_close(
        clip_grad_norm_(mine, 1.0), torch.nn.utils.clip_grad_norm_(torchs, 1.0), equal_nan=True
    )
    for a, b in zip(mine, torchs, strict=True):
        torch.testing.assert_close(a.grad, b.grad, equal_nan=True)
