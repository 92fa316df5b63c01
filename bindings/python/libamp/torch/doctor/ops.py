# SPDX-License-Identifier: Apache-2.0
"""The watch op by op: the ops that one iteration calls, and, after a skip or a loss that is not finite, the op where an
inf or NaN began. It sees ops below autograd, forward and backward, calls each as it is, and reads nothing until an
iteration has ended. It is off while torch.compile, a graph capture or another mode of torch has the ops."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _python_dispatch

from .._dtensors import local_part
from .._living import has_grad_fn
from .batches import Batches
from .cause import Node, Outside, find
from .checks.values import RANGED
from .checks.words import LOW
from .compiled_steps import frames
from .hands import Hands
from .later import Later, is_here
from .modules import Modules, address_of, tensors_of
from .places import script_locals, script_place
from .samples import is_readable
from .watch import Cause, Op, Run

AFTER = 3  # iterations that are watched after a skip or a loss that is not finite
LIMIT = 30  # iterations that are watched for a cause, in all
_FULL = 20000  # nodes of an iteration
_node: Any = getattr(torch._C, "_current_autograd_node", lambda: None)
_task: Any = getattr(torch._C, "_current_graph_task_id", lambda: -1)
_sequence: Any = getattr(torch.autograd, "_get_sequence_nr", lambda: 0)


class _Kind:
    """Facts of an op, by its overload."""

    def __init__(self, func: Any) -> None:
        schema = getattr(func, "_schema", None)
        space, _, name = (schema.name if schema is not None else str(func)).rpartition("::")
        self.name = name.rstrip("_") or name
        returns = schema.returns if schema is not None else ()
        alias = [each.alias_info for each in returns]
        self.inplace = any(each is not None and each.is_write for each in alias)
        view = getattr(func, "is_view", None)
        self.is_view = bool(view) if view is not None else any(each is not None and not each.is_write for each in alias)
        self.counts = space not in ("prim", "profiler", "c10d", "_c10d_functional") and name != "detach"


class _Mode(_python_dispatch.TorchDispatchMode):
    """Calls each op and notes it."""

    supports_higher_order_operators = True

    def __init__(self, ops: Ops) -> None:
        super().__init__()
        self.ops = ops
        self.thread = threading.get_ident()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True imports torch's compiler

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self.ops.mode is self and not self.ops.paused():
            try:
                self.ops.note(func, args, kwargs or {}, out)
            except Exception as error:  # never the script's
                self.ops.failed(self.ops.note.__name__, error)
        return out


def _flat(values: Any, found: list[Any]) -> list[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            _flat(value, found)
        else:
            found.append(value)
    return found


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


class Ops:
    """Decides which iterations are watched, and keeps what it saw of the present one."""

    def __init__(self, run: Run, later: Later, modules: Modules) -> None:
        self.run, self.later, self.modules = run, later, modules
        self.batches = Batches()
        self.mode: _Mode | None = None
        self.known: dict[tuple[Any, ...], Op] = {}
        self.kinds: dict[Any, _Kind] = {}
        self.paused: Callable[[], bool] = bool  # True while the doctor itself calls ops
        self.failed: Callable[[str, Exception], None] = lambda event, error: None
        self.autocasts: Callable[[], list[Any]] = list  # the regions that are open on this thread
        self.first: Any = None  # the optimizer whose cycle is watched for the table of ops
        self.surveyed = 0  # iterations of it
        self.reason = ""
        self.left = self.spent = 0
        self.deep = False
        self.hands = Hands(run, later, modules.names)
        self.frames = frames()  # before this run
        self.refused = ""
        self.bad_batches: dict[int, Cause] = {}  # by iteration
        self._clear()

    def _clear(self) -> None:
        self.nodes: list[Node] = []
        self.sizes: list[Any] = []
        self.outside: list[Outside] = []
        self.writer: dict[int, int] = {}  # address of memory: index of the node that wrote it, or -1 - outside
        self.by_sequence: dict[int, Op] = {}
        self.loss = -1

    # ---- when ----

    def wanted(self, reason: str, iteration: int) -> None:
        """A step was skipped, or a loss is not finite: the next iterations are watched. A bad sample may be rare, one
        in an epoch, so that no watch of a few iterations has it: its batch is the cause at once."""
        if self._is_named():
            return
        suspect = self.batches.suspect
        known = suspect if suspect is not None and suspect.iteration == iteration else None
        cause = self.bad_batches.get(iteration, known)
        if cause is not None:
            cause.after, self.left = reason, 0
            self.run.causes.append(cause)
        elif self.spent < LIMIT:
            self.reason, self.left = reason, AFTER

    def _is_named(self) -> bool:
        """Returns True if the cause is known. A gradient that overflows may be the scaler's search for its scale, so
        later ones are watched too."""
        return any(cause.kind != "gradient" for cause in self.run.causes)

    def on_backward_end(self, unstepped: int) -> None:
        """Runs after a backward. unstepped: backwards since a step was tried. Where something else than GradScaler
        skips steps (libamp's sessions, DeepSpeed), no step ends an iteration: backwards do."""
        if unstepped < 2 or not self.left or (self.mode is not None and not self._end()):
            return
        if self.left and not self._is_named():
            self.left -= 1
            self.spent += 1
            self._begin(deep=True)

    def on_tried(self, seen: Any) -> None:
        """Runs when a step was tried: an iteration has ended."""
        if self.mode is not None and not self._end():
            return
        if self.left and not self._is_named():
            self.left -= 1
            self.spent += 1
            self._begin(deep=True)
        elif self.first is None or ((self.first is not seen or self.hands.undecided) and self.surveyed < 4):
            self.first = self.first or seen
            self.surveyed += 1
            self._begin(deep=False)
        elif self.first is seen:
            self.surveyed = 4

    def _begin(self, deep: bool) -> None:
        refused = self._why_not()
        if refused:
            if refused not in self.run.unseen:
                self.run.unseen.append(refused)
            return
        self._clear()
        self.hands.clear()
        self.deep = deep
        self.modules.read()
        self.mode = _Mode(self)
        self.mode.__enter__()
        self.modules.enter()
        self.run.watched.append(self.run.iterations + 1)

    def _why_not(self) -> str:
        if self.run.compiled or frames() > self.frames:
            self.run.compiled = True
            return "compiled: ops not seen"
        if _python_dispatch._get_current_dispatch_mode() is not None:
            return "another mode of torch has the ops: ops not seen"
        if torch.cuda.is_available() and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return "a CUDA graph is captured: ops not seen"
        return ""

    def _end(self) -> bool:
        """Takes the mode away. Returns False where that must wait."""
        mode = self.mode
        if mode is None:
            return True
        if mode.thread != threading.get_ident() or _python_dispatch._get_current_dispatch_mode() is not mode:
            return False
        mode.__exit__(None, None, None)
        self.modules.leave()
        self.mode = None
        if self.deep and self.sizes:
            self._judge()
        self._clear()
        return True

    def stop(self) -> None:
        """Ends the watch with the run."""
        if not self._end():
            self.mode = None  # it stays on torch's stack and calls ops as they are
            self.modules.leave()

    def conclude(self) -> None:
        """Runs when all numbers have arrived: a run may end with its first loss that is not finite."""
        if not self.run.causes and self.batches.suspect is not None:
            self.run.causes.append(self.batches.suspect)

    def on_loss(self, loss: Any) -> None:
        """Runs before backward."""
        if self.mode is not None and isinstance(loss, torch.Tensor):
            self.loss = self.writer.get(address_of(loss), -1)

    def on_batch(self, batch: Any) -> None:
        """A DataLoader has made a batch: its tensors come from outside, although ops stacked them."""
        tensors = tensors_of(batch, "the batch")
        self.modules.on_batch(tensors)
        self.batches.add(tensors)
        for address in self.modules.batch:
            self.writer.pop(address, None)

    def _read_batch(self, key: str, tensor: Any, iteration: int, place: Any) -> None:
        local = _readable(tensor)
        if local is None:
            return

        def then(values: list[float]) -> None:
            nans, bad = int(values[0]), int(values[1])
            if bad:
                value = "NaN" if nans else "inf"
                cause = Cause(iteration, "batch", key, value, place=place, share=bad / local.numel(), count=bad)
                self.bad_batches.setdefault(iteration, cause)

        bad = ~torch.isfinite(local)
        self.later.put_all([torch.isnan(local).sum(), bad.sum()], then)

    def read_locals(self, iteration: int) -> None:
        """Reads the tensors that the script itself holds when its loss is not finite and no scaler keeps the step from
        the weights: the next iteration finds NaN in them alone. A dataset has the bad sample too, the batch is the
        smallest. Masks of -inf are meant."""
        if self._is_named() or iteration in self.bad_batches:
            return
        found = []
        for name, value in script_locals():
            for key, tensor in tensors_of(value, name):
                local = _readable(tensor) if not tensor.requires_grad and not has_grad_fn(tensor) else None
                if local is not None and is_here(local.device) and bool((local.isnan() | local.isposinf()).any()):
                    found.append((local.numel(), key, tensor))
        if found:
            _, key, tensor = min(found, key=lambda each: each[0])
            self._read_batch(key, tensor, iteration, script_place())

    # ---- an op ----

    def note(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Notes a call."""
        kind = self.kinds.get(func)
        if kind is None:
            kind = self.kinds[func] = _Kind(func)
        if not kind.counts or kind.is_view or len(self.nodes) >= _FULL:
            return
        self.hands.note(kind.name, args, out, _task() != -1)
        flat = _flat((*args, *kwargs.values()), [])
        inputs = [value for value in flat if isinstance(value, torch.Tensor)]
        outputs = [value for value in _flat((out,), []) if isinstance(value, torch.Tensor)]
        floats = [value for value in outputs if value.is_floating_point()]
        if not floats:
            return
        scalars = [float(value) for value in flat if type(value) in (int, float)]
        op = self._op(kind, inputs, floats, scalars)
        op.calls += 1
        if self.deep:
            self._node(op, inputs, floats, scalars)
        elif op.name in RANGED and op.output in LOW and not op.backward:
            read = [local for value in floats if (local := _readable(value)) is not None]
            if read:
                self.later.put(_largest(read), op.add)

    def _op(self, kind: _Kind, inputs: list[Any], outputs: list[Any], scalars: list[float]) -> Op:
        backward = _task() != -1
        if backward:
            node = _node()
            number = getattr(node, "_sequence_nr", lambda: -2)()  # torch 2.0 has none
            forward = self.by_sequence.get(number)
            found = (forward.module, forward.kind, forward.function, forward.protected) if forward else ("",) * 3 + (0,)
            place = forward.place if forward is not None else script_place()
        else:
            found, place = self.modules.where(), script_place()
        key = (kind.name, place, found, backward, bool(scalars), tuple(_dtype(value) for value in inputs))
        op = self.known.get(key)
        if op is None:
            module, module_kind, function, protected = found
            op = Op(kind.name, place, module, module_kind, function, bool(protected), backward)
            regions = self.autocasts()
            top = regions[-1] if regions else None
            op.autocast = top.dtype if top is not None and top.enabled and not backward else ""
            op.inputs = [_dtype(value) for value in inputs]
            op.output = _dtype(outputs[0])
            op.shapes = [tuple(value.shape) for value in inputs]
            op.scalars, op.inplace = scalars, kind.inplace
            self.known[key] = op
            self.run.ops.append(op)
        if not backward and any(value.requires_grad for value in inputs):
            self.by_sequence.setdefault(_sequence() - 1, op)
        return op

    def _node(self, op: Op, inputs: list[Any], outputs: list[Any], scalars: list[float]) -> None:
        sources = [self._source(value) for value in inputs if value.is_floating_point()]
        node = Node(op, sources, any(value - value != 0 for value in scalars))
        index = len(self.nodes)
        read = [local for value in outputs if (local := _readable(value)) is not None]
        if read:
            node.size = len(self.sizes)
            self.sizes.append(_largest(read))
        self.nodes.append(node)
        for value in outputs:
            self.writer[address_of(value)] = index

    def _source(self, tensor: Any) -> int:
        """Returns the node that made a tensor, or -1 - index of a tensor from outside."""
        address = address_of(tensor)
        source = self.writer.get(address)
        if source is None:
            made = Outside(*self.modules.outside(tensor))
            local = _readable(tensor)
            if local is not None:
                made.size, made.elements = len(self.sizes), local.numel()
                self.sizes += [_largest([local]), (~torch.isfinite(local)).sum().double()]
            self.outside.append(made)
            source = self.writer[address] = -len(self.outside)
        return source

    def _judge(self) -> None:
        """Looks for the cause when the numbers of the iteration have arrived."""
        nodes, outside, loss = self.nodes, self.outside, self.loss
        iteration, reason = self.run.iterations, self.reason

        def then(values: list[float]) -> None:
            for node in nodes:
                node.op.add(values[node.size] if node.size >= 0 else 0.0)
            cause = find(nodes, outside, values, loss)
            if cause is not None and not self._is_named():
                cause.iteration, cause.after = iteration, reason
                if cause.kind == "weight" and self.batches.suspect is not None:
                    cause = self.batches.suspect  # the weights have it from there
                self.run.causes.append(cause)
                self.left = 0

        self.later.put_all(self.sizes, then)


def _readable(tensor: Any) -> Any:
    local = local_part(tensor).detach()
    return local if is_readable(local) and local.numel() else None


def _largest(tensors: list[Any]) -> Any:
    """Returns the largest |value|, on the device: NaN if there is one, else inf if there is one, else -inf if there is
    one."""
    sizes = []
    for tensor in tensors:
        low, high = tensor.amin().double(), tensor.amax().double()
        size = torch.where(low == -math.inf, low, torch.maximum(high, -low))
        sizes.append(torch.where(high == math.inf, high, size))
    if len(sizes) == 1:
        return sizes[0]
    together = torch.stack([size.to(sizes[0].device) for size in sizes])
    return _largest([together])
