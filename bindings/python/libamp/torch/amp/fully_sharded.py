# SPDX-License-Identifier: Apache-2.0
"""Models of torch's fully_shard (FSDP2) at the levels with 16-bit models. The policy of each module casts weights while
they are gathered. The FP32 shards, which the optimizer steps, are the masters. With master_weights="stochastic" the
shards are bfloat16 weights without masters."""
from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from ... import _core
from ..._words import counted
from .._dtensors import is_dtensor
from . import bf16_switch, retype
from .properties import torch_type

_LOW = (torch.float16, torch.bfloat16)


# ---- the policy ----


def _policy_class() -> Any:
    try:
        from torch.distributed.fsdp import MixedPrecisionPolicy
    except ImportError:
        raise RuntimeError(
            f"amp.fsdp_policy needs torch.distributed.fsdp.fully_shard, which torch has from 2.6 on: this is "
            f"{torch.__version__}"
        ) from None
    return MixedPrecisionPolicy


def _is_kept_alone(module: nn.Module) -> bool:
    """Returns True for a batch norm that fully_shard has sharded by itself, with a policy of its own."""
    return retype.is_kept(module) and is_fsdp(module)


def _norms_of(modules: list[nn.Module]) -> dict[str, nn.Module]:
    """Returns the batch norms by name that a policy for these modules is for."""
    named = (entry for module in modules for entry in module.named_modules())
    return {name: each for name, each in named if retype.is_kept(each) and not _is_kept_alone(each)}


class _KeepNorms:
    """Tells fully_shard the types of single parameters: FP32 for those of batch norms, None for the policy's."""

    def __init__(self, norms: Iterable[nn.Module]) -> None:
        self._kept: Any = WeakIdKeyDictionary()
        for norm in norms:
            for param in norm.parameters(recurse=False):
                self._kept[param] = True

    def __call__(self, param: torch.Tensor) -> torch.dtype | None:
        return param.dtype if param in self._kept else None


def fsdp_policy(level: str, module: nn.Module | list[nn.Module] | None = None) -> Any:
    """Returns a level's MixedPrecisionPolicy for torch's fully_shard: fully_shard(module, mp_policy=amp.fsdp_policy(
    "O2")).

    Weights are gathered in the level's type: float16 at O2, bfloat16 at O5, FP32 at O0, O1 and O4. Gradients are
    reduced in FP32. Inputs and outputs are not cast at each module: initialize casts those of the whole model, as it
    does without shards, so that tables of positions which pass between modules stay FP32.

    level: an opt level with FP32 weights or masters, which O3 is not. module: the first argument of fully_shard. Its
    batch norms then stay FP32. Leave it out without batch norms, and with keep_batchnorm_fp32=False.

    Raises RuntimeError for another level, for a torch without fully_shard, and for a module around batch norms if this
    torch gives all parameters of a call one type.
    """
    kind = _policy_class()
    levels = _core.levels()
    if level not in levels:
        raise RuntimeError(f"fsdp_policy: opt_level is {level!r}, and must be one of {', '.join(map(repr, levels))}")
    level, _ = bf16_switch.read(level, None)
    resolved = _core.resolve(level, {})
    low = torch_type(resolved["cast_model_type"])
    if low in _LOW and not resolved["master_weights"]:
        raise RuntimeError(f"fsdp_policy: {_NO_MASTERS.format(level=level)}")
    low = low if low in _LOW else None
    settings: dict[str, Any] = {"reduce_dtype": torch.float32, "cast_forward_inputs": False}
    modules = [] if module is None or low is None else module if isinstance(module, list) else [module]
    norms = _norms_of(modules)
    if not norms:
        return kind(param_dtype=low, **settings)
    if list(norms.values()) == modules:
        return kind(**settings)
    if "param_dtype_override_fn" not in {field.name for field in dataclasses.fields(kind)}:
        raise RuntimeError(
            f"fsdp_policy: the batch norms of this module stay FP32 at {level}, and fully_shard of torch "
            f"{torch.__version__} gives all parameters of a call one type: shard {some(norms)} first, each by itself, "
            f'fully_shard(norm, mp_policy=amp.fsdp_policy("{level}", norm)), then the module'
        )
    return kind(param_dtype=low, param_dtype_override_fn=_KeepNorms(norms.values()), **settings)


# ---- torch's state of a sharded model ----


class Shard(NamedTuple):
    """A parameter that fully_shard manages: its name in the model, its module, the shard, the whole parameter that a
    forward shows in its place (None before the first), and its policy."""

    name: str
    module: nn.Module
    param: torch.Tensor
    whole: torch.Tensor | None
    policy: Any


def is_fsdp(module: Any) -> bool:
    """Returns True for a module that went through fully_shard."""
    return any(cls.__name__ == "FSDPModule" for cls in type(module).__mro__)


def _groups(model: nn.Module) -> Iterator[tuple[Any, Any]]:
    """Yields torch's state and parameter group of each call of fully_shard."""
    seen: set[int] = set()
    for module in model.modules():
        state: Any = module._get_fsdp_state() if is_fsdp(module) else None
        if state is None or id(state) in seen:
            continue
        seen.add(id(state))
        groups = getattr(state, "_fsdp_param_groups", None)  # a list in newer versions of torch
        for group in [state._fsdp_param_group] if groups is None else groups:
            if group is not None:
                yield state, group


def _shards(model: nn.Module) -> Iterator[Shard]:
    names = {id(module): name for name, module in model.named_modules(remove_duplicate=False)}
    for state, group in _groups(model):
        for each in group.fsdp_params:
            info = each._module_info
            path = names.get(id(info.module), "")
            name = f"{path}.{info.param_name}" if path else info.param_name
            policy = getattr(each, "mp_policy", None) or state._mp_policy
            yield Shard(name, info.module, each.sharded_param, getattr(each, "_unsharded_param", None), policy)


def groups_of(models: Iterable[nn.Module]) -> list[weakref.ref[Any]]:
    """Returns torch's groups of the parameters that are gathered and reduced together."""
    return [weakref.ref(group) for model in models for _, group in _groups(model)]


def keep_gradients(groups: list[weakref.ref[Any]]) -> bool:
    """Returns True if backward has left gradients in the groups: set_requires_gradient_sync(False), or for replicated
    shards set_requires_all_reduce(False)."""
    present = [group for group in (ref() for ref in groups) if group is not None]
    return any(not group.reduce_grads or not group.all_reduce_grads for group in present)


def reshard(model: nn.Module) -> None:
    """Puts the shards into the modules. After a forward the outermost ones show whole parameters."""
    for module in model.modules():
        if is_fsdp(module):
            module.reshard()


# ---- checks ----

_NO_MASTERS = (
    "{level} has 16-bit weights without FP32 masters, and the shards of fully_shard stay FP32 weights: use O2 (O5 for "
    "bfloat16), whose masters are these shards"
)


def some(names: Iterable[str]) -> str:
    """Returns the first three names, and the number of the others. The model itself has an empty name."""
    listed = list(names)
    rest = f" and {counted(len(listed) - 3, 'other')}" if len(listed) > 3 else ""
    return ", ".join(name or "the model" for name in listed[:3]) + rest


def _name(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")


def _reduced_in(policy: Any, wanted: torch.dtype) -> torch.dtype:
    """Returns the type in which gradients are reduced. torch before 2.15 takes that of the gathered weights."""
    if policy.reduce_dtype is not None:
        return policy.reduce_dtype
    newer = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 15)
    return torch.float32 if newer else wanted


def _level_of_policy(level: str, low: torch.dtype | None) -> str:
    """Returns the level for fsdp_policy: another one if cast_model_type overrides the level's type."""
    made = {each: _core.resolve(each, {}) for each in (level, *_core.levels())}
    fits = (each for each, has in made.items() if has["master_weights"] and torch_type(has["cast_model_type"]) is low)
    return level if low is None else next(fits, level)


def _type_problem(shard: Shard, resolved: dict[str, Any], level: str, stochastic: bool) -> str:
    """Returns what is wrong with the type of a shard."""
    low, dtype = _low(resolved), shard.param.dtype
    norm = resolved["keep_batchnorm_fp32"] and retype.is_kept(shard.module)
    if stochastic and low is not None:
        if norm and dtype is not torch.float32:
            return (
                f"of a batch norm, which stays FP32 at {level}, and sharded in {_name(dtype)}: call norm.float() and "
                "fully_shard on it, before fully_shard on the module around it"
            )
        return "" if norm or dtype is low else (
            f'sharded in {_name(dtype)}, and master_weights="stochastic" steps shards in {_name(low)}: call '
            f"model.to(torch.{_name(low)}) before fully_shard"
        )
    if dtype is torch.float32 or (dtype is low and not shard.param.requires_grad):
        return ""
    return (
        f"sharded in {_name(dtype)}, and the shards are the FP32 weights: call fully_shard on the FP32 model, "
        "without .half(), .bfloat16() or .to(dtype) before it"
    )


def _problem_of(shard: Shard, resolved: dict[str, Any], level: str, stochastic: bool) -> str:
    """Returns the first problem of a shard in words, or an empty string."""
    low, dtype = _low(resolved), shard.param.dtype
    made = shard.policy.param_dtype or dtype
    named = _level_of_policy(level, low)
    write = f'write fully_shard(module, mp_policy=amp.fsdp_policy("{named}"))'
    if not dtype.is_floating_point:
        return ""
    wrong = _type_problem(shard, resolved, level, stochastic)
    if resolved["cast_model_type"] != "unchanged" and wrong:
        return wrong
    if low is None:  # O1 and O4: the casts of functions take FP32 weights, or those that they would make of them
        own = torch_type(_core.levels()[level][0])
        foreign = resolved["patch_ops"] and made in _LOW and made is not own
        return f"gathered in {_name(made)}, and {level} casts to {_name(own)}: {write}" if foreign else ""
    if resolved["keep_batchnorm_fp32"] and retype.is_kept(shard.module):
        return "" if made is torch.float32 else (
            f"of a batch norm, which stays FP32 at {level} (keep_batchnorm_fp32), and gathered in {_name(made)}: write "
            f'fully_shard(module, mp_policy=amp.fsdp_policy("{named}", module))'
        )
    if shard.policy.param_dtype is None and made is not low:
        return f"no MixedPrecisionPolicy with a param_dtype, and {level} computes in {_name(low)}: {write}"
    if made is not low:
        return f"gathered in {_name(made)}, and {level} computes in {_name(low)}: {write}"
    if shard.param.requires_grad and _reduced_in(shard.policy, made) in _LOW:
        return (
            f"gradients are added between ranks in {_name(_reduced_in(shard.policy, made))}, where sums overflow or "
            f"lose bits: {write}, which has reduce_dtype=torch.float32"
        )
    return ""


def _output_problems(model: nn.Module, resolved: dict[str, Any], level: str) -> list[str]:
    given = model._get_fsdp_state()._mp_policy.output_dtype if is_fsdp(model) else None
    wanted = torch_type(resolved["cast_model_outputs"]) or torch.float32
    if given is None or given is wanted:
        return []
    return [
        f"the policy of the model itself has output_dtype={_name(given)}, and {level} returns {_name(wanted)}: leave "
        f"output_dtype out, or give amp.initialize cast_model_outputs={given}"
    ]


def _low(resolved: dict[str, Any]) -> torch.dtype | None:
    """Returns the 16-bit type of the model, None where weights stay as they are."""
    dtype = torch_type(resolved["cast_model_type"])
    return dtype if dtype in _LOW else None


def _problems_of(
    model: nn.Module, shards: list[Shard], resolved: dict[str, Any], level: str, stochastic: bool
) -> list[str]:
    found: dict[str, list[str]] = {}
    for shard in shards:
        if problem := _problem_of(shard, resolved, level, stochastic):
            found.setdefault(problem, []).append(shard.name)
    problems = [f"{some(names)}: {problem}" for problem, names in found.items()]
    if _low(resolved) is not None and shards:
        if not resolved["master_weights"] and not stochastic:
            problems.insert(0, _NO_MASTERS.format(level=level))
        elif resolved["master_weights"] == "split":
            problems.append(
                'master_weights="split" splits masters into 16-bit weights and a rest, and the FP32 shards are whole '
                "masters: leave it out"
            )
        problems += _output_problems(model, resolved, level)
    return problems


def check(
    models: Iterable[nn.Module], optimizers: list[Any], resolved: dict[str, Any], level: str, stochastic: bool
) -> frozenset[int]:
    """Checks models before initialize changes anything. stochastic: the weights have no masters. Returns the ids of the
    parameters that fully_shard manages. Raises RuntimeError with everything that is missing or wrong."""
    shards: list[Shard] = []
    problems: list[str] = []
    for model in models:
        own = list(_shards(model))
        problems += _problems_of(model, own, resolved, level, stochastic)
        shards += own
    problems += _optimizer_problems(shards, optimizers)
    if problems:
        raise RuntimeError(f"The model of fully_shard does not fit {level}.\n" + "\n".join(problems))
    return frozenset(id(shard.param) for shard in shards)


def outside(models: list[nn.Module], masters: bool) -> str:
    """Returns a sentence about trained parameters beside the shards, which no call of fully_shard manages, or an empty
    string. masters: the level has some."""
    shards = {id(shard.param) for model in models for shard in _shards(model)}
    named = (entry for model in models for entry in model.named_parameters())
    names = [name for name, p in named if p.requires_grad and id(p) not in shards and not is_dtensor(p)]
    if not shards or not names or torch.distributed.get_world_size() < 2:
        return ""
    own = "Each rank has FP32 masters of its own for them, and torch" if masters else "torch"
    return (
        f"Outside of fully_shard: {some(names)}. {own} does not average their gradients between ranks: also call "
        "fully_shard(model), unless the script averages them"
    )


def _optimizer_problems(shards: list[Shard], optimizers: list[Any]) -> list[str]:
    listed = {id(param) for optimizer in optimizers for group in optimizer.param_groups for param in group["params"]}
    whole = [shard.name for shard in shards if shard.whole is not None and id(shard.whole) in listed]
    if whole:
        return [
            f"the optimizer has whole parameters ({some(whole)}), which a forward has shown in place of the shards: "
            "make it after model.reshard(), or before the forward"
        ]
    trained = {id(shard.param) for shard in shards if shard.param.requires_grad}
    if optimizers and trained and listed.isdisjoint(trained):
        return [
            "no optimizer has any of the shards: make it from model.parameters() after fully_shard, which puts other "
            "parameters in place of those before"
        ]
    return []
