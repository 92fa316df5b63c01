# SPDX-License-Identifier: Apache-2.0
"""Small trainings for test_doctor_finds with weights in bf16: optimizers that lose small updates, and those whose
updates arrive in the mean."""
import torch
from doctor_trainings import mistake, net, plain, right


class Rule(torch.optim.Optimizer):
    """update(param, state, group) is what a step adds to a weight, in FP32. write(param, update, state) adds it."""

    def __init__(self, params, lr, update, write):
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99)})
        self.update, self.write = update, write

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for param in group["params"]:
                state = self.state[param]
                state["step"] = state.get("step", 0) + 1
                self.write(param, self.update(param, state, group), state)


def moments(param, state, group):
    """Adam's."""
    beta, gamma = group["betas"]
    grad = param.grad.float()
    first = state.setdefault("exp_avg", torch.zeros_like(grad)).lerp_(grad, 1 - beta)
    second = state.setdefault("exp_avg_sq", torch.zeros_like(grad)).lerp_(grad * grad, 1 - gamma)
    first, second = first / (1 - beta ** state["step"]), second / (1 - gamma ** state["step"])
    return -group["lr"] * first / (second.sqrt() + 1e-8)


def signs(param, state, group):
    """Lion's."""
    average = state.setdefault("exp_avg", torch.zeros_like(param, dtype=torch.float32))
    update = average.lerp(param.grad.float(), 0.1).sign()
    average.lerp_(param.grad.float(), 0.01)
    return -group["lr"] * update


def nearest(param, update, state):
    param.copy_(param.float() + update)


def at_random(param, update, state):
    bits = (param.float() + update).view(torch.int32)
    bits += torch.randint_like(bits, 1 << 16)
    param.copy_((bits & -(1 << 16)).view(torch.float32))


def with_rests(param, update, state):
    """Kahan's sum, by a name of its own."""
    rest = state.setdefault("c", torch.zeros_like(update)).add_(update)
    moved = (param.float() + rest).to(param.dtype)
    rest.sub_(moved.float() - param.float())
    param.copy_(moved)


def stepped(make, steps=40):
    """Trains in bfloat16 with make(parameters)."""
    model = net(torch.bfloat16)
    plain(model, make(model.parameters()), steps, dtype=torch.bfloat16)


def trained(rate, update, write, steps=40):
    stepped(lambda params: Rule(params, rate, update, write), steps)


@mistake("AMP-D01", subject="1.weight")
def adam_to_nearest():
    trained(1e-4, moments, nearest)


@mistake("AMP-D01", subject="1.weight")
def lion_to_nearest():
    trained(1e-4, signs, nearest)


@mistake("AMP-D01", subject="1.weight")
def rmsprop_in_bf16():
    stepped(lambda params: torch.optim.RMSprop(params, 1e-4))


@mistake("AMP-D01", subject="1.weight")
def signs_of_gradients_in_bf16():
    trained(1e-4, lambda param, state, group: -group["lr"] * param.grad.float().sign(), nearest)


@mistake("AMP-D01", subject="1.weight")
def descent_in_bf16():
    stepped(lambda params: torch.optim.SGD(params, 2e-2))


@mistake("AMP-D01", subject="1.weight")
def momentum_in_bf16():
    stepped(lambda params: torch.optim.SGD(params, 2e-3, momentum=0.9))


@right
def adam_at_random():
    trained(1e-4, moments, at_random)


@right
def lion_at_random():
    trained(1e-4, signs, at_random)


@right
def descent_at_random():
    trained(2e-2, lambda param, state, group: -group["lr"] * param.grad.float(), at_random)


@right
def adam_with_rests():
    trained(1e-4, moments, with_rests, 60)


@right
def momentum_at_random():
    def update(param, state, group):
        buffer = state.setdefault("momentum_buffer", torch.zeros_like(param, dtype=torch.float32))
        return -group["lr"] * buffer.mul_(0.9).add_(param.grad.float())

    trained(2e-3, update, at_random)
