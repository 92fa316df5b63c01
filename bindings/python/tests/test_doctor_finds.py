# SPDX-License-Identifier: Apache-2.0
"""Small trainings with one mistake each, and the right ones beside them, under the doctor."""
import concurrent.futures
import contextlib
import copy
import warnings

import pytest

torch = pytest.importorskip("torch")
if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):
    pytest.skip("the trainings use fp16 and GradScaler of torch 2.6 on CPUs", allow_module_level=True)

import doctor_by_hand  # noqa: E402
import doctor_rounding  # noqa: E402
import doctor_trainings  # noqa: E402
import libamp  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from doctor_trainings import (  # noqa: E402
    MISTAKES,
    RIGHT,
    STEPS,
    adam,
    batch,
    bfloat,
    grad_scaler,
    half,
    loss_of,
    mistake,
    net,
    plain,
    right,
    scaled,
)
from libamp.torch import amp  # noqa: E402
from torch import nn  # noqa: E402
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn  # noqa: E402

FILES = {__file__, *(each.__file__ for each in (doctor_by_hand, doctor_rounding, doctor_trainings))}


def found_in(training):
    torch.manual_seed(0)
    with amp.doctor(quiet=True) as doctor:
        training()
    return doctor.result.found


# ---- weights and averages ----


@mistake("AMP-D01", "AMP-D22", subject="1.weight")
def bf16_weights():
    model = net(torch.bfloat16)
    plain(model, adam(model, 1e-4), dtype=torch.bfloat16)


@mistake("AMP-D21", "AMP-D22", subject="AveragedModel")
def average_of_bf16_weights():
    model = net(torch.bfloat16)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    plain(model, adam(model, 2e-2), 40, after=lambda step: average.update_parameters(model), dtype=torch.bfloat16)


def followed_by(copied, steps=40):
    """Trains a model that a copy of it follows by a thousandth of the difference."""
    model = net()
    follower = copied(model)

    def follow(step):
        with torch.no_grad():
            for average, param in zip(follower.parameters(), model.parameters()):
                average.mul_(0.999).add_(param.to(average.dtype), alpha=0.001)

    plain(model, adam(model), steps, after=follow)


@mistake("AMP-D21")
def a_copy_in_bf16_that_follows():
    followed_by(lambda model: copy.deepcopy(model).bfloat16().requires_grad_(False))


@right
def a_copy_in_fp32_that_follows():
    followed_by(copy.deepcopy)


@right
def a_frozen_copy_in_bf16():
    model = net()
    frozen = copy.deepcopy(model).bfloat16().requires_grad_(False)
    plain(model, adam(model), 40, after=lambda step: frozen(batch()[0].bfloat16()))


@mistake("AMP-D21", "AMP-D22", subject="tensors of the script")
def a_dictionary_of_averages():
    model = net(torch.bfloat16)
    averages = {name: value.clone() for name, value in model.state_dict().items()}

    def follow(step):
        with torch.no_grad():
            for name, value in model.state_dict().items():
                averages[name].mul_(0.999).add_(value, alpha=0.001)

    plain(model, adam(model, 2e-2), 40, after=follow, dtype=torch.bfloat16)


@mistake("AMP-D23", subject="0.weight")
def a_forgotten_layer():
    model = net()
    plain(model, adam(model[1:]))


@right
def a_tool_with_gradients():
    model, tool = net(), nn.Linear(8, 8)
    plain(model, adam(model), loss=lambda model, x, y: F.cross_entropy(tool(model(x)), y))


@mistake("AMP-D01", "AMP-D24", "AMP-D22")
def batch_norm_in_bf16():
    model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 8)).bfloat16()
    plain(model, adam(model, 1e-4), dtype=torch.bfloat16)


@mistake("AMP-D01", "AMP-D25", "AMP-D22")
def rotary_in_bf16():
    model = net()
    model.register_buffer("inv_freq", 1 / 10000 ** (torch.arange(0, 32, 2) / 32))
    plain(model.bfloat16(), adam(model, 1e-4), dtype=torch.bfloat16)


# ---- gradients and the loss scale ----


def small(model, x, y):
    return loss_of(model, x, y) * 1e-5


@mistake("AMP-D02")
def underflow_at_a_static_scale():
    model = net()
    scaler = grad_scaler(init_scale=1.0, growth_interval=9999)
    scaled(model, torch.optim.SGD(model.parameters(), 1.0), scaler, loss=small)


@mistake("AMP-D03")
def fp16_without_a_scaler():
    model = net()
    plain(model, torch.optim.SGD(model.parameters(), 1.0), loss=small, region=half)


@right
def fp16_with_a_scale_by_hand():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        with half():
            value = loss_of(model, *batch())
        optimizer.zero_grad()
        (value * 1024).backward()
        for param in model.parameters():
            param.grad /= 1024
        optimizer.step()


@mistake("AMP-D04", "AMP-D16", "AMP-D17", subject="mul")
def logits_that_overflow():
    model = net()
    loss = lambda model, x, y: F.cross_entropy((model(x) * 1e6).float(), y)  # noqa: E731
    scaled(model, adam(model), grad_scaler(), loss=loss)


@mistake("AMP-D06")
def a_scaler_for_each_step():
    model = net()
    optimizer = adam(model)
    for _ in range(STEPS):
        scaled(model, optimizer, grad_scaler(), 1)


@mistake("AMP-D07", subject="clip_grad_norm_")
def a_clip_before_unscale():
    model = net()
    scaled(model, adam(model), grad_scaler(), clip=lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0))


@right
def a_clip_after_unscale():
    model = net()
    optimizer, scaler = adam(model), grad_scaler()

    def clip():
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    scaled(model, optimizer, scaler, clip=clip)


@mistake("AMP-D08", subject="CosineAnnealingLR")
def a_scheduler_that_counts_skips():
    model, scaler = net(), grad_scaler()
    optimizer = adam(model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)

    def after(step):
        scheduler.step()
        if step == 5:
            scaler.update(2.0**40)

    scaled(model, optimizer, scaler, 60, after=after)


@mistake("AMP-D09")
def backward_inside_autocast():
    model = net()
    optimizer = adam(model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        with bfloat():
            loss_of(model, *batch()).backward()
        optimizer.step()


@mistake("AMP-D10")
def unscaled_twice():
    model = net()
    optimizer, scaler = adam(model), grad_scaler()
    with contextlib.suppress(RuntimeError):
        scaled(model, optimizer, scaler, clip=lambda: (scaler.unscale_(optimizer), scaler.unscale_(optimizer)))


@mistake("AMP-D11")
def a_scaler_without_update():
    model = net()
    optimizer, scaler = adam(model), grad_scaler()
    with contextlib.suppress(RuntimeError):
        scaled(model, optimizer, scaler, clip=lambda: scaler.step(optimizer))


@mistake("AMP-D12", subject="Adam")
def a_step_that_skips_the_scaler():
    model = net()
    optimizer, scaler = adam(model), grad_scaler()
    plain(model, optimizer, loss=lambda model, x, y: scaler.scale(loss_of(model, x, y)), region=half)


@mistake("AMP-D13")
def a_second_loss_without_the_scale():
    model = net()
    scaled(model, adam(model), grad_scaler(), clip=lambda: loss_of(model, *batch()).backward())


@right
def two_optimizers_one_scaler():
    first, second, scaler = net(), nn.Linear(8, 8), grad_scaler()
    one, two = adam(first), adam(second)

    def loss(model, x, y):
        two.zero_grad()
        return F.cross_entropy(second(model(x)).float(), y)

    scaled(first, one, scaler, loss=loss, clip=lambda: scaler.step(two))


# ---- numbers ----


@mistake("AMP-D14", subject="the batch[0]")
def one_bad_sample_in_an_epoch():
    """No watch of three iterations has it."""
    x = torch.ones(8, 4)
    x[5, 2] = float("inf")
    model, scaler = nn.Linear(4, 1), grad_scaler()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=1)
    for _ in range(3):
        for (sample,) in loader:
            optimizer.zero_grad()
            scaler.scale(model(sample).mean()).backward()
            scaler.step(optimizer)
            scaler.update()


@mistake("AMP-D14", "AMP-D05")
def a_bad_batch():
    model, bad = net(), {"pixels": torch.full((64, 32), float("nan")), "label": torch.zeros(64, dtype=torch.long)}
    count = iter(range(99))
    scaled(model, adam(model), grad_scaler(), data=lambda: tuple(bad.values()) if next(count) > 10 else batch())


@mistake("AMP-D14", subject="x")
def a_bad_batch_without_loader_or_scaler():
    model, samples = net(), torch.randn(STEPS, 64, 32)
    optimizer, samples[12, 3, 4] = adam(model), float("nan")
    for x in samples:
        optimizer.zero_grad()
        loss_of(model, x, torch.zeros(64, dtype=torch.long)).backward()
        optimizer.step()


@mistake("AMP-D15")
def a_bad_weight():
    model = net()
    plain(model, adam(model), after=lambda step: model[3].weight.data[2, 2].fill_(float("inf") if step == 8 else 0.0))


class Logarithm(nn.Module):
    def forward(self, x):
        return torch.log(x - x.amin(1, keepdim=True))


@mistake("AMP-D16", "AMP-D05", subject="1")
def a_logarithm_of_0():
    model, count = nn.Sequential(net(), Logarithm()), iter(range(99))
    scaled(model, adam(model), grad_scaler(), loss=lambda model, x, y: F.cross_entropy(
        model(x) if next(count) > 10 else model[0](x).float(), y))


@mistake("AMP-D16", subject="1")
def a_logarithm_of_0_after_a_search_for_the_scale():
    """Gradients that overflow in the search are not the last word."""
    model, scaler, count = nn.Sequential(net(), Logarithm()), grad_scaler(init_scale=2.0**40), iter(range(99))
    scaled(model, adam(model), scaler, 60, loss=lambda model, x, y: F.cross_entropy(
        model(x) if next(count) > 54 else model[0](x).float(), y))


@mistake("AMP-D16", subject="mm")
def a_session_of_libamp_that_skips():
    """No step of torch's ends an iteration: backwards do."""
    model = nn.Linear(16, 16)
    model, optimizer = amp.initialize(model, torch.optim.SGD(model.parameters(), 0.1), opt_level="O1", verbosity=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", libamp.FindingWarning)
        for _ in range(STEPS):
            hidden = model(torch.randn(16, 16)) * 600
            optimizer.zero_grad()
            with amp.scale_loss((hidden @ hidden.t()).float().mean(), optimizer) as loss:
                loss.backward()
            optimizer.step()
    amp.shutdown()


@mistake("AMP-D18")
def an_epsilon_of_0():
    model = net()
    scaled(model, adam(model), grad_scaler(), loss=lambda model, x, y: F.cross_entropy(
        (h := model(x)) / (h.abs().amax(1, keepdim=True) + 1e-8), y))


@mistake("AMP-D18", "AMP-D15", "AMP-D03", "AMP-D22", subject="Adam")
def adam_with_an_epsilon_of_0():
    """The first step divides by 0, on a finite loss: its epsilon is the origin, not the weights that it ruined."""
    model = nn.Linear(4, 4).half()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    inputs = torch.eye(4)[:1].half()
    for _ in range(8):
        optimizer.zero_grad()
        (model(inputs).float() - 1).pow(2).mean().backward()
        optimizer.step()


@mistake("AMP-D19", subject="exp")
def an_exponential_near_the_end_of_fp16():
    model = net()
    loss = lambda model, x, y: torch.exp(model(x).clamp(-1, 1) + 9).float().square().mean() / 1e8  # noqa: E731
    scaled(model, adam(model), grad_scaler(), loss=loss)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient * ctx.saved_tensors[0]


@mistake("AMP-D20", subject="Square")
def a_function_without_custom_fwd():
    model = net()
    plain(model, adam(model), loss=lambda model, x, y: loss_of(lambda x: Square.apply(model(x)), x, y), region=bfloat)


# ---- right trainings ----


@right
def in_fp32():
    model = net()
    plain(model, adam(model))


@right
def autocast_of_another_thread():
    with concurrent.futures.ThreadPoolExecutor(1) as other:
        other.submit(bfloat().__enter__).result()
        in_fp32()


@right
def in_fp32_with_an_evaluation_in_fp16():
    model = net()

    def evaluate(step):
        with torch.no_grad(), half():
            model(batch()[0])

    plain(model, adam(model), after=evaluate)


@right
def in_bf16_by_autocast():
    model = net()
    plain(model, adam(model), region=bfloat)


@right
def a_penalty_of_gradients():
    """Its loss overflows while the scaler searches: torch's own recipe."""
    model, scaler = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1)), grad_scaler(init_scale=2.0**16)

    def loss(model, x, y):
        x.requires_grad_()
        (gradient,) = torch.autograd.grad(scaler.scale(model(x).sum()), x, create_graph=True)
        return ((gradient / scaler.get_scale()).norm(dim=1) - 1).square().mean() - model(x).float().mean()

    scaled(model, adam(model), scaler, loss=loss)


@right
def attention_with_an_infinite_mask():
    model = nn.Linear(32, 32)

    def loss(model, x, y):
        scores = model(x) @ x.t().to(torch.float16)
        masked = scores.masked_fill(torch.triu(torch.ones(64, 64, dtype=torch.bool), 1), float("-inf"))
        return F.softmax(masked, -1).float().square().mean()

    scaled(model, adam(model), grad_scaler(), loss=loss)


def masked(scores, mask):
    return F.softmax(scores.float() + mask, -1)


def with_masks(model, loss, scaler):
    """Trains on batches that have a mask of -inf."""
    mask = torch.zeros(STEPS * 8, 4)
    mask[:, 2:] = -float("inf")
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(STEPS * 8, 32), mask), batch_size=8)
    optimizer = adam(model)
    for x, bias in loader:
        optimizer.zero_grad()
        with half():
            value = loss(model(x), bias)
        scaler.scale(value).backward()
        scaler.step(optimizer)
        scaler.update()


@right
def masks_in_batches_in_a_search_for_the_scale():
    with_masks(nn.Linear(32, 4), lambda scores, mask: masked(scores, mask)[:, 0].log().mean(), grad_scaler(
        init_scale=2.0**30))


@mistake("AMP-D16", subject="mul")
def an_overflow_behind_a_mask():
    with_masks(nn.Linear(32, 4), lambda scores, mask: (masked(scores, mask).half() * 6e4 * 8).float().mean(),
               grad_scaler())


@mistake("AMP-D14", subject="the batch[1]")
def a_mask_that_reaches_the_loss():
    with_masks(nn.Linear(32, 4), lambda scores, mask: (scores + mask).float().mean(), grad_scaler())


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found_and_nothing_else(name):
    training, codes, subject = MISTAKES[name]
    found = found_in(training)
    assert {each.code for each in found} == set(codes), [(each.code, each.subject, each.saw) for each in found]
    assert subject is None or found[0].subject == subject
    assert all(each.place.filename in FILES and each.place.lineno for each in found)


@pytest.mark.parametrize("training", RIGHT, ids=lambda training: training.__name__)
def test_a_right_training_has_no_finding(training):
    assert found_in(training) == []
