# SPDX-License-Identifier: Apache-2.0
"""initialize, init and shutdown."""
from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from ... import _core
from .._devices import described, read_switch
from . import (
    arguments,
    attention,
    averages,
    bf16_switch,
    buffer_rounding,
    checkpoint,
    cuda_graphs,
    fp16_warnings,
    fully_sharded,
    kept_buffers,
    mistakes,
    model_states,
    model_wiring,
    observing,
    optimizer_wiring,
    outer_optimizers,
    product_gate,
    product_rules,
    restoring,
    retype,
    session,
    sharding,
    sparse_gradients,
    split_masters,
    stochastic_weights,
    storage,
)
from .levels import O0, O1, O2, O3, O4, O5, opt_levels
from .old_api import AmpHandle, NoOpHandle
from .process_state import _amp_state, maybe_print, warn_or_err
from .properties import Banner, Properties, dtype_name, fill, loss_scale_of, resolve, settings_of, torch_type
from .scaler import LossScaler
from .session import Session

__all__ = [
    "O0",
    "O1",
    "O2",
    "O3",
    "O4",
    "O5",
    "Properties",
    "init",
    "initialize",
    "initialized",
    "load_state_dict",
    "opt_levels",
    "shutdown",
    "state_dict",
]

state_dict = checkpoint.state_dict
load_state_dict = checkpoint.load_state_dict
_SETTINGS = (
    "scaler", "lists", "window", "hysteresis", "max_skips", "check_finite", "init_scale", "growth", "backoff", "cache",
    "gate",
)


# ---- building ----


def _list_params(optimizers: list[Any], scales: bool) -> list[list[torch.Tensor]]:
    """Lists the parameters of each optimizer. A parameter appears once, and parameters without elements are omitted.
    scales: bool, gradients will be scaled. Raises RuntimeError then for a parameter that is not dense."""
    listed = []
    for optimizer in optimizers:
        params = list({id(param): param for group in optimizer.param_groups for param in group["params"]}.values())
        for param in params if scales else ():
            if param.layout is not torch.strided:
                raise RuntimeError(
                    f"{type(optimizer).__name__} has a parameter that is {param.layout}: loss scaling works on dense "
                    "ones"
                )
        listed.append([param for param in params if retype.is_scaled(param)])
    return listed


def _trained(models: list[nn.Module], optimizers: list[Any]) -> list[torch.Tensor]:
    ours = {id(param) for each in models for param in each.parameters()}
    listed = [param for optimizer in optimizers for group in optimizer.param_groups for param in group["params"]]
    return [param for param in listed if id(param) in ours and retype.is_plain(param)]


def _keeps_batch_norm(current: Session) -> bool:
    return current.resolved["cast_model_type"] != "float32" and bool(current.resolved["keep_batchnorm_fp32"])


def _staying(current: Session) -> frozenset[int]:
    """Returns the ids of shards and kept buffers, which stay FP32."""
    return current.shards | {id(buffer.tensor) for buffer in current.kept_buffers}


def _prepare_models(current: Session, models: list[nn.Module]) -> None:
    """Prepares the models before the library changes their types: saves values and casts to FP32 where the level needs
    it."""
    cast = current.resolved["cast_model_type"]
    if cast == "unchanged":
        return
    if cast != "float32":
        current.restoring = restoring.Restoring(models, torch_type(cast))
    current.undo.append(kept_buffers.keep(current.kept_buffers))
    keep = _keeps_batch_norm(current)
    current.undo.append(retype.to_fp32(models, keep, torch_type(cast), _staying(current)))
    if current.restoring is not None:
        current.undo.append(current.restoring.after)


def _wire_models(current: Session, models: list[nn.Module]) -> None:
    cast = current.resolved["cast_model_type"]
    inputs, outputs = torch_type(cast), torch_type(current.resolved["cast_model_outputs"])
    for item in models:
        current.undo.append(model_wiring.wire(item, model_wiring.Forward(inputs, outputs, current)))
        if cast != "unchanged":
            current.undo.append(model_states.hook(item))
        current.models.append(weakref.ref(item))
    if cast in ("float16", "bfloat16"):
        retype.flatten_rnns(models)
        if current.kept_buffers:
            current.undo.append(kept_buffers.receive(models))


def _make_context(
    current: Session, level: str, settings: dict[str, Any], models: list[nn.Module], optimizers: list[Any]
) -> Any:
    watcher = weakref.ref(current)

    def event(*what: Any) -> None:
        session = watcher()
        if session is not None:
            session.event(*what)

    scales = current.resolved["loss_scale"] != 1.0
    params = _list_params(optimizers, scales)
    if (scales or current.resolved["master_weights"] is True) and sparse_gradients.is_used(models):
        current.sparse = sparse_gradients.Sparse(models)
        params = [current.sparse.with_flags(listed) for listed in params]
    skipping = [i for i, optimizer in enumerate(optimizers) if cuda_graphs.skips_by_itself(optimizer, optimizers)]
    described_params = retype.describe(models)
    staying = _staying(current)
    if staying:
        keep_norms = bool(current.resolved["keep_batchnorm_fp32"])
        described_params = retype.describe(models, staying, keep_norms)
        settings = {**settings, "keep_batchnorm_fp32": True}  # of all that is described as staying FP32
    return _core.Context(level, described_params, params, settings, event, [], storage, skipping)


def _build(
    current: Session,
    level: str,
    settings: dict[str, Any],
    models: list[nn.Module],
    optimizers: list[Any],
    gate: str | None,
) -> None:
    try:
        product_gate.begin(current, models, gate)
        _prepare_models(current, models)
        if current.split is not None:
            current.split.before(_trained(models, optimizers))
            current.undo.append(current.split.end)
        current.adopt(_make_context(current, level, settings, models, optimizers))
        if current.split is not None:
            current.split.after()
        if current.stochastic:
            marked = stochastic_weights.mark(stochastic_weights.names_of(models))
            current.undo.append(lambda: stochastic_weights.unmark(marked))
        if current.restoring is not None:
            current.restoring.taken()
        _wire_models(current, models)
        for index, optimizer in enumerate(optimizers):
            optimizer_wiring.wire(optimizer, current, index, optimizers)
        if current.resolved["cast_model_type"] != "unchanged" and current.split is None:
            outer_optimizers.recast_states(optimizers)
            # the last thing: parameters have their types
            current.undo.insert(0, lambda: outer_optimizers.recast_states(optimizers))
        if current.resolved["patch_ops"]:
            _patch(current, models, current.resolved["lists"])
        _serve_products(current, models)
        attention.serve(current)
    except BaseException:
        current.abandon()
        raise


def _patch(current: Session, models: list[nn.Module], lists: str, allow_banned: bool = False) -> None:
    from . import patching

    patching.install(
        current.context, verbosity=current.verbosity, lists=lists, models=models, allow_banned=allow_banned
    )
    current.patch(patching.uninstall)


def _serve_products(current: Session, models: list[nn.Module]) -> None:
    """Replaces products on the CPU in a 16-bit type in which torch has only slow ones."""
    from . import patching

    low = current.products
    if low is not None and low in product_rules.slow_types(current.gate):
        patching.install_products(current.context, (low,), models)
        current.patch(patching.uninstall, casts=False)


def _restart_others(current: Session) -> None:
    """Restarts the scalers of other sessions when the script imported apex. In Apex the scalers belong to the process,
    and each initialize makes new ones for all models (its checkpoint tests rely on it). Under libamp's name each
    initialize has its own scalers."""
    if sys.modules.get("apex.amp") is not sys.modules[__package__]:
        return
    for other in session.live():
        if other is not current and other.dynamic:
            with contextlib.suppress(_core.Error):  # a block of scale_loss around this call keeps its scale
                for scaler in other.scalers:
                    scaler._restart()


def _publish(current: Session, enabled_handle: bool = True) -> None:
    _amp_state.loss_scalers = [LossScaler.of(current, loss_id) for loss_id in range(current.num_losses)]
    _amp_state.handle = (
        AmpHandle(current, bool(current.resolved["cache"])) if enabled_handle else NoOpHandle()
    )


# ---- the public functions ----


def initialize(
    models: Any,
    optimizers: Any = None,
    enabled: bool = True,
    opt_level: str = "O1",
    cast_model_type: Any = None,
    patch_torch_functions: bool | None = None,
    keep_batchnorm_fp32: bool | str | None = None,
    master_weights: bool | str | None = None,
    loss_scale: float | str | None = None,
    cast_model_outputs: torch.dtype | None = None,
    num_losses: int = 1,
    verbosity: int = 1,
    min_loss_scale: float | None = None,
    max_loss_scale: float | None = 2.0**24,
    process_group: Any = None,
    keep_buffers_fp32: bool | str | Iterable[str] | None = False,
    **settings: Any,
) -> Any:
    """Prepares models and optimizers for an opt level, in place, and returns them in the shape in which they were
    given.

    Names, order and defaults of the arguments are those of apex.amp.initialize. Models may be on CPUs.

    models, optimizers: one object or a list. enabled: False returns them unchanged. opt_level: "O0" to "O5" (O4 and O5
    are O1 and O2 in bfloat16). cast_model_type, patch_torch_functions, keep_batchnorm_fp32, master_weights, loss_scale:
    override the level, None keeps its value. master_weights="split" at O5 stores the masters as parameters plus 16
    bits, "stochastic" has no masters, and libamp's fused optimizers round the parameters at random
    (docs/guide/memory.md). cast_model_outputs: torch.dtype of forward's outputs. num_losses: number of loss scalers.
    verbosity: 0 prints nothing, 1 prints Apex's lines, 2 also each cast. min_loss_scale, max_loss_scale: bounds of a
    dynamic scale.

    process_group: the ranks that skip a step together and keep equal scales. A group of torch.distributed, True for the
    default group, False for none. None means the ranks that share sharded parameters or optimizer states (FSDP,
    fully_shard, ZeRO).

    keep_buffers_fp32: buffers that stay FP32 at O2, O3 and O5 (positions, rotary tables): True for all, or names and
    patterns of named_buffers ("*.inv_freq"). False casts them to 16 bits, as Apex does.

    settings: members of amp_config (amp.h) by name: scaler ("apex", "torch", "megatron", ...), lists ("apex", "torch"),
    window, hysteresis, max_skips, init_scale, growth, backoff, cache. check_finite: True skips overflows at a static
    scale of 1 too. gate: whether torch's 16-bit kernels compute products on CPUs, or FP32 kernels and a rounding.
    "default": by a table (docs/guide/gate.md). "on": also FP32 where the table has no row. "off": torch's. "measure":
    by timing each shape class once, on rank 0.

    Raises TypeError or ValueError for an argument of a wrong type or value, or a name of no buffer. Raises RuntimeError
    for an unknown level, a model or optimizer that cannot be prepared, or an override that the level does not allow.
    """
    for name in settings:
        if name not in _SETTINGS:
            raise TypeError(f"initialize() got an unexpected keyword argument '{name}'")
    gate = product_rules.read(settings.get("gate"))
    arguments.check_verbosity(verbosity)
    if isinstance(enabled, str):
        raise TypeError(f"enabled must be a boolean, not {enabled!r}")
    sharding.check_group(process_group)
    properties = _amp_state.opt_properties = Properties()
    _amp_state.verbosity = verbosity
    if not enabled:
        return models if optimizers is None else (models, optimizers)
    level, cast_model_type = bf16_switch.read(arguments.check_level(opt_level), cast_model_type)
    num_losses = arguments.check_num_losses(num_losses)
    stochastic = master_weights == "stochastic"
    if stochastic:
        master_weights = False
    banner = Banner(f"Selected optimization level {level}: {opt_levels[level].brief}")
    fill(properties, level, resolve(level, {}), {})
    banner.part("Its properties:", properties)
    _amp_state.min_loss_scale, _amp_state.max_loss_scale = min_loss_scale, max_loss_scale
    given: dict[str, Any] = {
        "cast_model_type": cast_model_type,
        "patch_torch_functions": patch_torch_functions,
        "keep_batchnorm_fp32": keep_batchnorm_fp32,
        "master_weights": master_weights,
        "loss_scale": loss_scale,
    }
    overrides = settings_of(given)
    fill(properties, level, resolve(level, overrides), given)
    banner.part("Overrides are applied.\nThe properties in use:", properties)
    banner.end()
    settings.update(overrides)
    settings["gate"] = gate
    return start(models, optimizers, level, settings, num_losses, cast_model_outputs, process_group, keep_buffers_fp32,
                 stochastic)


def start(
    models: Any,
    optimizers: Any,
    level: str,
    settings: dict[str, Any],
    num_losses: int,
    cast_model_outputs: torch.dtype | None,
    process_group: Any = None,
    keep_buffers_fp32: Any = False,
    stochastic: bool = False,
) -> Any:
    """Builds the session for initialize, once the properties are known. Takes and returns models and optimizers as
    initialize does."""
    settings.update(
        num_losses=num_losses,
        cast_model_outputs=dtype_name(cast_model_outputs),
        min_scale=_amp_state.min_loss_scale or None,
        max_scale=_amp_state.max_loss_scale,
    )
    gate = settings.pop("gate", None)
    resolved = _core.resolve(level, settings)
    read_switch()
    splits = resolved["master_weights"] == "split"
    if splits:  # the library's context has no masters: parameters are halves of them
        settings["master_weights"] = False
    model_list, optimizer_list = arguments.list_models(models), arguments.list_optimizers(optimizers)
    arguments.check_models(model_list)
    arguments.check_optimizers(optimizer_list)
    for item in model_list:
        fully_sharded.reshard(item)
    if not _amp_state.allow_incoming_model_not_fp32:
        retype.check_incoming(model_list, warn_or_err)
    current = Session(resolved, num_losses)
    current.split = split_masters.Split() if splits else None
    current.low_type = _core.levels()[level][0]
    current.level, current.shards = level, sharding.check(
        model_list, optimizer_list, current.resolved, level, stochastic
    )
    current.stochastic = stochastic
    if stochastic:
        stochastic_weights.check(current.resolved, optimizer_list)
    current.verbosity, current.process_group = _amp_state.verbosity, process_group
    low = torch_type(resolved["cast_model_type"])
    is_low, keeps = low in retype.LOW, _keeps_batch_norm(current)
    chosen = kept_buffers.choose(keep_buffers_fp32, model_list, keeps or not is_low)
    current.kept_buffers = chosen if is_low else []
    damaged = buffer_rounding.damaged(model_list, low, keeps, current.kept_buffers)
    _build(current, level, settings, model_list, optimizer_list, gate)
    if current.products is not None and current.traces():
        current.context.observe_remark("gate", product_rules.sentence(current.gate, current.products))
    if current.verbosity > 0:
        for line in described(param for item in model_list for param in item.parameters()):
            maybe_print(line, True)
        if current.kept_buffers:
            names = kept_buffers.listed(buffer.name for buffer in current.kept_buffers)
            maybe_print(f"Buffers that stay FP32: {names}", True)
        if current.products is not None:
            maybe_print(product_rules.sentence(current.gate, current.products), True)
        if outside := fully_sharded.outside(model_list, bool(current.masters)):
            maybe_print(outside, True)
    buffer_rounding.report(current.record, damaged)
    mistakes.watch(current)
    averages.watch(current)
    observing.as_asked(current)
    _restart_others(current)
    static = current.resolved["loss_scale"] == 1.0
    if static and current.verbosity > 0 and fp16_warnings.casts_to_half(level, current.resolved):
        current.watch = fp16_warnings.NonFinite()
    _publish(current, bool(current.resolved["patch_ops"]))
    return models if optimizers is None else (models, optimizers)


_PATCH_LEVELS = {torch.float16: "O1", torch.bfloat16: "O4"}


def init(
    enabled: bool = True,
    loss_scale: float | str = "dynamic",
    enable_caching: bool = True,
    verbose: bool = False,
    allow_banned: bool = False,
    patch_type: torch.dtype = torch.float16,
) -> Any:
    """Patches torch's functions as O1 does, without models, and returns an AmpHandle. This is Apex's oldest interface.

    enabled: False returns a handle that does nothing. loss_scale: "dynamic" or a number. enable_caching: cast each
    weight once an iteration. verbose: print each cast. allow_banned: permit binary_cross_entropy. patch_type:
    torch.float16 for the casts of O1, torch.bfloat16 for those of O4 (ROCm's fork).

    Raises ValueError for another patch_type.
    """
    if patch_type not in _PATCH_LEVELS:
        raise ValueError(f"init: patch_type must be torch.float16 or torch.bfloat16, not {patch_type}")
    if not enabled:
        _amp_state.handle = NoOpHandle()
        return _amp_state.handle
    level = _PATCH_LEVELS[bf16_switch.patch_type(patch_type)]
    if not hasattr(_amp_state, "opt_properties"):
        _amp_state.opt_properties = Properties()
    settings = {"cache": enable_caching, "loss_scale": loss_scale_of(loss_scale)}
    current = Session(_core.resolve(level, settings), 1)
    current.verbosity = 2 if verbose else _amp_state.verbosity
    current.low_type = _core.levels()[level][0]
    product_gate.begin(current, [], None)
    current.adopt(_make_context(current, level, settings, [], []))
    _patch(current, [], "apex", allow_banned)
    _serve_products(current, [])
    attention.serve(current)
    _amp_state.handle = AmpHandle(current, enable_caching, verbose, owns=True)
    return _amp_state.handle


def shutdown(what: Any = None) -> None:
    """Restores functions of torch, forward, step, param_groups and parameter types as they were before initialize.
    Parameters become FP32 with the values of their masters.

    what: a model or an optimizer restores the initialize call that it belongs to. None restores all.

    Raises TypeError for another object. If a part fails, the rest is still restored before the error is raised.
    """
    if what is None:
        chosen = list(session.live())
    else:
        if not isinstance(what, nn.Module) and not outer_optimizers.is_optimizer(what):
            raise TypeError(
                f"amp.shutdown takes a model or an optimizer, or nothing for all, not a {type(what).__name__}"
            )
        spec = getattr(what, "_amp_stash", None) or getattr(what, "_amp_forward", None)
        chosen = [spec.session] if spec is not None and spec.session is not None else []
    for current in reversed(chosen):
        current.shutdown()


def initialized(what: Any) -> bool:
    """Returns True if this model or optimizer belongs to an initialize call that is in force."""
    spec = getattr(what, "_amp_stash", None) or getattr(what, "_amp_forward", None)
    return spec is not None and spec.session is not None and bool(spec.session.alive)
