# SPDX-License-Identifier: Apache-2.0
"""Small trainings for test_doctor_finds that change scaled gradients themselves."""
import torch
from doctor_trainings import STEPS, adam, batch, grad_scaler, half, loss_of, mistake, net, right, scaled
from torch.nn.utils import clip_grad_norm_, clip_grad_value_  # as in a notebook, before the doctor begins


def changing(change, **options):
    """Trains with change(gradient, scale) of each gradient before the scaler's step."""
    model, scaler = net(), grad_scaler(**options)
    scaled(model, adam(model), scaler, clip=lambda: [change(param, scaler.get_scale()) for param in model.parameters()])


def clipping(clip, **options):
    """Trains with clip(parameters, scale) before the scaler's step."""
    model, scaler = net(), grad_scaler(**options)
    scaled(model, adam(model), scaler, clip=lambda: clip(list(model.parameters()), scaler.get_scale()))


def factor_of(params, limit):
    return limit / (torch.stack([param.grad.norm() for param in params]).norm() + 1e-6)


@mistake("AMP-D10", subject="0.weight")
def gradients_divided_in_the_script():
    changing(lambda param, scale: param.grad.div_(scale))


@mistake("AMP-D10", subject="0.weight")
def other_gradients_in_the_script():
    changing(lambda param, scale: setattr(param, "grad", param.grad * (1 / scale)))


@mistake("AMP-D10", subject="0.weight")
def divided_and_then_clipped():
    def clip(params, scale):
        torch._foreach_div_([param.grad for param in params], scale)
        torch._foreach_mul_([param.grad for param in params], factor_of(params, 0.01).clamp(max=1.0))

    clipping(clip)


@mistake("AMP-D07", subject="0.weight")
def elements_limited_in_the_script():
    changing(lambda param, scale: param.grad.data.clamp_(-1, 1))


@mistake("AMP-D07", subject="0.weight")
def a_norm_limited_in_the_script():
    def clip(params, scale):
        factor = factor_of(params, 1.0)
        for param in params:
            param.grad.mul_(factor)

    clipping(clip)


@mistake("AMP-D07", subject="0.weight")
def each_norm_limited_in_the_script():
    changing(lambda param, scale: param.grad.mul_(float(1.0 / param.grad.norm())))


@mistake("AMP-D07", subject="a hook")
def elements_limited_by_a_hook():
    model = net()
    for param in model.parameters():
        param.register_hook(lambda grad: grad.clamp(-1, 1))
    scaled(model, adam(model), grad_scaler())


@mistake("AMP-D07", subject="clip_grad_norm_")
def a_clip_by_a_name_from_before():
    clipping(lambda params, scale: clip_grad_norm_(params, 1.0))


@mistake("AMP-D07")
def a_clip_of_values_by_a_name_from_before():
    clipping(lambda params, scale: clip_grad_value_(params, 1.0))


@right
def a_mean_over_ranks():
    changing(lambda param, scale: param.grad.div_(4))


@right
def a_mean_over_tokens():
    count = iter(range(100, 999))
    clipping(lambda params, scale: torch._foreach_mul_([param.grad for param in params], 100 / next(count)))


@right
def a_limit_with_the_scale():
    def clip(params, scale):
        factor = factor_of(params, 0.5 * scale)
        for param in params:
            param.grad.mul_(factor)

    clipping(clip)


@right
def rows_that_are_frozen():
    changing(lambda param, scale: param.grad[:1].zero_())


@right
def a_scaler_whose_division_the_script_does():
    model, scaler = net(), grad_scaler()
    optimizer = adam(model)
    for _ in range(STEPS):
        with half():
            value = loss_of(model, *batch())
        optimizer.zero_grad()
        scaler.scale(value).backward()
        for param in model.parameters():
            param.grad /= scaler.get_scale()
        optimizer.step()


@right
def a_clip_after_a_division_by_hand():
    model = net()
    optimizer, scaler = adam(model), grad_scaler()

    def divide(param):
        param.grad = param.grad * (1 / scaler.get_scale())

    def step():
        for param in model.parameters():
            divide(param)
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    for _ in range(STEPS):
        optimizer.zero_grad()
        with half():
            value = loss_of(model, *batch())
        scaler.scale(value).backward()
        step()


@mistake("AMP-D07", subject="clip_grad_norm_")
def a_clip_before_a_division_by_hand():
    model = net()
    optimizer, scaler = adam(model), grad_scaler()
    for _ in range(STEPS):
        optimizer.zero_grad()
        with half():
            value = loss_of(model, *batch())
        scaler.scale(value).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        for param in model.parameters():
            param.grad.div_(scaler.get_scale())
        optimizer.step()
