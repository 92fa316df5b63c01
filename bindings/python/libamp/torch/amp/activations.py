# SPDX-License-Identifier: Apache-2.0
"""Stores saved activations in 8, 4 or 2 bits until backward.

    amp.compress_activations(model)                              4 bits
    amp.compress_activations(model, {"encoder": 2, "": 4})       by the names of modules
    amp.compress_activations(model, "auto", budget=3.0)          by the effect of rounding on the gradients

Sources: Chen et al. 2021, ActNN, arXiv:2104.14129; Liu et al. 2022, GACT, arXiv:2206.11357.
"""
from __future__ import annotations

import fnmatch
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from .._devices import need_kernels
from . import sensitivity
from .compiling import outside
from .exempt import _AFTER_ERRORS
from .packed import Store
from .process_state import loss_probes

_BITS = (8, 4, 2)


class Saved(NamedTuple):
    """Bytes that the last forward saved for backward: the size that torch would use, and the compressed size."""

    before: int
    now: int


class _Hook:
    """A hook of a module. Copies of the module have it too, pickles do not."""

    def __init__(self, run: Callable[..., None] | None, *args: Any) -> None:
        self.run, self.args = run, args

    def __call__(self, module: Any, args: Any, output: Any = None) -> None:
        if self.run is not None:
            self.run(*self.args)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Hook:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _Hook, (None,)


class _Thread(threading.local):
    """State of one thread: its depth in the model's forward and the setting of the current module."""

    depth = 0
    hooks: Any = None  # torch's, while they are in force
    frame: Any = None  # of the call of the model for which they are

    def __init__(self, setting: Any) -> None:
        self.settings = [setting]
        self.numbers: dict[str, int] = {}


def _call_of_module() -> Any:
    """Returns the frame in which torch calls the module of the running hook."""
    frame: Any = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.endswith("modules/module.py"):
        frame = frame.f_back
    return frame


def _is_over(frame: Any) -> bool:
    """Returns True if the frame has ended. torch runs no hooks after a KeyboardInterrupt."""
    try:
        frame.clear()
    except (RuntimeError, AttributeError):  # the frame runs, or there is none
        return False
    return True


def _checked_bits(bits: Any) -> Any:
    if bits is None or (type(bits) is int and bits in _BITS):
        return bits
    raise ValueError(
        f'amp.compress_activations: bits is {bits!r}, and must be 8, 4 or 2, "auto", or a dict of numbers by patterns'
    )


class _Rules:
    """The arguments bits and skip, and the set of rules that matched a module."""

    def __init__(self, bits: Any, skip: Any) -> None:
        self.patterns = dict(bits) if isinstance(bits, Mapping) else {"": bits}
        skip = () if skip is None else skip
        single = isinstance(skip, (str, nn.Module)) or callable(skip) or not isinstance(skip, Iterable)
        self.skipped = [skip] if single else list(skip)
        for one in self.skipped:
            if isinstance(one, type) or not (isinstance(one, (str, nn.Module)) or callable(one)):
                raise TypeError(
                    f"amp.compress_activations: skip has {one!r}, and takes modules, patterns of their names, and "
                    "functions of name and module"
                )
        self._used: set[int] = set()

    def _skips(self, name: str, module: nn.Module, one: Any) -> bool:
        if isinstance(one, str):
            return fnmatch.fnmatchcase(name, one)
        return module is one if isinstance(one, nn.Module) else bool(one(name, module))

    def of(self, name: str, module: nn.Module, around: Any) -> Any:
        """Returns the bits of a module, None for exact. Without a rule of its own the bits of the enclosing module."""
        for one in self.skipped:
            if self._skips(name, module, one):
                self._used.add(id(one))
                return None
        for pattern, wanted in self.patterns.items():
            if pattern and fnmatch.fnmatchcase(name, pattern):
                self._used.add(id(pattern))
                return _checked_bits(wanted)
        return around

    def unused(self) -> list[str]:
        """Returns the rules that match no module."""
        given = [one for one in (*self.skipped, *filter(None, self.patterns)) if isinstance(one, (str, nn.Module))]
        return [one if isinstance(one, str) else type(one).__name__ for one in given if id(one) not in self._used]


def _settings(model: nn.Module, bits: Any, skip: Any) -> dict[str, Any]:
    """Returns the setting of each module by name."""
    rules = _Rules(bits, skip)
    general = rules.patterns.get("")
    made = {"": rules.of("", model, general if general == "auto" else _checked_bits(general))}
    for name, module in model.named_modules():
        if name:
            made[name] = rules.of(name, module, made[name.rpartition(".")[0]])
    unused = rules.unused()
    if unused:
        raise ValueError(
            f"amp.compress_activations: {unused[0]!r} is no module of this {type(model).__name__}: patterns are of "
            'names as model.named_modules() has them, as "layers.*"'
        )
    return made


def _context_of(model: nn.Module) -> Any:
    """Returns the context of the initialize call of the model, or of the model in a parallel wrapper, else None."""
    for module in (model, model._modules.get("module")):
        spec = module.__dict__.get("_amp_forward") if module is not None else None
        if spec is not None and spec.session is not None and spec.session.alive:
            return spec.session.context
    return None


class Compression:
    """The handle that compress_activations returns. Compression lasts until remove()."""

    def __init__(
        self, model: nn.Module, settings: dict[str, Any], auto: sensitivity.Budget | None, **options: Any
    ) -> None:
        self._thread = _Thread(("", settings[""]))
        self.store = Store(model, bits_of=self._bits_of, **options)
        self._auto = auto
        self._hooks: list[Any] = []
        self._outer = _Hook(self._enter, model), _Hook(self._leave)
        for name, module in model.named_modules():
            around = settings[name.rpartition(".")[0]] if name else settings[""]
            if name and (auto is not None or settings[name] is not around):
                self._add(module, _Hook(self._thread_push, (name, settings[name])), _Hook(self._thread_pop))
        self._add(model, *self._outer)
        if auto is not None:
            loss_probes.add(self)

    def _add(self, module: nn.Module, before: _Hook, after: _Hook) -> None:
        self._hooks.append(module.register_forward_pre_hook(before, prepend=True))
        self._hooks.append(module.register_forward_hook(after, always_call=True))

    def remove(self) -> None:
        """Ends the compression. Tensors that are already packed are unpacked in their backward."""
        while self._hooks:
            self._hooks.pop().remove()
        for hook in self._outer:
            hook.run = None  # of copies of the model, too
        self._end_interrupted()
        loss_probes.discard(self)

    def __enter__(self) -> Compression:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    # ---- forward ----

    def _end_interrupted(self) -> None:
        """Ends hooks of an interrupted forward, so that they compress nothing more."""
        thread = self._thread
        if thread.hooks is None or not _is_over(thread.frame):
            return
        if torch._C._autograd._top_saved_tensors_default_hooks(True)[0] is thread.hooks.pack_hook:
            thread.hooks.__exit__()
        thread.hooks, thread.frame, thread.depth = None, None, 0

    def _save(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        if _is_over(self._thread.frame):
            return tensor if tensor.is_leaf else tensor.detach(), tensor._version
        return self.store.save(tensor)

    @outside
    def _enter(self, model: nn.Module) -> None:
        self._end_interrupted()
        thread = self._thread
        thread.depth += 1
        if thread.depth > 1 or not model.training or not torch.is_grad_enabled():
            return
        if not torch._C._autograd._saved_tensors_hooks_is_enabled():  # torch.func
            return
        del thread.settings[1:]
        thread.numbers.clear()
        self.store.begin(_context_of(model))
        if self._auto is not None:
            self._auto.begin()
        hooks = torch.autograd.graph.saved_tensors_hooks(self._save, self.store.restore)
        thread.frame = _call_of_module()
        hooks.__enter__()
        thread.hooks = hooks

    @outside
    def _leave(self) -> None:
        thread = self._thread
        if thread.depth == 0:  # another hook raised before ours had begun
            return
        thread.depth -= 1
        if thread.depth == 0 and thread.hooks is not None:
            hooks, thread.hooks, thread.frame = thread.hooks, None, None
            self.store.forward_over()
            hooks.__exit__()

    def _thread_push(self, setting: Any) -> None:
        self._thread.settings.append(setting)

    def _thread_pop(self) -> None:
        if len(self._thread.settings) > 1:
            self._thread.settings.pop()

    def _bits_of(self, source: torch.Tensor) -> Any:
        name, bits = self._thread.settings[-1]
        if bits != "auto" or self._auto is None:
            return bits
        numbers = self._thread.numbers
        numbers[name] = numbers.get(name, -1) + 1
        return self._auto.bits_of((name, numbers[name]), source)

    # ---- saved tensors ----

    def measure(self, loss: torch.Tensor) -> None:
        """Measures the effect of each rounding on the gradients, for bits="auto" without amp.scale_loss. Call it with
        the loss before backward."""
        if self._auto is None:
            raise RuntimeError('measure: this is for bits="auto"')
        self._auto.measure(loss, self.store)
        if self._auto.done:
            loss_probes.discard(self)

    @property
    def bytes(self) -> Saved:
        """Returns the bytes of the last forward, without parameters and tensors below min_size."""
        kept = self.store.counts.values()
        return Saved(sum(before for _, before, _ in kept), sum(now for _, _, now in kept))

    @property
    def bits(self) -> dict[tuple[str, int], int]:
        """Returns the bits that "auto" has chosen, by module and index of the tensor. Empty while it measures."""
        return {} if self._auto is None else dict(self._auto.chosen)

    def report(self) -> str:
        """Returns a table of the last forward's tensors: reason, number, bytes before and now."""
        rows = sorted(self.store.counts.items(), key=lambda row: -row[1][1])
        lines = [f"{'':12} {'tensors':>8} {'MiB before':>11} {'MiB now':>9}"]
        lines += [f"{why:12} {n:8} {b / 2**20:11.2f} {a / 2**20:9.2f}" for why, (n, b, a) in rows]
        lines.append(f"{'small':12} {self.store.small:8}")
        before, now = self.bytes
        return "\n".join(lines) + f"\nsaved for backward: {before / 2**20:.2f} MiB as {now / 2**20:.2f} MiB\n"


def compress_activations(
    model: nn.Module,
    bits: int | str | Mapping[str, int | None] = 4,
    skip: str | nn.Module | Callable[[str, nn.Module], Any] | Iterable[Any] = (),
    *,
    softmax: bool = False,
    min_size: int = 1024,
    budget: float = 4.0,
    steps: int = 3,
    seed: int | None = None,
) -> Compression:
    """Stores the activations that the model's forward saves for backward in `bits` bits an element, in training mode.

    bits: 8, 4 or 2, or a dict of these by shell patterns of module names ("" for all others, None for exact), or
    "auto". A pattern applies to all modules inside. "auto" measures over the first `steps` brackets of scale_loss and
    chooses the least variance of the gradients at an average of `budget` bits an element. skip: modules, patterns, or a
    function of name and module, whose activations remain exact. softmax: True also rounds probabilities, and the query
    and key of fused attention. min_size: smaller tensors, in elements, remain exact. seed: of the rounding, None for
    torch.initial_seed() and the rank.

    Parameters, nonfinite tensors and tensors without a graph remain exact. Of the latter, masks take 1 bit, indices 16
    or 32.

    Returns a Compression. Raises TypeError or ValueError for wrong arguments, a model without trained parameters or one
    that is already compressed, RuntimeError before PyTorch 2.1.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"amp.compress_activations: a torch.nn.Module is wanted, not {type(model).__name__}")
    if not any(param.requires_grad for param in model.parameters()):
        raise ValueError(
            f"amp.compress_activations: this {type(model).__name__} has no parameter that is trained: there is nothing "
            "that backward waits for"
        )
    for device in {param.device for param in model.parameters()}:
        need_kernels("amp.compress_activations", device, "leave it out")
    if not _AFTER_ERRORS:
        raise RuntimeError("amp.compress_activations: PyTorch 2.1 or later is needed: its hooks run after errors, too")
    if any(isinstance(hook, _Hook) and hook.run is not None for hook in model._forward_pre_hooks.values()):
        raise ValueError("amp.compress_activations: this model is compressed already: call its handle's remove() first")
    if bits is None:
        raise ValueError("amp.compress_activations: bits is None: use skip, or patterns")
    for name, value, least in (("min_size", min_size, 0), ("steps", steps, 1), ("seed", seed, None)):
        if value is None and least is None:
            continue
        if not isinstance(value, int):
            raise TypeError(f"amp.compress_activations: {name} is {value!r}, and must be an integer")
        if least is not None and value < least:
            raise ValueError(f"amp.compress_activations: {name} is {value}, and must be {least} or more")
    if bits == "auto" and getattr(model, "static_graph", False):
        raise ValueError(
            'amp.compress_activations: "auto" runs backward several times, which DistributedDataParallel with '
            "static_graph=True cannot: use numbers"
        )
    auto = sensitivity.Budget(budget, steps) if bits == "auto" else None
    settings = _settings(model, bits, skip)
    if seed is None:
        ranks = torch.distributed.is_available() and torch.distributed.is_initialized()
        seed = torch.initial_seed() + (torch.distributed.get_rank() << 40 if ranks else 0)
    return Compression(model, settings, auto, min_size=min_size, softmax=softmax, seed=seed)
