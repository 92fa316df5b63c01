# SPDX-License-Identifier: Apache-2.0
"""How scripts of Apex's construct its optimizers: arguments in its order, groups with settings of their own."""

import contextlib
import inspect

import pytest
import torch
from libamp.torch import optimizers as fused
from libamp.torch.contrib import optimizers as contrib
from libamp.torch.fp16_utils import FP16_Optimizer
from libamp.torch.parallel.LARC import LARC
from torch import nn
from torch.optim.optimizer import required

NEEDED = inspect.Parameter.empty
REQUIRED = required
SGD = {
    "params": NEEDED, "lr": REQUIRED, "momentum": 0, "dampening": 0, "weight_decay": 0, "nesterov": False,
    "wd_after_momentum": False, "materialize_master_grads": True,
}  # fmt: skip
LAMB = {
    "params": NEEDED, "lr": 1e-3, "bias_correction": True, "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.01,
    "amsgrad": False, "adam_w_mode": True, "grad_averaging": True, "set_grad_none": True, "max_grad_norm": 1.0,
}  # fmt: skip
# Apex's constructors (e13873de): names, order and defaults. What libamp has behind them may be passed by name.
APEX = {
    fused.FusedSGD: {**SGD, "set_grad_none": False},
    fused.FusedAdam: {
        "params": NEEDED, "lr": 1e-3, "bias_correction": True, "betas": (0.9, 0.999), "eps": 1e-8, "adam_w_mode": True,
        "weight_decay": 0.0, "amsgrad": False, "set_grad_none": True, "capturable": False, "master_weights": False,
    },
    fused.FusedLAMB: {**LAMB, "use_nvlamb": False},
    fused.FusedMixedPrecisionLamb: {
        "params": NEEDED, "lr": 1e-3, "step": 0, "bias_correction": True, "betas": (0.9, 0.999), "eps": 1e-6,
        "weight_decay": 0.01, "amsgrad": False, "adam_w_mode": True, "grad_averaging": True, "max_grad_norm": 1.0,
        "use_nvlamb": False, "reduced_precision_dtype": None,
    },
    fused.FusedNovoGrad: {
        "params": NEEDED, "lr": 1e-3, "bias_correction": True, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0,
        "amsgrad": False, "reg_inside_moment": False, "grad_averaging": True, "norm_type": 2, "init_zero": False,
        "set_grad_none": True,
    },
    fused.FusedAdagrad: {
        "params": NEEDED, "lr": 1e-2, "eps": 1e-10, "weight_decay": 0.0, "set_grad_none": True, "adagrad_w_mode": False,
    },
    contrib.FusedAdam: {
        "params": NEEDED, "lr": 1e-3, "bias_correction": True, "betas": (0.9, 0.999), "eps": 1e-8,
        "eps_inside_sqrt": False,
        "weight_decay": 0.0, "max_grad_norm": 0.0, "amsgrad": False, "use_mt": False, "amp_scale_adjustment": 1.0,
    },
    contrib.FusedLAMB: LAMB,
    contrib.FusedSGD: SGD,
    FP16_Optimizer: {
        "init_optimizer": NEEDED, "static_loss_scale": 1.0, "dynamic_loss_scale": False, "dynamic_loss_args": None,
        "verbose": True,
    },
    LARC: {"optimizer": NEEDED, "trust_coefficient": 0.02, "clip": True, "eps": 1e-8},
}  # fmt: skip
# What a group may have of its own, unlike the default.
OWN = {
    "lr": 0.25, "momentum": 0.5, "dampening": 0.25, "weight_decay": 0.125, "betas": (0.5, 0.75), "eps": 0.5,
    "bias_correction": False, "grad_averaging": False, "max_grad_norm": 0.5,
}  # fmt: skip
FUSED = [make for make in APEX if issubclass(make, torch.optim.Optimizer)]


@pytest.mark.parametrize("make", APEX, ids=lambda make: f"{make.__module__.split('.')[2]}.{make.__name__}")
def test_arguments_are_apexs_in_its_order(make):
    found = {name: p.default for name, p in list(inspect.signature(make).parameters.items())[: len(APEX[make])]}
    assert list(found) == list(APEX[make])
    assert {name: bool(value == APEX[make][name]) for name, value in found.items()} == dict.fromkeys(found, True)


def stepped(groups, make, params, **kwargs):
    """The parameters after three steps."""
    optimizer = make(groups, **kwargs)
    for step in range(3):
        for param in params:
            param.grad = torch.linspace(-1, 2 + step, param.numel())
        optimizer.step()
    return [param.detach().clone() for param in params]


def one():
    return nn.Parameter(torch.linspace(0.5, 1.5, 5))


@pytest.mark.parametrize("make", FUSED, ids=lambda make: f"{make.__module__.split('.')[2]}.{make.__name__}")
def test_a_group_has_settings_of_its_own(make):
    base = {"lr": 0.5, "momentum": 0.9} if "momentum" in APEX[make] else {"lr": 0.5, "weight_decay": 0.01}
    tried = 0
    for name in OWN:
        if name not in APEX[make]:
            continue
        tried += 1
        param, other, twin = one(), one(), one()
        other.requires_grad_(False)
        groups = [{"params": [param], name: OWN[name]}]
        alone = {key: value for key, value in base.items() if key != name}
        if name == "lr" and make not in (fused.FusedSGD, contrib.FusedSGD):
            alone["lr"] = 77.0
        found = stepped(groups, make, [param], **alone)
        wanted = stepped([twin], make, [twin], **{**base, name: OWN[name]})
        assert torch.equal(found[0], wanted[0]), name
        assert not torch.equal(found[0], stepped([other], make, [other], **base)[0]), name
    assert tried >= 3


@pytest.mark.parametrize("make", [fused.FusedSGD, contrib.FusedSGD])
def test_a_rate_is_asked_for_where_no_group_has_one(make):
    with pytest.raises(ValueError, match="lr"):
        make([one()], momentum=0.9)
    with pytest.raises(ValueError, match="lr"):
        make([{"params": [one()], "lr": 0.5}, {"params": [one()]}])
    optimizer = make([{"params": [one()], "lr": 0.5}], momentum=0.9)
    with pytest.raises(ValueError, match="lr"):
        optimizer.add_param_group({"params": [one()]})


def test_a_group_of_mixed_precision_lamb_counts_from_its_own_step():
    params, rates = [one(), one(), one()], {"lr": 0.5, "max_grad_norm": 0.0}  # no norm of all groups together
    optimizer = fused.FusedMixedPrecisionLamb([{"params": params[:1], "step": 7}, {"params": params[1:2]}], **rates)
    late = fused.FusedMixedPrecisionLamb(params[2:], step=7, **rates)
    for param in params:
        param.grad = torch.linspace(0.5, 1, 5)
    optimizer.step()
    late.step()
    assert [int(group["step"]) for group in optimizer.param_groups] == [8, 1]
    assert torch.equal(params[0], params[2]) and not torch.equal(params[0], params[1])


def test_what_the_first_fused_adam_took():
    with pytest.raises(RuntimeError, match="eps_inside_sqrt"):
        contrib.FusedAdam([one()], 0.1, True, (0.9, 0.999), 1e-8, True)
    param, twin = one(), one()
    arguments = ([param], 0.1, True, (0.9, 0.999), 1e-8, False, 0.125, 0.5, False, True, 2.0)
    named = {"lr": 0.1, "weight_decay": 0.125, "max_grad_norm": 0.5}
    assert torch.equal(
        stepped(*[[param], lambda _: contrib.FusedAdam(*arguments), [param]])[0],
        stepped([twin], fused.FusedAdam, [twin], **named)[0],
    )
    assert not contrib.FusedAdam([one()], adam_w_mode=False).adam_w_mode  # today's, by name


@pytest.mark.parametrize("make, before", [(fused.FusedAdam, 4), (fused.FusedMixedPrecisionLamb, 0)])
def test_step_takes_a_grad_scaler_where_apexs_does(make, before):
    """A disabled one changes nothing; what is no scaler shows that it got there."""

    class Off:
        def is_enabled(self):
            return False

    optimizer = make([one()], **({"capturable": True} if make is fused.FusedAdam else {}))
    optimizer.param_groups[0]["params"][0].grad = torch.ones(5)
    places = [None] * (1 + before)  # the closure, and what the first FusedAdam had
    for scaler, met in ((Off(), contextlib.nullcontext()), (1, pytest.raises(AttributeError, match="is_enabled"))):
        with met:
            optimizer.step(*places, scaler)
    for scaler, met in ((Off(), contextlib.nullcontext()), (1, pytest.raises(AttributeError, match="is_enabled"))):
        with met:
            optimizer.step(grad_scaler=scaler)
    with pytest.raises(TypeError, match="gradients"):
        optimizer.step(gradients=None)
    with pytest.raises(TypeError, match="at most"):
        optimizer.step(*places, None, None)
