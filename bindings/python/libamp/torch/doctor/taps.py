# SPDX-License-Identifier: Apache-2.0
"""All that the doctor puts into torch, from its begin to its end. A tap tells the recorder, and calls the original with
the arguments that it got. An error of a tap is written to the record and never reaches the script.

Under torch.compile a traced tap is its original: is_compiling is a constant there."""

from __future__ import annotations

import functools
import importlib
import sys
import time
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from ..amp.compiling import is_compiling, run_as_it_is, set_compiler
from ..amp.torch_checks import Guard
from . import scaling
from .names import optimizers
from .recorder import Watch

_watch: Watch | None = None  # of the doctor that runs
_doctors = 0  # how many there were, that one included


def _heard(event: Callable[..., Any], *args: Any) -> Any:
    """Calls an event of the recorder. Its time is the doctor's."""
    watch = _watch
    if watch is None or watch.here.busy or not watch.lock.acquire(timeout=1):  # a child of fork may find it taken
        return None
    begin = time.perf_counter()
    watch.here.busy = True
    compiler = set_compiler(None)  # behind a break of its graph it would compile the doctor
    try:
        return event(watch, *args)
    except Exception as error:
        watch.failed(event.__name__, error)
        return None
    finally:
        set_compiler(compiler)
        watch.here.busy = False
        watch.run.spent += time.perf_counter() - begin
        watch.lock.release()


# ---- steps ----


def _before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    if not is_compiling():
        _heard(Watch.on_step, optimizer, args, kwargs)


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    if not is_compiling():
        _heard(Watch.on_stepped, optimizer)


class Steps:
    """torch's hooks on the steps of all optimizers. torch 2.0 drops them when its compiler is imported, older ones have
    none: there the step of each optimizer is wrapped, of old and of new ones."""

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._wrapped: list[tuple[weakref.ref[Any], Any]] = []  # with the step of its own, None for that of the class
        self._made: Guard | None = None

    def put(self) -> None:
        module = sys.modules[torch.optim.Optimizer.__module__]
        names = ("register_optimizer_step_pre_hook", "register_optimizer_step_post_hook")
        registers: list[Any] = [getattr(module, name, None) for name in names]
        if all(registers) and hasattr(torch, "compiler"):  # from torch 2.1 on
            self._handles = [register(hook) for register, hook in zip(registers, (_before_step, _after_step))]
            return
        self._made = Guard(torch.optim.Optimizer, "__init__", self._wrapping)
        self._made.put()
        for optimizer in optimizers():
            self._wrap(optimizer)

    def _wrapping(self, original: Any) -> Any:
        def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            if _watch is not None:
                self._wrap(optimizer)

        return init

    def _wrap(self, optimizer: Any) -> None:
        own = optimizer.step
        around = _around_step(own, optimizer)

        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            return around(*args, **kwargs)

        functools.update_wrapper(step, own)
        step._libamp_doctor = True  # type: ignore[attr-defined]
        self._wrapped.append((weakref.ref(optimizer), vars(optimizer).get("step")))
        optimizer.step = types.MethodType(step, optimizer)  # schedulers wrap a method again

    def put_back(self) -> None:
        for handle in self._handles:
            handle.remove()
        if self._made is not None:
            self._made.put_back()
        for ref, own in self._wrapped:
            optimizer = ref()
            if optimizer is not None and hasattr(vars(optimizer).get("step"), "_libamp_doctor"):
                del optimizer.step
                if own is not None:
                    optimizer.step = own


def _around_step(original: Any, optimizer: Any) -> Any:
    """Looks around a step that runs without torch's hooks: a compiled one, or one of a torch without them."""

    @functools.wraps(original)
    def step(*args: Any, **kwargs: Any) -> Any:
        if is_compiling() or _watch is None:
            return original(*args, **kwargs)
        _heard(Watch.on_step, optimizer, (optimizer, *args), kwargs)
        result = original(*args, **kwargs)
        _heard(Watch.on_stepped, optimizer)
        return result

    step._libamp_doctor = True  # type: ignore[attr-defined]
    return step


# ---- wrappers ----


def _traced(wrapper: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a wrapper that torch.compile traces as its original. It is one doctor's: where the script wrapped it
    again it stays below that wrapper, and must not tell a later doctor, which has a tap of its own."""
    mine = _doctors

    def call(*args: Any, **kwargs: Any) -> Any:
        if is_compiling() or _watch is None or mine != _doctors:
            return original(*args, **kwargs)
        return wrapper(original, *args, **kwargs)

    return call


def _tap(owner: Any, name: str, wrapper: Callable[..., Any]) -> Guard:
    return Guard(owner, name, lambda original: _traced(wrapper, original))


def _first(args: Any, kwargs: Any, name: str, index: int = 0) -> Any:
    """Returns an argument by position or name."""
    return args[index] if len(args) > index else kwargs.get(name)


def _backward(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Tensor.backward calls autograd.backward: the outer one tells."""
    watch = _watch
    if watch is None or watch.here.depth:
        return original(*args, **kwargs)
    tensors = args[0] if args else kwargs.get("tensors")
    gradient = any(_first(args, kwargs, name, 1) is not None for name in ("gradient", "grad_tensors"))
    _heard(Watch.on_backward, tensors, gradient)
    watch.here.depth += 1
    try:
        return original(*args, **kwargs)
    finally:
        watch.here.depth -= 1
        _heard(Watch.on_backward_end)


def _scale(original: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
    result = original(scaler, *args, **kwargs)
    _heard(scaling.on_scale, scaler, _first(args, kwargs, "outputs"))
    return result


def _unscale(original: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
    optimizer = _first(args, kwargs, "optimizer")
    _heard(scaling.on_taking, scaler, optimizer)
    try:
        result = original(scaler, *args, **kwargs)
    except RuntimeError:
        _heard(scaling.on_unscale, scaler, optimizer, True)
        raise
    _heard(scaling.on_unscale, scaler, optimizer, False)
    return result


def _scaler_step(original: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
    optimizer = _first(args, kwargs, "optimizer")
    tried = _heard(scaling.on_scaler_step, scaler, optimizer) or 0
    failed = True
    try:
        result = original(scaler, *args, **kwargs)
        failed = False
    finally:
        _heard(scaling.on_scaler_stepped, scaler, optimizer, tried, failed)
    return result


def _update(original: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
    result = original(scaler, *args, **kwargs)
    _heard(scaling.on_update, scaler)
    return result


# code of torch's clips: their name, and their argument with the limit
_CLIPS = {
    "clip_grad_norm_": ("clip_grad_norm_", "max_norm"),  # until torch 2.5
    "_clip_grads_with_norm_": ("clip_grad_norm_", "max_norm"),
    "clip_grad_value_": ("clip_grad_value_", "clip_value"),
}


def _grouped(original: Any, *args: Any, **kwargs: Any) -> Any:
    """All of torch's clips sort gradients by device first, by whatever name a script has imported them."""
    caller = sys._getframe(2)
    kind, limit = _CLIPS.get(caller.f_code.co_name, ("", ""))
    if kind:
        _heard(Watch.on_clip, kind, set(map(id, caller.f_locals.get("grads", ()))), caller.f_locals.get(limit))
    return original(*args, **kwargs)


def _schedule(original: Any, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    watch = _watch
    is_first = vars(scheduler).get("_step_count", 1) == 0  # its constructor steps once
    if watch is None or watch.scheduling or is_first:
        return original(scheduler, *args, **kwargs)
    _heard(Watch.on_schedule, scheduler)
    watch.scheduling += 1  # schedulers that step others
    try:
        return original(scheduler, *args, **kwargs)
    finally:
        watch.scheduling -= 1


def _autocast_enter(original: Any, region: Any) -> Any:
    result = original(region)
    _heard(Watch.on_autocast, region.device, region.fast_dtype, region._enabled, region._cache_enabled)
    return result


def _autocast_exit(original: Any, region: Any, *error: Any) -> Any:
    _heard(Watch.on_autocast_end)
    return original(region, *error)


def _average(original: Any, averaged: Any, *args: Any, **kwargs: Any) -> Any:
    result = original(averaged, *args, **kwargs)
    _heard(Watch.on_average, averaged, _first(args, kwargs, "model"))
    return result


def _next_batch(original: Any, iterator: Any) -> Any:
    batch = original(iterator)
    _heard(Watch.on_batch, batch)
    return batch


def _compile(original: Any, model: Any = None, *args: Any, **kwargs: Any) -> Any:
    _heard(Watch.on_compile)
    result = original(model, *args, **kwargs)
    owner = getattr(model, "__self__", None)
    if isinstance(owner, torch.optim.Optimizer) and callable(result):
        return _around_step(result, owner)
    return _around_function(result) if isinstance(model, types.FunctionType) else result


def _around_function(compiled: Any) -> Any:
    """Looks at the optimizers behind each call of a compiled function, which may step them without torch's hooks."""

    @functools.wraps(compiled)
    def function(*args: Any, **kwargs: Any) -> Any:
        result = compiled(*args, **kwargs)
        if not is_compiling():
            _heard(Watch.on_compiled_call)
        return result

    return function


def _scaler_classes() -> list[Any]:
    newer = getattr(torch.amp, "GradScaler", None)
    sharded = sys.modules.get("torch.distributed.fsdp.sharded_grad_scaler")
    listed = [newer, torch.cuda.amp.GradScaler, getattr(sharded, "ShardedGradScaler", None)]
    return [kind for kind in dict.fromkeys(listed) if kind is not None]


def _schedulers() -> list[Any]:
    module = torch.optim.lr_scheduler
    base = getattr(module, "LRScheduler", None) or module._LRScheduler
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type)]
    return [kind for kind in dict.fromkeys(kinds) if issubclass(kind, (base, module.ReduceLROnPlateau))]


def _taps() -> list[Any]:
    """Makes the taps. This is the list of all that the doctor changes in torch."""
    loader = importlib.import_module("torch.utils.data.dataloader")._BaseDataLoaderIter
    clips = importlib.import_module("torch.nn.utils.clip_grad")
    averaged = importlib.import_module("torch.optim.swa_utils").AveragedModel  # older torches do not import it
    listed: list[tuple[Any, str, Any]] = [
        (torch.Tensor, "backward", _backward),
        (torch.autograd, "backward", _backward),
        (clips, "_group_tensors_by_device_and_dtype", _grouped),
        (torch.autocast, "__enter__", _autocast_enter),
        (torch.autocast, "__exit__", _autocast_exit),
        (averaged, "update_parameters", _average),
        (loader, "__next__", _next_batch),
        (torch, "compile", _compile),
        *((kind, "step", _schedule) for kind in _schedulers()),
    ]
    scaler = (("scale", _scale), ("unscale_", _unscale), ("step", _scaler_step), ("update", _update))
    listed += [(kind, name, wrapper) for kind in _scaler_classes() for name, wrapper in scaler]
    return [Steps(), *(_tap(owner, name, wrapper) for owner, name, wrapper in listed if name in vars(owner))]


_WRAPPERS = [_heard, _backward, _scale, _unscale, _scaler_step, _update, _schedule, _autocast_enter, _autocast_exit]
_WRAPPERS += [_average, _next_batch, _compile, _grouped, _traced(len, len), _around_step(len, None)]
_WRAPPERS += [_around_function(len)]
for _wrapper in _WRAPPERS:
    run_as_it_is(_wrapper.__code__)  # no graph of their own, where torch.compile calls them outside of one

_put: list[Any] = []


def _open_autocasts() -> list[tuple[str, Any]]:
    """Returns device and type of the regions in which the doctor begins."""
    devices: tuple[str, ...] = ("cpu", "cuda")
    if hasattr(torch, "get_autocast_dtype"):  # from torch 2.4 on
        return [(each, torch.get_autocast_dtype(each)) for each in devices if torch.is_autocast_enabled(each)]
    found = [("cuda", torch.get_autocast_gpu_dtype())] if torch.is_autocast_enabled() else []
    return found + ([("cpu", torch.get_autocast_cpu_dtype())] if torch.is_autocast_cpu_enabled() else [])


def put(watch: Watch) -> None:
    """Puts the taps in."""
    global _watch, _doctors
    if _watch is not None:
        raise RuntimeError("a doctor looks at this process already: end it first")
    _watch, _doctors = watch, _doctors + 1
    _put[:] = _taps()
    for tap in _put:
        tap.put()
    for device, dtype in _open_autocasts():
        _heard(Watch.on_autocast, device, dtype, True, True)


def put_back() -> None:
    """Takes the taps out, last first."""
    global _watch
    for tap in reversed(_put):
        tap.put_back()
    _put.clear()
    _watch = None
