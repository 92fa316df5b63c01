# SPDX-License-Identifier: Apache-2.0
"""The functions of Apex's compiled module amp_C, with its calling convention, on libamp.kernels: on CPUs and CUDA.

Each takes (chunk_size, noop_flag, lists, ...). The chunk size is ignored. The flag is an integer tensor of one element.
A function sets it where a value is not finite, or does nothing where it is set, as its docstring says. Lists have equal
lengths, may mix types and may contain empty tensors. Moments are computed in FP32 and stored in their type. Gradients
are only read, except by adam_capturable. Nothing waits for the device, except to read a rate from a tensor on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from libamp.torch.optimizers.base import fused_step, number
from libamp.torch.optimizers.fused_novograd import inf_norm_step

from .. import kernels

_Lists = Sequence[Sequence[torch.Tensor]]


def _checked(lists: _Lists, *depths: int) -> list[list[torch.Tensor]]:
    if len(lists) not in depths:
        raise RuntimeError(f"amp_C: expected {' or '.join(map(str, depths))} lists of tensors, got {len(lists)}")
    if any(len(tensors) == 0 or len(tensors) != len(lists[0]) for tensors in lists):
        raise RuntimeError(f"amp_C: lists must be equally long and not empty, got {[len(t) for t in lists]}")
    return [list(tensors) for tensors in lists]


def _number(tensors: list[torch.Tensor], count: int = 1) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.float32, device=tensors[0].device)


def _set(flag: torch.Tensor, found: torch.Tensor) -> None:
    flag.copy_(torch.maximum(flag, found.to(flag.dtype).reshape(flag.shape)))


def _is_set(flag: torch.Tensor, device: torch.device) -> torch.Tensor:
    return (flag.reshape(-1)[:1] != 0).to(device=device, dtype=torch.float32)


def _scalar(value: Any, device: torch.device) -> Any:
    """Returns a tensor of one FP32 element as kernels take it, or the number itself."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.to(device=device, dtype=torch.float32).reshape(-1)[:1].contiguous()


# ---- scaling and norms ----


@torch.no_grad()
def multi_tensor_scale(chunk_size: int, noop_flag: torch.Tensor, lists: _Lists, scale: float) -> None:
    """Computes out = in * scale in FP32. Sets the flag if a result is not finite."""
    source, out = _checked(lists, 2)
    found = _number(source)
    kernels.scale(out, source, scale, found_inf=found)
    _set(noop_flag, found)


@torch.no_grad()
def multi_tensor_axpby(
    chunk_size: int, noop_flag: torch.Tensor, lists: _Lists, a: float, b: float, arg_to_check: int
) -> None:
    """Computes out = a * x + b * y in FP32. arg_to_check: sets the flag for x only (0), y only (1) or the result
    (-1)."""
    x, y, out = _checked(lists, 3)
    found = _number(x)
    if arg_to_check != -1:  # before out, which may be one of them
        kernels.check(x if arg_to_check == 0 else y, norm=_number(x), found_inf=found)
    kernels.axpby(out, a, x, b, y, found_inf=found if arg_to_check == -1 else _number(x))
    _set(noop_flag, found)


def _norms(
    noop_flag: torch.Tensor, tensors: list[torch.Tensor], scale: Any, per_tensor: bool | None
) -> tuple[torch.Tensor, torch.Tensor]:
    norm, found = _number(tensors), _number(tensors)
    norms = _number(tensors, len(tensors) if per_tensor else 0)
    kernels.check(tensors, scale, norm=norm, norms=norms if per_tensor else None, found_inf=found)
    _set(noop_flag, found)
    return norm, norms


@torch.no_grad()
def multi_tensor_l2norm(
    chunk_size: int, noop_flag: torch.Tensor, lists: _Lists, per_tensor: bool | None = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the L2 norm of all elements and, with per_tensor, of each tensor. Sets the flag if one is not finite."""
    (tensors,) = _checked(lists, 1)
    return _norms(noop_flag, tensors, 1.0, per_tensor)


multi_tensor_l2norm_mp = multi_tensor_l2norm


@torch.no_grad()
def multi_tensor_unscale_l2norm(
    chunk_size: int, noop_flag: torch.Tensor, lists: _Lists, inv_scale: torch.Tensor, per_tensor: bool | None = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the norms of multi_tensor_l2norm for the elements times inv_scale, without writing them."""
    (tensors,) = _checked(lists, 1)
    return _norms(noop_flag, tensors, _scalar(inv_scale, tensors[0].device), per_tensor)


@torch.no_grad()
def multi_tensor_l2norm_scale(
    chunk_size: int, noop_flag: torch.Tensor, lists: _Lists, scale: float, per_tensor: bool | None = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes out = in * scale, and returns the norms of in."""
    source, out = _checked(lists, 2)
    norms = _norms(noop_flag, source, 1.0, per_tensor)
    kernels.scale(out, source, scale, found_inf=_number(source))
    return norms


# ---- optimizers ----


class _Moments:
    """FP32 copies of moments that are stored in 16 bits."""

    def __init__(self, **lists: list[torch.Tensor]) -> None:
        self.kept = lists
        self.wide = {name: [t.float() for t in tensors] for name, tensors in lists.items()}

    def store(self) -> None:
        for name, tensors in self.kept.items():
            for kept, wide in zip(tensors, self.wide[name], strict=True):
                if kept is not wide:
                    kept.copy_(wide)


def _step(rule: str, lists: list[Any], moments: _Moments, step: Any, low: Any = None, **numbers: Any) -> None:
    """Runs a step. `step` is its number, 1 for the first, as in Apex. A tensor remains on the device."""
    grads, params = lists
    if isinstance(step, torch.Tensor):
        step = step.reshape(-1)[:1].to(device=params[0].device, dtype=torch.int64) - 1
    else:
        step = step - 1
    fused_step(rule, params, grads, moments.wide, step, low, **numbers)
    moments.store()


@torch.no_grad()
def multi_tensor_sgd(
    chunk_size: int,
    noop_flag: torch.Tensor,
    lists: _Lists,
    wd: float,
    momentum: float,
    dampening: float,
    lr: float,
    nesterov: bool,
    first_run: bool,
    wd_after_momentum: bool,
    scale: float,
) -> None:
    """Steps SGD. Lists: gradients, weights, momenta[, 16-bit copies of the weights]. scale: factor of the gradients.
    Does nothing if the flag is set."""
    checked = _checked(lists, 3, 4)
    grads, params, buffers = checked[:3]
    moments = _Moments(momentum_buffer=buffers) if momentum != 0 else _Moments()
    _step(
        "sgd",
        [grads, params],
        moments,
        1 if first_run else 2,
        checked[3] if len(checked) == 4 else None,
        lr=number(lr),
        momentum=momentum,
        dampening=dampening,
        weight_decay=wd,
        nesterov=bool(nesterov),
        decay_after_momentum=bool(wd_after_momentum),
        inv_scale=scale,
        found_inf=_is_set(noop_flag, params[0].device),
    )


def _numbers(lr: Any, beta1: float, beta2: float, eps: float, decay: float, **switches: Any) -> dict[str, Any]:
    given = {name: bool(value) for name, value in switches.items()}
    return {"lr": number(lr), "betas": (beta1, beta2), "eps": eps, "weight_decay": decay, **given}


def _step_two(rule: str, lists: list[Any], step: Any, numbers: dict[str, Any], low: Any = None) -> None:
    """Steps a rule with Adam's two moments."""
    grads, params, exp_avg, exp_avg_sq = lists
    _step(rule, [grads, params], _Moments(exp_avg=exp_avg, exp_avg_sq=exp_avg_sq), step, low, **numbers)


@torch.no_grad()
def multi_tensor_adam(
    chunk_size: int,
    noop_flag: torch.Tensor,
    lists: _Lists,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    step: int,
    mode: int,
    bias_correction: int,
    weight_decay: float,
) -> None:
    """Steps Adam (mode 0) or AdamW (mode 1). Lists: gradients, weights, exp_avg, exp_avg_sq. Ignores the flag."""
    numbers = _numbers(lr, beta1, beta2, eps, weight_decay, bias_correction=bias_correction)
    _step_two("adam" if mode == 0 else "adamw", _checked(lists, 4), step, numbers)


@torch.no_grad()
def multi_tensor_adam_capturable(
    chunk_size: int,
    noop_flag: torch.Tensor,
    lists: _Lists,
    lr: torch.Tensor,
    beta1: float,
    beta2: float,
    eps: float,
    step: torch.Tensor,
    mode: int,
    bias_correction: int,
    weight_decay: float,
    inv_scale: torch.Tensor,
) -> None:
    """Steps as multi_tensor_adam, with numbers in tensors. Unscales the gradients. Does nothing if the flag is set."""
    grads, params, exp_avg, exp_avg_sq, *masters = _checked(lists, 4, 5)
    device = params[0].device
    flag, factor = _is_set(noop_flag, device), _scalar(inv_scale, device)
    numbers = _numbers(lr, beta1, beta2, eps, weight_decay, bias_correction=bias_correction)
    numbers.update(inv_scale=factor, found_inf=flag)
    stepped, low = (masters[0], params) if masters else (params, None)
    moved = [grads, stepped, exp_avg, exp_avg_sq]
    _step_two("adam" if mode == 0 else "adamw", moved, step, numbers, _copies(low))
    _copy_wide(low, stepped)
    keep = torch.where(flag != 0, torch.ones_like(factor), factor)
    kernels.scale(grads, grads, keep, found_inf=_number(grads))


multi_tensor_adam_capturable_master = multi_tensor_adam_capturable


def _copies(low: list[torch.Tensor] | None) -> list[torch.Tensor | None] | None:
    """Returns the 16-bit copies, which the kernels write. _copy_wide writes the others."""
    return low and [None if tensor.dtype == torch.float32 else tensor for tensor in low]


def _copy_wide(low: list[torch.Tensor] | None, masters: list[torch.Tensor]) -> None:
    for tensor, master in zip(low or (), masters, strict=False):
        if tensor.dtype == torch.float32:
            tensor.copy_(master)


@torch.no_grad()
def multi_tensor_adagrad(
    chunk_size: int, noop_flag: torch.Tensor, lists: _Lists, lr: float, eps: float, mode: int, weight_decay: float
) -> None:
    """Steps Adagrad. Lists: gradients, weights, sums. mode 1: decoupled weight decay. Ignores the flag."""
    grads, params, sums = _checked(lists, 3)
    numbers = {"lr": number(lr), "eps": eps, "weight_decay": weight_decay, "decoupled": mode == 1}
    _step("adagrad", [grads, params], _Moments(sum=sums), 1, **numbers)


@torch.no_grad()
def multi_tensor_novograd(
    chunk_size: int,
    noop_flag: torch.Tensor,
    lists: _Lists,
    grad_norms: torch.Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    step: int,
    bias_correction: int,
    weight_decay: float,
    grad_averaging: int,
    mode: int,
    norm_type: int,
) -> None:
    """Steps NovoGrad. Lists: gradients, weights, exp_avg.

    grad_norms: a running norm for each tensor. mode 0: weight decay inside the moment. norm_type: 2, or 0 for the
    largest element. Ignores the flag.
    """
    grads, params, exp_avg = _checked(lists, 3)
    switches = {"bias_correction": bias_correction, "grad_averaging": grad_averaging}
    numbers = _numbers(lr, beta1, beta2, eps, weight_decay, **switches)
    moments = _Moments(exp_avg=exp_avg)
    moments.wide["exp_avg_sq"] = [norm.reshape(1) for norm in grad_norms.unbind()]
    if norm_type == 0:
        inf_norm_step(params, grads, moments.wide, [False] * len(params), step - 1, mode, numbers)
        moments.store()
        return
    _step("novograd", [grads, params], moments, step, decoupled=mode == 1, init_zero=True, **numbers)


@torch.no_grad()
def multi_tensor_lamb(
    chunk_size: int,
    noop_flag: torch.Tensor,
    lists: _Lists,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    step: int,
    bias_correction: int,
    weight_decay: float,
    grad_averaging: int,
    mode: int,
    global_grad_norm: torch.Tensor,
    max_grad_norm: float,
    use_nvlamb: bool | None = False,
) -> None:
    """Steps LAMB. Lists: gradients, weights, exp_avg, exp_avg_sq. mode 1: decoupled weight decay. Ignores the flag."""
    checked = _checked(lists, 4)
    switches = {"bias_correction": bias_correction, "grad_averaging": grad_averaging, "nvlamb": use_nvlamb}
    numbers = _numbers(lr, beta1, beta2, eps, weight_decay, decoupled=mode == 1, **switches)
    numbers.update(max_grad_norm=float(max_grad_norm), grad_norm=_scalar(global_grad_norm, checked[1][0].device))
    _step_two("lamb", checked, step, numbers)


@torch.no_grad()
def multi_tensor_lamb_mp(
    chunk_size: int,
    noop_flag: torch.Tensor,
    lists: _Lists,
    lr: torch.Tensor,
    beta1: float,
    beta2: float,
    eps: float,
    step: torch.Tensor,
    bias_correction: int,
    weight_decay: float,
    grad_averaging: int,
    mode: int,
    global_grad_norm: torch.Tensor,
    max_grad_norm: torch.Tensor,
    use_nvlamb: bool | None,
    found_inf: torch.Tensor,
    inv_scale: torch.Tensor,
) -> None:
    """Steps as multi_tensor_lamb, with numbers in tensors and a fifth list, 16-bit copies of the weights. Norm and
    limit are those of the scaled gradients. Does nothing if found_inf or the flag is set."""
    checked = _checked(lists, 4, 5)
    device = checked[1][0].device
    switches = {"bias_correction": bias_correction, "grad_averaging": grad_averaging, "nvlamb": use_nvlamb}
    numbers = _numbers(lr, beta1, beta2, eps, weight_decay, decoupled=mode == 1, **switches)
    norm, limit = _scalar(global_grad_norm, device), torch.as_tensor(max_grad_norm, device=device).float().reshape(1)
    # The limit is on the device, but the kernel needs a number: with the norm in units of the limit it is 1.
    numbers.update(max_grad_norm=1.0, grad_norm=torch.where(limit > 0, norm / limit, torch.zeros_like(norm)))
    skip = torch.maximum(_is_set(noop_flag, device), (_scalar(found_inf, device) != 0).float())
    numbers.update(inv_scale=_scalar(inv_scale, device), found_inf=skip)
    low = checked[4] if len(checked) == 5 else None
    _step_two("lamb", checked[:4], step, numbers, _copies(low))
    _copy_wide(low, checked[1])


# ---- LAMB in two stages, as in NVIDIA's BERT: the caller computes the norms between them ----


@torch.no_grad()
def multi_tensor_lamb_stage1_cuda(
    chunk_size: int,
    noop_flag: torch.Tensor,
    lists: _Lists,
    per_tensor_decay: torch.Tensor,
    step: int,
    beta1: float,
    beta2: float,
    epsilon: float,
    global_grad_norm: Any,
    max_global_grad_norm: float,
) -> None:
    """Computes the updates of LAMB. Lists: gradients, weights, exp_avg, exp_avg_sq, updates.

    The moments follow the gradients, which are limited to their maximum norm. update = m / (1 - beta1^t) / (sqrt(v / (1
    - beta2^t)) + epsilon) + decay * weight, where t = step + 1. Ignores the flag.
    """
    grads, params, exp_avg, exp_avg_sq, updates = _checked(lists, 5)
    norm = torch.as_tensor(global_grad_norm, dtype=torch.float32, device=params[0].device).reshape(1)
    factor = torch.where(norm > max_global_grad_norm, max_global_grad_norm / norm, torch.ones_like(norm))
    clipped = [torch.empty_like(grad, dtype=torch.float32) for grad in grads]
    kernels.scale(clipped, grads, factor, found_inf=_number(grads))
    moments = _Moments(m=exp_avg, v=exp_avg_sq)
    m, v = moments.wide["m"], moments.wide["v"]
    torch._foreach_mul_(m, beta1)
    torch._foreach_add_(m, clipped, alpha=1 - beta1)
    torch._foreach_mul_(v, beta2)
    torch._foreach_addcmul_(v, clipped, clipped, value=1 - beta2)
    moments.store()
    root = torch._foreach_sqrt(torch._foreach_div(v, 1 - beta2 ** (step + 1)))
    torch._foreach_add_(root, epsilon)
    ratio = torch._foreach_div(torch._foreach_div(m, 1 - beta1 ** (step + 1)), root)
    for update, new, param, decay in zip(updates, ratio, params, per_tensor_decay.unbind(), strict=True):
        update.copy_(new + decay * param.float())


@torch.no_grad()
def multi_tensor_lamb_stage2_cuda(
    chunk_size: int,
    noop_flag: torch.Tensor,
    lists: _Lists,
    per_tensor_param_norm: torch.Tensor,
    per_tensor_update_norm: torch.Tensor,
    lr: Any,
    weight_decay: float | None = None,
    use_nvlamb: bool | None = False,
) -> None:
    """Applies the updates of LAMB. Lists: weights, updates.

    weight -= lr * |weight| / |update| * update. The factor is lr alone where a norm is 0, or where weight_decay is 0
    without use_nvlamb. Without the argument weight_decay, as in the kernel until 2020, every weight has the ratio.
    Ignores the flag.
    """
    params, updates = _checked(lists, 2)
    param_norm, update_norm = per_tensor_param_norm.float(), per_tensor_update_norm.float()
    rates = torch.full_like(param_norm, number(lr))
    if use_nvlamb or weight_decay != 0:
        rates = torch.where((param_norm != 0) & (update_norm != 0), rates * (param_norm / update_norm), rates)
    for param, update, rate in zip(params, updates, rates.unbind(), strict=True):
        param.copy_(param.float() - rate * update.float())


# ---- the loss scale ----


@torch.no_grad()
def update_scale_hysteresis(
    current_scale: torch.Tensor,
    growth_tracker: torch.Tensor,
    hysteresis_tracker: torch.Tensor,
    found_inf: torch.Tensor,
    growth_factor: float,
    backoff_factor: float,
    growth_interval: int,
    hysteresis: int,
) -> torch.Tensor:
    """Updates a loss scale that tolerates `hysteresis` - 1 overflows before it backs off, and then backs off at each
    further one until a step without overflow. Works in place and returns current_scale."""
    inf = found_inf.to(current_scale.device).reshape(current_scale.shape) > 0
    left = hysteresis_tracker - inf.to(hysteresis_tracker.dtype)
    grown = growth_tracker + 1
    grows = ~inf & (grown == growth_interval)
    # doubles, as in the kernel: torch would round them before a product with an FP32 tensor
    exact = current_scale.double()
    larger, smaller = ((exact * factor).to(current_scale.dtype) for factor in (growth_factor, backoff_factor))
    kept = torch.where(grows & torch.isfinite(larger), larger, current_scale)
    current_scale.copy_(torch.where(inf & (left <= 0), smaller, kept))
    growth_tracker.copy_(torch.where(inf | grows, torch.zeros_like(grown), grown))
    hysteresis_tracker.copy_(torch.where(inf, left, torch.full_like(left, hysteresis)))
    return current_scale
