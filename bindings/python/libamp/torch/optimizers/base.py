# SPDX-License-Identifier: Apache-2.0
"""Base of the fused optimizers. It collects the tensors of a group into lists for one call of libamp.kernels."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ... import ArgumentError, kernels
from .. import _torch_ops
from .._devices import is_served
from .._dtensors import complete, elements_before, is_cut, is_dtensor, local_part

_TYPES = (torch.float32, torch.float16, torch.bfloat16)

_known: Any = WeakIdKeyDictionary()  # tensor -> its version and its number


def number(value: Any) -> float:
    """Returns a rate as a float. A tensor is read once for each version, because on CUDA the read waits, which a
    captured step must not do."""
    if not isinstance(value, torch.Tensor):
        return float(value)
    known = _known.get(value)
    if known is None or known[0] != value._version:
        known = _known[value] = (value._version, float(value))
    return known[1]


def loss_of(closure: Callable[[], Any] | None) -> Any:
    """Returns the result of the closure, None without one."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


_SWITCHES = ("bias_correction", "grad_averaging", "nesterov")


def numbers_of(group: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Returns the rate and the group's numbers that the kernel takes by the same names."""
    numbers = {name: bool(group[name]) if name in _SWITCHES else group[name] for name in names}
    return {"lr": number(group["lr"]), **numbers}


def apexs_arguments(
    function: str, names: tuple[str, ...], given: tuple[Any, ...], named: dict[str, Any]
) -> dict[str, Any]:
    """Returns Apex's arguments, which no signature may show: torch's GradScaler passes itself to a step with a
    parameter grad_scaler, instead of setting grad_scale and found_inf. Raises TypeError for an unknown argument."""
    if len(given) > len(names):
        raise TypeError(f"{function}() takes at most {len(names) + 1} arguments, and {len(given) + 1} were given")
    values = dict.fromkeys(names, None)
    for name, value in (*zip(names, given, strict=False), *named.items()):
        if name not in values:
            raise TypeError(f"{function}() got an unexpected keyword argument '{name}'")
        values[name] = value
    return values


def _lie_as(param: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """Returns the gradient in the layout of its parameter. The remainder has that layout and is not copied."""
    return grad if grad.stride() == param.stride() else torch.empty_like(param, dtype=grad.dtype).copy_(grad)


def _local_parts(
    params: list[torch.Tensor], grads: list[torch.Tensor], state: dict[str, list[torch.Tensor]]
) -> tuple[list[torch.Tensor], list[torch.Tensor], dict[str, list[torch.Tensor]]]:
    """Returns the lists with the elements of this rank in place of DTensors."""
    grads = [complete(grad, param) for grad, param in zip(grads, params, strict=True)]
    return (
        list(map(local_part, params)), list(map(local_part, grads)),
        {name: list(map(local_part, tensors)) for name, tensors in state.items()},
    )


def _random_numbers(params: list[torch.Tensor], keys: list[int] | None) -> dict[str, Any]:
    """Returns the arguments of the kernel's random numbers: the keys of master_weights="stochastic" in place of those
    given, and the elements of the whole parameter before each shard."""
    made: dict[str, Any] = {}
    if [param for param in params if hasattr(param, "_amp_random_key")]:
        from ..amp.stochastic_weights import keys_of

        keys = keys_of(params, keys)
        made = {"keys": keys, "stochastic": True}
    if keys is not None and any(map(is_dtensor, params)):
        made["before"] = list(map(elements_before, params))
    return made


def fused_step(
    rule: Any,
    params: list[torch.Tensor],
    grads: list[torch.Tensor],
    state: dict[str, list[torch.Tensor]],
    steps: Any,
    model_params: list[torch.Tensor | None] | None = None,
    **numbers: Any,
) -> None:
    """Calls kernels.optimizer_step, which needs tensors of one device and layout. Other tensors are stepped device by
    device."""
    numbers.update(_random_numbers(params, numbers.get("keys")))
    if any(map(is_dtensor, params)):
        params, grads, state = _local_parts(params, grads, state)
    if not params:
        return
    if is_served(params[0].device):
        _step_served(rule, {"params": params, "grads": grads, "model_params": model_params, **state}, steps, numbers)
        return
    remainders: list[Any] = []
    if [param for param in params if hasattr(param, "_amp_remainder")]:  # master_weights="split"
        from ..amp.split_masters import remainder_of

        remainders = [remainder_of(param) for param in params]
        numbers["remainders"] = remainders
    if remainders or "keys" in numbers:
        grads = [_lie_as(param, grad) for param, grad in zip(params, grads, strict=True)]
    try:
        kernels.optimizer_step(rule, params, grads, state, steps=steps, model_params=model_params, **numbers)
    except ArgumentError:
        devices = {param.device for param in params}
        tensors = itertools.chain(params, grads, *state.values())
        if len(devices) == 1 and all(tensor is None or tensor.is_contiguous() for tensor in tensors):
            raise
        for device in devices:
            which = [i for i, param in enumerate(params) if param.device == device]
            own = steps if not isinstance(steps, torch.Tensor) else steps.to(device, copy=True)
            lists = {"params": params, "grads": grads, "model_params": model_params, "steps": own, **state}
            part = {n: [v[i] for i in which] if isinstance(v, list) else v for n, v in lists.items()}
            there = {n: v.to(device) if isinstance(v, torch.Tensor) else v for n, v in numbers.items()}
            for name in ("remainders", "keys", "before"):
                if name in there:
                    there[name] = [there[name][i] for i in which]
            _step_of_copies(rule, part, there)
        if isinstance(steps, torch.Tensor):
            steps.copy_(own)


def _part(lists: dict[str, Any], which: list[int]) -> dict[str, Any]:
    return {name: [values[i] for i in which] if isinstance(values, list) else values for name, values in lists.items()}


def _step_served(rule: Any, lists: dict[str, Any], steps: Any, numbers: dict[str, Any]) -> None:
    """Steps with torch's operators, device by device, with the same formulas and state. It never reads from the
    device."""
    params = lists["params"]
    for device in {param.device for param in params}:
        which = [i for i, param in enumerate(params) if param.device == device]
        whole = len(which) == len(params)
        part = lists if whole else _part(lists, which)
        there = {n: v.to(device) if isinstance(v, torch.Tensor) else v for n, v in numbers.items()}
        own = steps
        if not whole and isinstance(steps, torch.Tensor):
            own = steps.to(device, copy=True)
        elif not whole and isinstance(steps, list):
            own = [steps[i] for i in which]
        tensors = dict(part)
        state = {name: tensors.pop(name) for name in part if name not in ("params", "grads", "model_params")}
        _torch_ops.optimizer_step(
            rule, tensors["params"], tensors["grads"], state, steps=own, model_params=tensors["model_params"], **there
        )
    if isinstance(steps, torch.Tensor) and own is not steps:
        steps.copy_(own)


def _step_of_copies(rule: Any, lists: dict[str, Any], numbers: dict[str, Any]) -> None:
    """Steps row-major copies of parameters that are not row-major, with the tensors beside them, and writes the copies
    back. Moments in 8 bits are laid as their parameter, or row-major if it has gaps."""
    copies: list[tuple[torch.Tensor, torch.Tensor]] = []

    def compact(tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor) or tensor.is_contiguous():
            return tensor
        copies.append((tensor, tensor.detach().contiguous()))
        return copies[-1][1]

    def coded(i: int) -> bool:
        return "exp_avg_scale" in lists and lists["exp_avg_scale"][i] is not None

    steps, params, grads, model_params = (lists.pop(name) for name in ("steps", "params", "grads", "model_params"))
    stay = [coded(i) and lists["exp_avg"][i].stride() == param.stride() for i, param in enumerate(params)]

    def each(tensors: list[Any]) -> list[Any]:
        return [tensor if stays else compact(tensor) for tensor, stays in zip(tensors, stay, strict=True)]

    grads = [grad if stays else grad.contiguous() for grad, stays in zip(grads, stay, strict=True)]
    params = each(params)
    model_params = model_params and each(model_params)
    state = {name: each(tensors) for name, tensors in lists.items()}
    kernels.optimizer_step(rule, params, grads, state, steps=steps, model_params=model_params, **numbers)
    for tensor, copy in copies:
        tensor.copy_(copy)


class FusedOptimizer(torch.optim.Optimizer):
    """Base class. A step is one call of a C kernel for each group, for FP32, FP16 and BF16 parameters in any mixture,
    on CPUs and CUDA.

    Moments are FP32. Gradients are only read, except by FusedAdam(capturable=True) after GradScaler (grad_scaler.py). A
    step never waits for a GPU. Each group counts its steps in a number, or in a GPU tensor once only the GPU knows
    whether to skip (amp with a dynamic loss scale).
    """

    _kernels: tuple[str, ...] = ()  # functions of amp_C that classes derived from Apex's call by these names
    _moments: tuple[str, ...] = ()  # names of moments with the shape of the parameter
    _arguments: tuple[str, ...] = ("betas", "eps", "weight_decay", "bias_correction")  # kernel arguments in the groups
    _needs_norms = False  # of whole tensors
    _counts = True  # steps are counted in the groups
    _attributes: tuple[str, ...] = ("set_grad_none",)  # attributes in a pickle

    def __init__(self, params: Any, defaults: dict[str, Any], set_grad_none: bool) -> None:
        self.set_grad_none = set_grad_none
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group. Raises RuntimeError for shards if the step needs norms of whole tensors."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        if (self._needs_norms or group.get("max_grad_norm")) and any(map(is_cut, group["params"])):
            raise RuntimeError(
                f"{type(self).__name__} needs norms of whole tensors, and other ranks have a part of these parameters: "
                "use FusedAdam or FusedSGD, and torch.nn.utils.clip_grad_norm_ as a limit"
            )

    def _refuse_amsgrad(self, amsgrad: bool) -> None:
        if amsgrad:
            raise RuntimeError(f"{type(self).__name__} has no AMSGrad variant")

    def __getattr__(self, name: str) -> Any:
        if name in self._kernels:
            return getattr(importlib.import_module("libamp.torch.amp_C"), name)
        if name == "_dummy_overflow_buf":
            device = self.param_groups[0]["params"][0].device
            self._dummy_overflow_buf = torch.zeros(1, dtype=torch.int32, device=device)
            return self._dummy_overflow_buf
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), **{name: getattr(self, name) for name in self._attributes}}

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Clears the gradients. set_to_none: None for the set_grad_none of the constructor."""
        super().zero_grad(set_to_none=self.set_grad_none if set_to_none is None else set_to_none)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Runs the closure, if there is one, then steps all groups. Returns the result of the closure."""
        loss = loss_of(closure)
        self._step_all()
        return loss

    def _step_all(self) -> None:
        for group in self.param_groups:
            self._step_group(group)

    def _step_group(self, group: dict[str, Any]) -> None:
        raise NotImplementedError

    def _numbers(self, group: dict[str, Any]) -> dict[str, Any]:
        """Returns the kernel's arguments that are equal for all parameters of a group."""
        return numbers_of(group, self._arguments)

    def _begins(self, group: dict[str, Any]) -> bool:
        """Returns True if this is a parameter's first step and the kernel treats it differently from one after a
        skip."""
        return False

    @property
    def _found_inf(self) -> torch.Tensor | None:
        """Returns amp's flag on the GPU during its step. Nonzero means skip."""
        return vars(self).get("found_inf")

    def _flag(self) -> dict[str, Any]:
        """Returns the flag as the kernel's argument."""
        found_inf = self._found_inf
        return {} if found_inf is None else {"found_inf": found_inf.reshape(1)}

    def _count_if_random(self, group: dict[str, Any], params: list[torch.Tensor]) -> Any:
        """Returns the number of this step of a rule that needs it for random numbers only, after adding it to the
        group's count. 1 without such numbers: steps are not counted."""
        if not any(hasattr(param, "_amp_random_key") for param in params):
            return 1
        return self._count(group, params, by_kernel=False) + 1

    def _count(self, group: dict[str, Any], params: list[torch.Tensor], by_kernel: bool = True) -> Any:
        """Returns the number of steps of the group and then adds one. by_kernel: the kernel advances a tensor."""
        before = group.get("step", 0)
        found_inf = self._found_inf
        counted = isinstance(before, torch.Tensor) and before.device.type != "cpu"
        if found_inf is None and not counted:
            group["step"] = int(before) + 1
            return int(before)
        there = params[0] if params else before if found_inf is None else found_inf
        step = self._step_tensor(group, there.device)
        if by_kernel and params:
            return step
        had = step.clone()
        step.add_(1 if found_inf is None else (found_inf == 0).to(step))
        return had

    @staticmethod
    def _step_tensor(group: dict[str, Any], device: torch.device) -> torch.Tensor:
        """Returns group["step"] as a tensor on the device. It remains the same tensor, because a captured graph reads
        and writes it."""
        step = group.get("step", 0)
        if not isinstance(step, torch.Tensor):
            step = torch.full((1,), int(step), dtype=torch.int64, device=device)  # made there: a copy would wait
        step = step.to(device, torch.int64).reshape(1)
        if step is not group.get("step"):
            group["step"] = step
        return step

    def state_dict(self) -> dict[str, Any]:
        """Returns the state. Step counts are numbers, as in Apex, unless the caller asked for tensors (capturable)."""
        state = super().state_dict()
        asked = getattr(self, "capturable", not vars(type(self)).get("_skips_by_flag", False))
        for group in state["param_groups"]:
            if isinstance(group.get("step"), torch.Tensor) and not asked:
                group["step"] = int(group["step"])
        return state

    def _lists(self, group: dict[str, Any]) -> tuple[list[torch.Tensor], list[torch.Tensor], list[dict[str, Any]]]:
        """Returns the parameters with gradients, their gradients and their states."""
        params, grads, states = [], [], []
        for param in group["params"]:
            grad = param.grad
            if grad is None:
                continue
            state = self.state[param]
            if not state:
                self._begin(param, state, group)
            if grad.is_sparse:
                raise RuntimeError(f"{type(self).__name__} does not support sparse gradients")
            params.append(param)
            grads.append(grad)
            states.append(state)
        return params, grads, states

    def _begin(self, param: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Initializes the moments to zero."""
        if param.dtype not in _TYPES:
            raise RuntimeError(f"{type(self).__name__} has kernels for fp16, bf16 and fp32, not for {param.dtype}")
        for name in self._moments:
            state[name] = torch.zeros_like(param, dtype=torch.float32)

    def _step_of(self, group: dict[str, Any], states: dict[int, Any]) -> int | None:
        """Returns the step count of a group that an optimizer of torch saved. None if the group has its own count or
        there is none."""
        mine = [states[index] for index in group["params"] if index in states]
        counts = {int(state["step"]) for state in mine if "step" in state}
        other = [name for name in ("amsgrad", "maximize", "lr_decay") if group.get(name) and name not in self.defaults]
        if other:
            raise RuntimeError(f"{type(self).__name__} has no {other[0]}, which the saved state was made with")
        if "step" in group or not counts:
            return None
        if len(counts) > 1:
            raise RuntimeError(
                f"{type(self).__name__} counts steps by group, and parameters of one saved group have had "
                f"{min(counts)} to {max(counts)}: put those of one count into a group of their own"
            )
        return counts.pop()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the state of this optimizer or of torch's own one. torch casts floating state to the type of the
        parameter, here moments remain FP32. torch counts the steps of each parameter, here the group has the count.
        Raises RuntimeError if the parameters of a group have different counts, or for an option that this optimizer
        lacks."""
        steps = [self._step_of(group, state_dict["state"]) for group in state_dict["param_groups"]]
        had = [self.defaults.keys() & group.keys() for group in self.param_groups]
        super().load_state_dict(state_dict)
        for group, names, step in zip(self.param_groups, had, steps, strict=True):
            for name in sorted(names - group.keys()):
                group[name] = self.defaults[name]
            if step is not None and self._counts:
                group["step"] = step
        saved = [index for group in state_dict["param_groups"] for index in group["params"]]
        params = [param for group in self.param_groups for param in group["params"]]
        for index, param in zip(saved, params, strict=True):
            for name, value in state_dict["state"].get(index, {}).items():
                if isinstance(value, torch.Tensor) and value.is_floating_point():
                    place = torch.empty_like(param, dtype=torch.float32) if value.shape == param.shape else None
                    self.state[param][name] = _fp32_at(value, param, place)
        for group, step in zip(self.param_groups, steps, strict=True):
            for param in group["params"] if step is not None else ():
                self.state.get(param, {}).pop("step", None)


def _fp32_at(value: torch.Tensor, param: torch.Tensor, place: torch.Tensor | None) -> torch.Tensor:
    if place is None:
        return value.detach().to(device=param.device, dtype=torch.float32, copy=True)
    return place.detach().copy_(value.detach())


def masters_of(params: list[torch.Tensor], states: list[dict[str, Any]]) -> tuple[list[torch.Tensor], list[Any]]:
    """Returns the tensors to step (masters where there are some) and the parameters to round from them, None without a
    master."""
    masters = [state.get("master_param", param) for param, state in zip(params, states, strict=True)]
    return masters, [None if master is param else param for master, param in zip(masters, params, strict=True)]


def of_each(states: Iterable[dict[str, Any]], *names: str) -> dict[str, list[torch.Tensor]]:
    states = list(states)
    try:
        return {name: [state[name] for state in states] for name in names}
    except KeyError as error:
        has = next(sorted(state) for state in states if not state.keys() >= set(names))
        raise RuntimeError(
            f"the state of a parameter has no {error}, but has {', '.join(has)}: it was loaded "
            "from a state_dict that is not whole, or of another optimizer"
        ) from None
