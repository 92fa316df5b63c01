# SPDX-License-Identifier: Apache-2.0
"""Fills the record of a run from the events of the taps. Nothing here judges, or reads a GPU before the end."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch

from . import scaling, watch
from .averages import Averages
from .compiled_steps import CompiledSteps
from .later import Later, is_here
from .modules import Modules
from .names import Names, read_buffers
from .ops import Ops
from .places import frameworks, script_place
from .rounding import count_small_moves
from .samples import Samples
from .seen import Scaled, Seen
from .watch import Run

_EVENTS = 40
_LOSSES = 400


class _Thread(threading.local):
    """Of each thread of the script: its regions of autocast, and whether it is in backward or in an event."""

    def __init__(self) -> None:
        self.stack: list[watch.Autocast] = []
        self.depth = 0
        self.busy = False


class Watch:
    """The recorder. One at a time in a process."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.names = Names()
        self.later = Later()
        self.seen: dict[int, Seen] = {}
        self.scaled: dict[int, Scaled] = {}
        self.here = _Thread()
        self.lock = threading.Lock()
        self.schedulers: dict[int, tuple[Any, watch.Scheduler]] = {}
        self.scheduling = 0
        self.fresh = True  # the next backward begins an iteration
        self.stepped_since = False  # a step since the last backward
        self.on_stack = False  # the loss that is noted is that of the script's line on the stack
        self.unstepped = 0  # backwards since a step was tried
        self.unowned: Samples | None = None
        self.unowned_of = (0, 0)
        self.unowned_looks = 0
        self.searched = False  # for averages of what is trained now
        self.began = 0.0
        self.modules = Modules(self.names)
        self.ops = Ops(run, self.later, self.modules)
        self.ops.autocasts = lambda: self.here.stack
        self.ops.paused = lambda: self.here.busy
        self.ops.failed = self.failed
        self.errors = 0
        self.inside: dict[int, int] = {}  # optimizers that step: number of backwards when they began
        self.retired: list[tuple[Seen, Samples]] = []
        self.loss_every = 1
        self.averages = Averages(run)
        self.compiled_steps = CompiledSteps(self)

    def failed(self, event: str, error: Exception) -> None:
        """Notes an error of the doctor's own. After some it stops looking."""
        self.errors += 1
        if self.errors <= 3:
            self.run.unseen.append(f"the doctor's own error in {event}: {type(error).__name__}: {error}")

    # ---- optimizers ----

    def seen_of(self, optimizer: Any) -> Seen:
        known = self.seen.get(id(optimizer))
        if known is not None and known.ref() is optimizer:
            return known
        self.run.frameworks = sorted(set(self.run.frameworks) | frameworks())
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            self.run.rank, self.run.ranks = distributed.get_rank(), distributed.get_world_size()
        record = watch.Optimizer(type(optimizer).__name__, script_place())
        record.params = sum(len(group["params"]) for group in optimizer.param_groups)
        if known is not None:
            self._retire(known)
        made = Seen(optimizer, len(self.run.optimizers), record)
        self.run.optimizers.append(record)
        self.seen[id(optimizer)] = made
        self.names.scan()
        self._relate()
        made.budget.cost = time.perf_counter() - made.budget.began
        return made

    def _relate(self) -> None:
        self.run.models += self.names.relate({id(param) for param in self.owned()})
        self.run.compiled |= any(model.compiled for model in self.run.models)

    def on_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Runs before a step."""
        seen = self.seen_of(optimizer)
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None) is not None  # args[0] is the optimizer
        if self.inside.get(id(optimizer)) == self.run.backwards:
            return  # the step of a base class
        self.inside[id(optimizer)] = self.run.backwards
        self.later.poll()
        record = seen.record
        record.tried += 1
        record.steps += 1
        seen.skipped, seen.decides = False, None
        record.closures += closure and not record.outside
        scaling.check_bypass(self, optimizer, seen)
        if self.ops.mode is not None:
            scaling.on_hands_end(self, optimizer)
        found = getattr(optimizer, "found_inf", None)
        if isinstance(found, torch.Tensor):
            scaling.skip_on_device(self, seen, found)
        seen.looking = seen.budget.is_due(time.perf_counter()) and not _is_capturing()
        if not seen.looking:
            return
        begin = time.perf_counter()
        if seen.samples is None or not seen.samples.fits():
            self._retire(seen)
            seen.samples = Samples(param for group in optimizer.param_groups for param in group["params"])
        with torch.no_grad():
            seen.samples.before(not closure, scaling.scale_on(self))
        record.looks += 1
        self.run.looked += 3 * seen.samples.elements()
        seen.cost = time.perf_counter() - begin

    def on_stepped(self, optimizer: Any) -> None:
        """Runs after a step."""
        seen = self.seen_of(optimizer)
        if self.inside.pop(id(optimizer), None) is None:
            if seen.record.outside or not seen.record.tried:  # compiled before, without the hook before the step
                self.on_outside_step(optimizer)
            return
        self._event(seen, "step")
        if seen.looking and seen.samples is not None:
            begin = time.perf_counter()
            seen.looking = False
            self._rates(optimizer, seen)
            looks = seen.record.looks
            with torch.no_grad():
                count = self._count(optimizer, seen) if looks % 2 else None
                seen.samples.after(scaling.scale_on(self), seen.record.outside, count)
            if looks & (looks - 1) == 0:
                self._facts(optimizer, seen)
                self._look_at_unowned()
            now = time.perf_counter()
            seen.budget.paid(seen.cost + now - begin, now, len(self.seen))
        self._tried(seen)

    def on_compiled_call(self) -> None:
        """Runs behind a call of a compiled function."""
        self.compiled_steps.on_call()

    def has_hooks(self, optimizer: Any) -> bool:
        """Returns True for an optimizer with steps that are seen when they run."""
        known = self.seen.get(id(optimizer))
        return known is not None and not known.record.outside

    def on_outside_step(self, optimizer: Any) -> None:
        """Runs behind a step in a compiled function."""
        self.seen_of(optimizer).record.outside = True
        self.compiled_steps.know(optimizer)
        if self.fresh:
            self.run.iterations += 1
            self.began = self.began or time.perf_counter()
        self.on_step(optimizer, (optimizer,), {})  # gradients as behind a closure
        self.on_stepped(optimizer)

    def _tried(self, seen: Seen) -> None:
        """A step was tried: the iteration ends."""
        self.fresh = self.stepped_since = True
        self.unstepped = 0
        seen.attempts += 1
        self.ops.on_tried(seen)

    def _count(self, optimizer: Any, seen: Seen) -> Callable[[Any, Any], None]:
        """Returns the count of rounding.py."""
        rates = {id(param): seen.lrs[index][2] for index, param in _with_group(optimizer)}
        return lambda group, there: count_small_moves(group, optimizer, rates, there, seen.record.steps)

    def _facts(self, optimizer: Any, seen: Seen) -> None:
        """Notes facts of the optimizer that need no element."""
        first, record = optimizer.param_groups[0], seen.record
        record.fused = bool(first.get("fused"))
        record.eps = _number(first.get("eps"))
        betas = first.get("betas")
        record.beta2 = _number(betas[1] if isinstance(betas, (tuple, list)) and len(betas) > 1 else first.get("alpha"))
        stash = getattr(optimizer, "_amp_stash", None)  # libamp's own sessions
        record.masters = stash is not None and any(master is not None for _, master in stash._pairs())
        for index, param in _with_group(optimizer):
            seen.groups[id(param)] = index
            state = optimizer.state.get(param)
            if isinstance(state, dict):
                seen.state[id(param)] = {
                    str(key): str(value.dtype).removeprefix("torch.")
                    for key, value in state.items()
                    if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel() > 1
                }

    def _rates(self, optimizer: Any, seen: Seen) -> None:
        """Notes the learning rates of a look."""
        for index, group in enumerate(optimizer.param_groups):
            rate = _number(group.get("lr"))
            if index == len(seen.lrs):
                seen.lrs.append([rate, rate, rate])
            seen.lrs[index][1:] = [max(rate, seen.lrs[index][1]), rate]
        seen.record.lr = seen.lrs[0][2]

    def _look_at_unowned(self) -> None:
        """Looks at parameters of models that no optimizer has, at looks 1, 2, 4, 8, ... of an optimizer."""
        self._relate()
        live = self.names.trained()
        if self.unowned is None or not self.unowned.fits() or self.unowned_of != (len(live), len(self.seen)):
            owned = {id(param) for param in self.owned()}
            rest = {id(param): param for model in live for param in model.parameters() if id(param) not in owned}
            self.unowned = Samples(param for param in rest.values() if param.requires_grad)
            self.unowned_of = (len(live), len(self.seen))
            self.searched = False
        with torch.no_grad():
            self.unowned.alone()
            self._look_at_averages()
        self.run.looked += 2 * self.unowned.elements()

    def _look_at_averages(self) -> None:
        """Averages are often made after the first step: the search is behind it."""
        self.unowned_looks += 1
        if self.searched or self.unowned_looks < 2:
            self.averages.look()
            return
        self.searched = True
        optimizers = [optimizer for seen in self.seen.values() if (optimizer := seen.ref()) is not None]
        names = {key: name for key, (_, name) in self.names.of.items()}
        self.averages.search([model for model in self.names.live() if model is not None], optimizers, names)

    def owned(self) -> list[Any]:
        optimizers = [optimizer for seen in self.seen.values() if (optimizer := seen.ref()) is not None]
        return [param for optimizer in optimizers for group in optimizer.param_groups for param in group["params"]]

    # ---- backward ----

    def on_backward(self, tensors: Any, has_gradient: bool) -> None:
        """Runs before backward of a tensor or several."""
        self.compiled_steps.on_backward()
        if self.fresh:
            self.fresh = False
            self.run.iterations += 1
            self.began = self.began or time.perf_counter()
        self.later.poll()
        self.ops.on_loss(tensors)
        self.ops.hands.scale = 1.0
        self.run.backwards += 1
        self.stepped_since = False
        self.unstepped += 1
        for seen in self.seen.values():
            self._event(seen, "backward")
        if self.here.stack and self.here.stack[-1].enabled:
            inside = self.here.stack[-1]
            inside.backwards_inside += 1
            if inside.backwards_inside == 1:
                inside.backward_place = script_place()
        is_scaled = False
        for scaled in self.scaled.values():
            if not scaled.record.enabled or scaled.ref() is None:
                continue
            if scaled.pending:
                scaled.pending -= 1
                scaled.open = is_scaled = True
            elif scaled.record.scales:
                scaled.record.unscaled_backwards += 1
                if scaled.record.unscaled_backwards == 1:
                    scaled.record.unscaled_backward_place = script_place()
        if is_scaled and self.ops.mode is not None:
            self.ops.hands.scale = scaling.scale_on(self)  # for hooks
        self.run.scaled_by_hand += not is_scaled and scaling.is_multiplied(tensors)
        if not is_scaled and not has_gradient and isinstance(tensors, torch.Tensor) and tensors.numel() == 1:
            self._loss(tensors)

    def on_backward_end(self) -> None:
        self.ops.on_backward_end(self.unstepped)
        if self.ops.mode is not None:
            self.ops.hands.begin(scaling.scale_on(self), self.owned())

    def _loss(self, loss: Any) -> None:
        local = getattr(loss, "_local_tensor", loss)
        if local.numel() != 1 or type(local) is not torch.Tensor or local.device.type == "meta":
            return
        iteration = self.run.iterations + self.fresh
        dtype = str(loss.dtype).removeprefix("torch.")
        self.on_stack = True
        self.later.put(local.detach(), lambda value: self._note_loss(iteration, value, dtype))
        self.on_stack = False

    def _note_loss(self, iteration: int, value: float, dtype: str) -> None:
        run = self.run
        self.ops.batches.on_loss(iteration, value - value == 0)
        if value - value != 0:
            run.nonfinite_losses += 1
            run.first_nonfinite_loss = run.first_nonfinite_loss or iteration
            if self.on_stack and not any(scaled.record.enabled for scaled in self.scaled.values()):
                self.ops.read_locals(iteration)
            self.ops.wanted("loss", iteration)
        if len(run.losses) >= _LOSSES:
            run.losses[_LOSSES // 2 :] = run.losses[_LOSSES // 2 :: 2]
            self.loss_every *= 2
        if len(run.losses) < _LOSSES // 2 or iteration % self.loss_every == 0:
            run.losses.append(watch.Loss(iteration, value, dtype))

    # ---- clips, schedulers, autocast, averages ----

    def on_clip(self, kind: str, grads: set[int], limit: Any) -> None:
        """Runs before gradients are clipped."""
        place = script_place()
        known = (clip for clip in self.run.clips if clip.place == place and clip.kind == kind)
        record = next(known, None)
        if record is None:
            record = watch.Clip(kind, place)
            self.run.clips.append(record)
        record.calls += 1
        record.limit = float(limit) if isinstance(limit, (int, float)) else 0.0
        record.after_step += self.stepped_since
        self.ops.hands.on_clip(place)
        for scaled in self.scaled.values():
            if scaled.open and scaled.record.enabled and not self._is_unscaled(scaled, grads):
                record.scaled += 1
                record.scale = scaled.record.scale
        for seen in self.seen.values():
            self._event(seen, "clip")

    def _is_unscaled(self, scaled: Scaled, grads: set[int]) -> bool:
        """Returns True if the optimizer of these gradients is unscaled. Before its first step it is not known."""
        owners = {
            key
            for key, seen in self.seen.items()
            if (optimizer := seen.ref()) is not None
            and any(id(param.grad) in grads for group in optimizer.param_groups for param in group["params"])
        }
        return owners <= scaled.unscaled if owners else bool(scaled.unscaled)

    def on_schedule(self, scheduler: Any) -> None:
        """Runs before a step of a scheduler, except for that of its construction."""
        known = self.schedulers.get(id(scheduler))
        if known is None or known[0]() is not scheduler:
            made = watch.Scheduler(type(scheduler).__name__, script_place())
            self.run.schedulers.append(made)
            known = self.schedulers[id(scheduler)] = (weakref.ref(scheduler), made)
        record = known[1]
        record.steps += 1
        seen = self.seen.get(id(getattr(scheduler, "optimizer", None)))
        if seen is None:
            record.before_step += 1
            return
        record.optimizer = seen.index
        if seen.attempts == 1 and seen.decides is not None:
            self.later.put(seen.decides, lambda value: _note_after_skip(record, value))
        record.after_skip += seen.skipped and seen.attempts == 1
        seen.attempts = 0
        self._event(seen, "schedule")

    def on_autocast(self, device: str, dtype: Any, enabled: bool, cache: bool) -> None:
        """Runs when a region of autocast begins."""
        name = str(dtype).removeprefix("torch.")
        for record in self.run.autocasts:
            if (record.device, record.dtype, record.enabled) == (device, name, enabled):
                break
        else:
            record = watch.Autocast(device, name, enabled, 0, script_place())
            self.run.autocasts.append(record)
        record.regions += 1
        record.cache_off += not cache
        self.here.stack.append(record)

    def on_autocast_end(self) -> None:
        if self.here.stack:
            self.here.stack.pop()

    def on_average(self, averaged: Any, model: Any) -> None:
        """Runs after AveragedModel.update_parameters."""
        with torch.no_grad():
            self.averages.on_average(averaged, model)

    def on_batch(self, batch: Any) -> None:
        """Runs when a DataLoader has made a batch."""
        self.ops.on_batch(batch)

    def on_compile(self) -> None:
        """torch.compile was called."""
        self.run.compiled = True

    def _event(self, seen: Seen, name: str) -> None:
        if len(seen.record.order) < _EVENTS:
            seen.record.order.append(name)

    # ---- the end ----

    def _retire(self, seen: Seen) -> None:
        """Keeps the sums of samples that fit no longer, for the end."""
        if seen.samples is not None:
            self.retired.append((seen, seen.samples))
            seen.samples = None

    def _settle(self, seen: Seen, samples: Samples) -> None:
        """Writes the samples of an optimizer into the record."""
        optimizer = seen.ref()
        order = [param for group in optimizer.param_groups for param in group["params"]] if optimizer else []
        places = {id(param): index for index, param in enumerate(order)}
        for member, numbers in samples.members():
            made = self._param(member, numbers, f"parameter {places.get(member.key, 0)} of {seen.record.kind}")
            made.optimizer = seen.index
            group = seen.groups.get(member.key, len(seen.lrs))
            if group < len(seen.lrs):
                made.lr_first, made.lr_max, made.lr = seen.lrs[group]
            made.state_dtypes = seen.state.get(member.key, {})
        for sums in samples.groups.values():
            for index in (0, 1):
                seen.record.small_moves[index] += float(sums.small_moves[index])
                seen.record.small_updates[index] += float(sums.small_updates[index])
        for kind, dtype in samples.unread:
            self.run.unseen.append(f"parameters of {seen.record.kind}: a {kind} of {dtype} is not looked into")

    def _settle_unowned(self) -> None:
        for member, numbers in self.unowned.members() if self.unowned is not None else ():
            self._param(member, numbers, "a parameter").trained = False

    def _param(self, member: Any, numbers: dict[str, float], name: str) -> watch.Param:
        model, name = self.names.name(member.key, name)
        made = watch.Param(name, member.shape, member.dtype, member.device, model)
        made.sampled, made.looks = member.count, member.looks
        made.has_grad, made.grad_dtype, made.steps_without_grad = member.has_grad, member.grad_dtype, member.without
        made.requires_grad = member.requires_grad
        for key, value in numbers.items():
            setattr(made, key, value)
        self.run.params.append(made)
        return made

    def finish(self) -> Run:
        """Ends the record. From here on it may wait for a GPU."""
        self.compiled_steps.on_backward()  # the last step
        self.ops.stop()
        self.later.drain()
        self.run.compiled_before = self.compiled_steps.unseen()
        self.ops.conclude()
        for seen in self.seen.values():
            if seen.samples is not None and seen.samples.fits():
                with torch.no_grad():
                    seen.samples.close()
            self._retire(seen)
            for scaled in self.scaled.values():
                if seen.bypassed and scaled.record.enabled and (seen.by_scaler or not scaled.record.steps):
                    scaled.record.bypassed += seen.bypassed
                    scaled.record.bypassed_place = seen.bypassed_place
        for seen, samples in self.retired:
            self._settle(seen, samples)
        self._settle_unowned()
        with torch.no_grad():
            self.averages.finish()
        read_buffers(self.names.taken)
        run = self.run
        if self.began:
            run.seconds = time.perf_counter() - self.began
        run.devices = sorted({param.device for param in run.params})
        run.torch = str(torch.__version__)
        run.deterministic = torch.are_deterministic_algorithms_enabled()
        if "cuda" in run.devices:
            run.capability = torch.cuda.get_device_capability()
            run.tf32 = torch.backends.cuda.matmul.allow_tf32
            run.bf16 = torch.cuda.is_bf16_supported()
        return run


def _number(value: Any) -> float:
    """Returns a number of the host, 0 for another one."""
    if isinstance(value, torch.Tensor):
        return float(value) if is_here(value.device) and value.numel() == 1 else 0.0
    return float(value) if isinstance(value, (int, float)) else 0.0


def _with_group(optimizer: Any) -> list[tuple[int, Any]]:
    return [(index, param) for index, group in enumerate(optimizer.param_groups) for param in group["params"]]


def _note_after_skip(record: watch.Scheduler, value: float) -> None:
    record.after_skip += value != 0


def _is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
