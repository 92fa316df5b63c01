# SPDX-License-Identifier: Apache-2.0
"""amp.observe records statistics of the numbers in a training, by op and module. amp.culprit and amp.memory report the
source of an overflow and the memory; surveys.py the fit of each level.

The library reads parameters, gradients, masters and updates. A TorchFunctionMode, active only in observed iterations
from the model's forward to scale_loss, and hooks on backward read the inputs and outputs of torch's functions. Values
are never changed.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from ... import _findings, _html, _survey
from ..._environment import switch
from ..._words import counted
from ...kernels import Statistics
from . import cuda_graphs, observed_call, state_memory
from .observed_call import is_in_place, is_readable
from .process_state import maybe_print
from .session import Session, last

# In the order of AMP_SEE_*'s bits.
WHAT = ("inputs", "outputs", "weights", "scaled", "gradients", "masters", "updates")
_NAMES_OF_TYPES = {1: "float32", 2: "float16", 3: "bfloat16", 4: "float64"}


# ---- results ----


class Observation(NamedTuple):
    """One observed tensor. what: one of WHAT. op: for inputs and outputs, as "encoder.0: linear", else None. name: of
    the argument or parameter. lost_fp16, lost_bf16: number of updates that would round to nothing in weights of this
    type."""

    what: str
    op: str | None
    name: str
    dtype: str
    iterations: int
    lost_fp16: int
    lost_bf16: int
    last: Statistics
    total: Statistics


class Argument(NamedTuple):
    """An input or output of a culprit's op."""

    name: str
    is_output: bool
    dtype: str
    elements: int
    nonfinite: int
    largest: float
    least: float


# In the order of AMP_CAUSE_*.
CAUSES = ("unknown", "op", "cast", "input", "weight")


class Culprit(NamedTuple):
    """The source of the last observed overflow. op: None if unknown. parameter: the first with a nonfinite gradient, in
    the order of backward. filename, lineno: the line of the script that called the op. cause: "op": it made the value
    from finite inputs. "cast": the input was finite before its cast. "input": the input was not finite and no observed
    op made it (check the batch). "weight": the parameter `weight` is not finite since bracket `since` (since_least: the
    earliest possible one)."""

    op: str | None
    bracket: int
    call: int
    was_cast: bool
    in_backward: bool
    parameter: str | None
    arguments: list[Argument]
    filename: str
    lineno: int
    cause: str = "unknown"
    weight: str | None = None
    since: int = 0
    since_least: int = 0


class Memory(NamedTuple):
    """Bytes by purpose, as amp_memory of amp_observe.h defines them."""

    level: str
    weights: int
    gradients: int
    masters: int
    master_gradients: int
    moments: int
    casts: int
    most_casts: int
    outputs: int
    packed_from: int = 0
    packed: int = 0
    masters_split: int = 0
    moments_8bit: int = 0

    def _repr_html_(self) -> str:
        taken = {name.replace("_", " "): _html.size(count) for name, count in self._asdict().items() if name != "level"}
        return _html.table(f"memory at {self.level}", list(taken), [list(taken.values())])


# ---- calls of torch's ----


class _Mode(TorchFunctionMode):
    """Reports each call of a torch function on a thread, between the model's forward and scale_loss."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = weakref.ref(watch)
        self._process = os.getpid()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        watch = self._watch()
        if watch is None or os.getpid() != self._process or torch.jit.is_tracing():
            return func(*args, **kwargs)
        before = watch.before(func, args, kwargs)
        out = func(*args, **kwargs)
        watch.called(func, args, kwargs, out, before)
        return out


class Watch:
    """Observes the calls of one session."""

    def __init__(self, session: Session, names: dict[int, str]) -> None:
        self._session = weakref.ref(session)
        self._names = names  # names of modules by id
        self._mode = _Mode(self)
        self._here = threading.local()
        self.lines: dict[str, _findings.Place] = {}
        self._trained: weakref.WeakSet[Any] = weakref.WeakSet()  # models that have run in training mode
        self._hooks: list[Any] = []  # hooks of this scale_loss block
        self._iterations, self._told = 0, 0.0

    # -- on and off --

    def enter(self, model: Any, compiled: bool) -> bool:
        """Begins at the model's forward. Returns True if leave must be called at its end. Without another mode it
        remains until scale_loss, for the loss. A trained model in eval mode is not observed."""
        evaluates = not getattr(model, "training", True) and model in self._trained
        if getattr(model, "training", False):
            self._trained.add(model)
        session = self._session()
        entered = getattr(self._here, "entered", False)
        if entered or session is None or not session.context.observing():
            return False
        # compiled code does not call torch's functions, and a capture must not wait for a GPU
        if evaluates or compiled or not torch.is_grad_enabled() or cuda_graphs.is_capturing():
            return False
        self._here.lingers = torch._C._len_torch_function_stack() == 0
        self._here.entered = True
        self._mode.__enter__()
        return not self._here.lingers

    def leave(self) -> None:
        """Ends the mode, or waits until it is the innermost one."""
        if not getattr(self._here, "entered", False):
            return
        depth = torch._C._len_torch_function_stack()
        if depth and torch._C._get_function_stack_at(depth - 1) is self._mode:
            self._mode.__exit__(None, None, None)
            self._here.entered = False

    # -- a call --

    def _place(self) -> str | None:
        """Returns the module whose forward is running: its name in the model, else its class."""
        frame = sys._getframe(3)
        while frame is not None:
            if frame.f_code.co_name == "forward":
                module = frame.f_locals.get("self")
                if isinstance(module, torch.nn.Module):
                    return self._names.get(id(module), type(module).__name__)
            frame = frame.f_back  # type: ignore[assignment]
        return None

    def before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
        """Copies a tensor that an op is about to overwrite, because it may already be nonfinite."""
        session = self._session()
        op = getattr(func, "__name__", "")
        if op in observed_call.NO_OPS or not args or not is_in_place(op, kwargs) or not is_readable(args[0]):
            return None
        return args[0].detach().clone() if session is not None and session.context.observing() else None

    def _cast(self, session: Session, args: tuple[Any, ...], out: Any) -> None:
        """Records a conversion by libamp or the script. It can create infinities in forward and in backward."""
        if not args or not is_readable(args[0]) or not is_readable(out) or args[0].dtype is out.dtype:
            return
        session.context.observe_call("cast", None, False, [("input", args[0], False), ("output", out, True)], True)
        if out.grad_fn is not None and out.grad_fn is not args[0].grad_fn:
            self._hook(out.grad_fn, "cast", None, True)

    def called(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, before: torch.Tensor | None
    ) -> None:
        """Records one finished call of a torch function."""
        session = self._session()
        op = getattr(func, "__name__", "")
        if session is None or not op or not session.context.observing():
            return
        if op in observed_call.CASTS:
            self._cast(session, args, out)
        if op in observed_call.NO_OPS:
            return
        made = list(observed_call.tensors(out))
        named = observed_call.named(op, args, kwargs)
        got = [(name, tensor) for name, tensor in named if all(tensor is not one for one in made)]
        if before is not None:
            got.insert(0, (observed_call.ARGUMENTS[0], before))
        in_place = op.endswith("_") and not op.endswith("__")
        places = {tensor.data_ptr() for _, tensor in got}
        if not made or (not in_place and any(one.data_ptr() in places for one in made)):  # a view, or the argument
            return
        where = self._place()
        place = self.lines[f"{where}: {op}" if where else op] = _findings.place()
        values = [(name, tensor, False) for name, tensor in (*got, *observed_call.constants(op, args, kwargs))]
        line = str(place) or None
        session.context.observe_call(op, where, False, values + [("output", one, True) for one in made], False, line)
        nodes = {tensor.grad_fn for _, tensor in got}
        for node in {one.grad_fn for one in made} - nodes - {None}:
            self._hook(node, op, where, line=line)

    def _hook(self, node: Any, op: str, where: str | None, is_cast: bool = False, line: str | None = None) -> None:
        node.register_hook(self._backward_of(op, where, is_cast, line))

    def _backward_of(self, op: str, where: str | None, is_cast: bool, line: str | None = None) -> Any:
        watching = weakref.ref(self)

        def hook(made: Any, got: Any) -> None:
            watch = watching()
            session = watch._session() if watch is not None else None
            if session is None or not session.alive or not session.context.observing():
                return
            values = [("gradient of output", tensor, False) for tensor in observed_call.tensors(got)]
            values += [("gradient of input", tensor, True) for tensor in observed_call.tensors(made)]
            if values:
                session.context.observe_call(op, where, True, values, is_cast, line)

        return hook

    # -- a bracket --

    def began(self, loss: Any) -> None:
        """Begins a bracket and hooks the order of gradients in backward."""
        session = self._session()
        self._unhook()
        if session is None or not session.context.observing() or cuda_graphs.is_capturing():
            return
        waiting = [tensor.grad_fn for tensor in observed_call.tensors(loss) if tensor.grad_fn is not None]
        known = set(waiting)
        while waiting:
            node = waiting.pop()
            if type(node).__name__ == "AccumulateGrad":
                self._hooks.append(node.register_hook(self._gradient_of(node.variable)))
            elif isinstance(node, torch.autograd.function.BackwardCFunction):
                self._hook_function(node)
            new = {one for one, _ in node.next_functions if one is not None} - known
            known |= new
            waiting += new

    def _hook_function(self, node: Any) -> None:
        op = type(node).__name__.removesuffix("Backward")
        code = getattr(getattr(getattr(node, "_forward_cls", None), "backward", None), "__code__", None)
        place = _findings.Place(code.co_filename, code.co_firstlineno) if code is not None else _findings.Place("", 0)
        if code is not None:
            self.lines[op] = place
        self._hooks.append(node.register_hook(self._backward_of(op, None, False, str(place) or None)))

    def _gradient_of(self, param: torch.Tensor) -> Any:
        watching, param_of = weakref.ref(self), weakref.ref(param)

        def hook(*unused: Any) -> None:
            watch, made = watching(), param_of()
            session = watch._session() if watch is not None else None
            if made is not None and session is not None and session.alive and session.context.observing():
                session.context.observe_call("gradient", None, True, [("gradient", made, True)])

        return hook

    def _unhook(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()

    def accused(self, session: Session, message: str) -> None:
        """Prints the library's message about an overflow, with the script's line."""
        found = _culprit(session)
        at = f" ({found.filename}:{found.lineno})" if found is not None and found.filename else ""
        if session.verbosity > 0:
            maybe_print(message + at, True)

    def ended(self) -> None:
        """Ends a bracket. A survey shows its progress on a terminal."""
        self._iterations += 1
        self._unhook()
        now = time.monotonic()
        if not switch(_survey.SURVEY) or now - self._told < 0.5:
            return
        self._told = now
        if sys.stderr is not None and sys.stderr.isatty():
            print(f"\rlibamp: {counted(self._iterations, 'iteration')}", end="", file=sys.stderr, flush=True)


# ---- the public functions ----


def session_of(what: Any, who: str) -> Session:
    """Returns the session of a model or optimizer, of the last initialize for None. who: the caller's name."""
    spec = getattr(what, "_amp_stash", None) or getattr(what, "_amp_forward", None)
    session = last() if what is None else spec.session if spec is not None else None
    if session is None or not session.alive:
        of = "nothing" if what is None else f"this {type(what).__name__}"
        raise RuntimeError(f"amp.{who}: {of} went through no amp.initialize that is in force")
    return session


def _bits(what: str | Iterable[str] | None) -> int:
    chosen = WHAT if what is None else what.replace(",", "+").split("+") if isinstance(what, str) else list(what)
    for name in chosen:
        if name not in WHAT:
            raise ValueError(f"amp.observe: what is {name!r}, which is none of {', '.join(WHAT)}")
    return sum(1 << WHAT.index(name) for name in set(chosen))


def start(session: Session) -> None:
    """Starts to observe calls of torch functions in observed iterations."""
    names = {}
    for ref in session.models:
        item = ref()
        if item is not None:
            names.update({id(module): name or type(module).__name__ for name, module in item.named_modules()})
    session.end_observing()
    session.observer = Watch(session, names)


def as_asked(session: Session) -> None:
    """Starts if AMP_OBSERVE in the environment has started the library's observation."""
    if session.context.observing():
        start(session)


def observe(
    of: Any = None,
    *,
    what: str | Iterable[str] | None = None,
    every: int = 200,
    first: int = 1,
    after_skip: int = 1,
    names: Iterable[str] | None = None,
    max_bytes: int = 64 << 20,
    sample: int = 1,
) -> None:
    """Starts to record statistics: in one iteration of `every`, the `first` ones, and `after_skip` ones after a skipped
    step. An iteration lasts from the end of one scale_loss block to the end of the next. The results of training are
    bitwise the same.

    of: a model or an optimizer, None for the last initialize. what: among inputs, outputs, weights, scaled, gradients,
    masters, updates, None for all. names: shell patterns of ops ("encoder.0: *") and parameters, None for all.
    max_bytes: limit of the records. sample: 16 counts one cache line of 16 of large tensors on the CPU, for little more
    time than reading (infinities, NaNs and the largest value are exact, the rest is estimated). Another call starts
    anew. AMP_OBSERVE=1 in the environment starts it too, AMP_TRACE=FILE writes a file (docs/guide/see-what-it-did.md).
    Functions of torch.compile are not observed. GPU tensors are copied, which waits. Raises ValueError for a number
    below 1.
    """
    session = session_of(of, "observe")
    patterns = [names] if isinstance(names, str) else [str(name) for name in names or ()]
    numbers = {"every": every, "first": first, "after_skip": after_skip, "max_bytes": max_bytes, "sample": sample}
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"amp.observe: {name} is {number}, and must be 1 or more")
    session.context.observe(_bits(what), every, first, after_skip, patterns, max_bytes, sample)
    start(session)


def observe_stop(of: Any = None) -> None:
    """Stops recording and deletes the records."""
    session = session_of(of, "observe_stop")
    session.context.observe_stop()
    session.end_observing()


def observations(of: Any = None) -> list[Observation]:
    """Returns the records so far: ops in the order of their first call, then parameters."""
    session = session_of(of, "observations")
    found: list[Observation] = []
    for bit, op, name, dtype, iterations, fp16, bf16, latest, total in session.context.observations():
        kind = WHAT[bit.bit_length() - 1]
        of_type = _NAMES_OF_TYPES.get(dtype, "other")
        found.append(
            Observation(kind, op, name, of_type, iterations, fp16, bf16, Statistics(*latest), Statistics(*total))
        )
    return _html.Rows(found, "observed", _OBSERVED, _observed_row)


_OBSERVED = ("what", "op", "name", "type", "iterations", "elements", "largest", "least", "NaN, infinities")


def _observed_row(seen: Observation) -> tuple[object, ...]:
    total = seen.total
    bad = total.nans + total.plus_infinities + total.minus_infinities
    numbers = seen.iterations, total.elements, total.largest, total.least, bad
    return seen.what, seen.op or "", seen.name, seen.dtype, *numbers


def _culprit(session: Session) -> Culprit | None:
    told = session.context.culprit()
    if told is None:
        return None
    op, bracket, call, was_cast, in_backward, parameter, arguments, cause, weight, since, since_least = told
    watch = session.observer
    at = watch.lines.get(str(op).removesuffix(" (backward)")) if watch is not None else None
    listed = [
        Argument(name, is_output, _NAMES_OF_TYPES.get(dtype, "other"), *rest)
        for name, is_output, dtype, *rest in arguments
    ]
    place = at or _findings.Place("", 0)
    return Culprit(
        op, bracket, call, was_cast, in_backward, parameter, listed, place.filename, place.lineno, CAUSES[cause],
        weight, since, since_least
    )  # fmt: skip


def culprit(of: Any = None) -> Culprit | None:
    """Returns the source of the last overflow in an observed iteration, or None."""
    return _culprit(session_of(of, "culprit"))


def memory(of: Any = None, level: str | None = None) -> Memory:
    """Returns the bytes that the training uses now. level: a string "O0" to "O5", for an estimate at that level
    instead."""
    session = session_of(of, "memory")
    state_memory.report(session)
    taken = Memory(*session.context.memory(level))
    if level is None and session.split is not None:  # the context sees only the parameters
        taken = taken._replace(masters=session.split.bytes, masters_split=session.split.bytes)
    return taken
