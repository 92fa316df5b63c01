# SPDX-License-Identifier: Apache-2.0
"""An initialize call in force: its context, models and optimizers, and the steps that undo it.

Models and optimizers own their session, not the reverse, so that it ends with them.
"""
from __future__ import annotations

import atexit
import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ... import _findings, _survey
from .._devices import is_served
from . import cuda_graphs
from .process_state import maybe_print

_EVENT_LOG, _EVENT_WARNING, _EVENT_SKIP = 1, 2, 3


class Session:
    """State of an initialize call. context: _core.Context. resolved: the configuration with defaults. undo: the
    functions that shutdown calls, last first."""

    def __init__(self, resolved: dict[str, Any], num_losses: int) -> None:
        self.context: Any = None
        self.resolved = resolved
        self.num_losses = num_losses
        self.level = "O1"
        self.low_type = "float16"  # "bfloat16" at O4 and O5
        self.shards: frozenset[int] = frozenset()  # ids of FP32 parameters in a 16-bit model, of fully_shard
        self.gate = "default"  # of products on the CPU, as initialize takes it
        self.products: torch.dtype | None = None  # the 16-bit type of products on the CPU, where the level has some
        self.undo: list[Callable[[], None]] = []
        self.optimizers: list[weakref.ref[Any]] = []
        self.models: list[weakref.ref[torch.nn.Module]] = []
        self.masters: dict[int, torch.nn.Parameter] = {}  # id of a parameter that the context keeps -> its master
        self._params: dict[int, torch.Tensor] = {}  # parameters by the same id
        self.shadows: Any = None  # averages.Shadows, where there are masters
        self.split: Any = None  # split.Split, with master_weights="split"
        self.stochastic = False  # master_weights="stochastic"
        self.sparse: Any = None  # sparse.Sparse, where a module may make sparse gradients
        self.kept_buffers: list[Any] = []  # kept_buffers.Owned: the buffers that stay FP32 in a 16-bit model
        self.restoring: Any = None  # restoring.Restoring, where models are 16-bit
        # a parameter's version and sum when it was its master's
        self._agreed: dict[int, tuple[int | None, torch.Tensor]] = {}
        self._edited: set[int] = set()  # parameters on GPUs that the script was seen to write through `.data`
        self.forward_seen = self.backward_seen = False
        self.skip_message: dict[int, str] = {}  # by loss_id: message of the next skipped step
        self.scalers: list[Any] = []  # views in _amp_state.loss_scalers
        self.verbosity = 1
        self.watch: Any = None  # warns of nonfinite losses, where no step is skipped
        self.record = _findings.Record()
        self.mistakes: Any = None  # checks of the script
        self.looks = False  # the next forward is to be checked
        self.observer: Any = None  # observing.Watch, if amp.observe was called
        self.patches = False  # torch's functions cast by the policy of the context
        self._uninstall: Callable[[Any, bool], None] | None = None
        # a group of ranks that agree, True: the default one, False: none, None: ranks of sharded tensors
        self.process_group: Any = None
        self.ranks_known = not torch.distributed.is_available()
        self.dtensors: list[Any] = []  # parameters that are DTensors, once the ranks are known
        self.groups: list[weakref.ref[Any]] = []  # torch's groups of parameters of fully_shard, at the same time
        self._traced_by = 0  # id of the process that traces it, 0 for none

    @property
    def dynamic(self) -> bool:
        return bool(self.resolved["loss_scale"] == -1.0)

    @property
    def alive(self) -> bool:
        return self.context is not None and bool(self.context.alive)

    def present_models(self) -> list[torch.nn.Module]:
        """Returns the models that exist."""
        return [model for model in (ref() for ref in self.models) if model is not None]

    def remember(self, pairs: list[tuple[torch.Tensor, torch.nn.Parameter | None]]) -> None:
        """Records pairs of parameters and masters, None for no master."""
        for param, master in pairs:
            if master is not None:
                self.masters[id(param)] = master
                self._params[id(param)] = param
                self.agree(param)

    @torch.no_grad()
    def agree(self, param: torch.Tensor, loads: bool = False) -> None:
        """Marks a parameter as its rounded master. loads: it will be, once torch has loaded it."""
        if loads:
            self.context.agree(param)
        value = self.masters[id(param)].to(param.dtype) if loads else param
        self._agreed[id(param)] = None if loads else param._version, _sum_of_bits(value)

    def _disagreeing(self) -> Iterator[tuple[torch.Tensor, torch.nn.Parameter, bool]]:
        """Yields (parameter, master, True if the parameter was written). Collectives and `.data` change no version."""
        for param, master in self.params_and_masters():
            alike = param.shape == master.shape and param.device == master.device
            if alike and not torch.equal(master.to(param.dtype), param):
                yield param, master, not torch.equal(_sum_of_bits(param), self._agreed[id(param)][1])

    @torch.no_grad()
    def before_first_forward(self) -> None:
        """Accepts writes to masters so far (a broadcast of model.state_dict()) as writes to parameters."""
        cuda_graphs.check_warm(self)
        self.forward_seen = True
        for param, master, param_written in self._disagreeing():
            if not param_written:
                param.copy_(master)
                self.agree(param)

    @torch.no_grad()
    def before_first_backward(self) -> None:
        """Accepts writes to parameters so far, because Apex makes its masters at this point. A write that changes
        torch's version (DistributedDataParallel's broadcast on every rank) sets the master. Otherwise a master keeps
        its bits if they round to the parameter."""
        cuda_graphs.check_warm(self)
        self.backward_seen = True
        if self.split is not None:
            self.split.before_first_backward()
        for param, master, param_written in self._disagreeing():
            if param_written:
                master.copy_(torch.where(master.to(param.dtype) == param, master, param.to(master.dtype)))
        for param, master in self.params_and_masters():
            version = self._agreed[id(param)][0]
            if version is not None and version != param._version and param.shape == master.shape:
                master.copy_(param)

    def follow(self) -> None:
        """Copies writes to masters since the last step to the parameters."""
        if self.split is not None:
            self.split.settle()
        if not self.masters:
            return
        both = self.context.follow()
        if both is not None:
            self.agree_elsewhere()
        for param in both or ():
            self.record.report("AMP-M47", self.name_of(param))

    def agree_elsewhere(self) -> None:
        """Makes parameters on GPUs their rounded masters: all of them in the first iterations, later those that were
        written through `.data` before."""
        fresh = self.mistakes is not None and self.mistakes.fresh
        for param, _ in self.params_and_masters() if fresh or self._edited else ():
            if is_elsewhere(param) and (fresh or id(param) in self._edited):
                self.agree(param)

    @torch.no_grad()
    def collect_edits(self) -> None:
        """Collects, before a step, writes through `.data` to parameters on GPUs. After the first iterations it never
        waits for the GPU."""
        if self.mistakes is not None and self.mistakes.fresh:
            self.find_edits()
        for key in self._edited:
            param, master = self._params[key], self.masters[key]
            if param.shape == master.shape:
                written = (_sum_of_bits(param) != self._agreed[key][1]) & (master.to(param.dtype) != param)
                master.copy_(torch.where(written, param.to(master.dtype), master))

    @torch.no_grad()
    def find_edits(self) -> None:
        """Finds, in the first iterations, writes on GPUs that torch does not count and the library does not search for.
        This waits."""
        for param, master in self.params_and_masters() if self.backward_seen else ():
            version, total = self._agreed[id(param)]
            counted = version != param._version or param.shape != master.shape
            if counted or not is_elsewhere(param) or torch.equal(_sum_of_bits(param), total):
                continue
            master.copy_(torch.where(master.to(param.dtype) == param, master, param.to(master.dtype)))
            self.agree(param)
            self._edited.add(id(param))
            self.record.report("AMP-M49", self.name_of(param))

    def settle(self) -> None:
        """Copies writes to parameters to their masters, before they are read."""
        if self.masters and self.alive:
            self.follow()
            self.context.settle()

    def name_of(self, tensor: torch.Tensor) -> str:
        """Returns the name of a parameter in the models."""
        models = [model for ref in self.models if (model := ref()) is not None]
        return next((name for model in models for name, param in model.named_parameters() if param is tensor), "")

    def params_and_masters(self) -> list[tuple[torch.Tensor, torch.nn.Parameter]]:
        """Returns the parameters with a master, and the masters."""
        return [(param, self.masters[key]) for key, param in self._params.items()]

    def adopt(self, context: Any) -> None:
        """Takes the context. The session then ends with its owners or by shutdown."""
        self.context = context
        self._traced_by = os.getpid() if os.environ.get("AMP_TRACE") else 0
        self._end_with_owners()
        with _lock:
            _sessions.append(weakref.ref(self))

    def traces(self) -> bool:
        """Returns True if this process writes a trace."""
        return self._traced_by == os.getpid()

    def patch(self, uninstall: Callable[[Any, bool], None], casts: bool = True) -> None:
        """Records that the context patches torch's functions, and its undo function, which receives whether the context
        was collected. casts: by the policy of the context."""
        self.patches = self.patches or casts
        self._uninstall = uninstall
        self._finalizer.detach()
        self._end_with_owners()

    def _end_with_owners(self) -> None:
        self._finalizer = weakref.finalize(self, _end_context, self.context, self.record, self._uninstall)
        self._finalizer.atexit = False  # except for a trace, see _end_traces

    def abandon(self) -> None:
        """Undoes the work of a failed initialize."""
        if self.context is not None:
            self.shutdown()
        while self.undo:
            self.undo.pop()()

    def event(self, kind: int, message: str, loss_id: int, before: float, after: float, first_nonfinite: str) -> None:
        """Receives events of the library when a bracket ends. Each skip is received, but only some have a message."""
        if kind == _EVENT_SKIP and message:
            self.skip_message[loss_id] = cuda_graphs.overflow(loss_id, after) + cuda_graphs.thinned(message)
        elif kind == _EVENT_WARNING and message.startswith("AMP-M"):
            self.record.relay(message)
        elif kind == _EVENT_LOG and self.observer is not None and message.startswith("the overflow of bracket"):
            self.observer.accused(self, message)
        elif kind == _EVENT_WARNING and message and self.verbosity > 0:
            maybe_print("Warning:  " + message, True)

    def end_trace(self) -> None:
        """Writes the last lines of a trace at the end of the process. Models are not restored."""
        if self._traced_by == os.getpid():
            self._finalizer()

    def end_observing(self) -> None:
        """Stops the observation of torch calls."""
        observer, self.observer = self.observer, None
        if observer is not None:
            observer.leave()

    def shutdown(self) -> None:
        """Restores functions, models and optimizers. An error does not stop the rest, and the first one is raised at
        the end."""
        if not self.alive:
            return
        errors: list[Exception] = []
        if self.split is not None:
            self._attempt(self.split.settle, errors)
        _findings.ends(self.context, self.record)
        _survey.add(self.context, self.present_models())
        if self.restoring is not None:
            self._attempt(functools.partial(self.restoring.before, self.masters), errors)
        self._attempt(self.context.shutdown, errors)
        if self.alive:  # refused: inside a forward or a step, where everything stays in force
            if self.restoring is not None:
                self.restoring.refused()
            raise errors[-1]
        self.end_observing()
        if self._uninstall is not None:
            self._attempt(functools.partial(self._uninstall, self.context, False), errors)
        self._finalizer.detach()
        with _lock:
            _sessions[:] = [ref for ref in _sessions if ref() not in (None, self)]
        while self.undo:
            self._attempt(self.undo.pop(), errors)
        if errors:
            raise errors[0]

    @staticmethod
    def _attempt(what: Callable[[], Any], errors: list[Exception]) -> None:
        try:
            what()
        except Exception as error:
            errors.append(error)


_lock = threading.RLock()
_sessions: list[weakref.ref[Session]] = []


def is_elsewhere(param: torch.Tensor) -> bool:
    """Returns True if the parameter is in memory that the library does not read."""
    return param.device.type != "cpu" or is_served(param.device)


def _sum_of_bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().view(torch.int16).sum(dtype=torch.int64)


def _end_context(
    context: Any, record: _findings.Record, uninstall: Callable[[Any, bool], None] | None
) -> None:
    if uninstall is not None:
        uninstall(context, True)
    _findings.ends(context, record)
    _survey.add(context)
    context.shutdown()


@atexit.register  # at import, so that functions of the script run before
def _end_traces() -> None:
    for session in live():
        with contextlib.suppress(RuntimeError):
            session.end_trace()


def live() -> Iterator[Session]:
    """Yields the sessions in force, oldest first."""
    with _lock:
        found = [ref() for ref in _sessions]
    yield from (session for session in found if session is not None and session.alive)


def last() -> Session | None:
    """Returns the session of the last initialize."""
    return next(iter(reversed(list(live()))), None)
