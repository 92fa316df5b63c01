# SPDX-License-Identifier: Apache-2.0
"""Wires optimizers in initialize: masters in the groups, and the methods step, zero_grad and add_param_group, which use
them."""
from __future__ import annotations

import functools
import inspect
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from . import cuda_graphs, fused_steps, outer_optimizers, sharding, split_masters, state_memory, stochastic_weights
from .compiling import apart, outside, run_as_it_is
from .process_state import maybe_print
from .session import Session


class AmpStash:
    """optimizer._amp_stash: Apex's private names, as views."""

    def __init__(self, session: Session, index: int, optimizer: Any) -> None:
        self.session, self.index = session, index
        self._optimizer = weakref.ref(optimizer)
        self.fuses = fused_steps.wanted(optimizer, session.level)
        self.skipped: Any = None  # was the last step() skipped? None: no step, a tensor: the GPU knows
        self.skips = cuda_graphs.Skips()
        self.running = False  # a step is running
        self.reported = False  # the context knows the bytes of the moments
        self.lazy_init_called = True
        self.already_patched = False  # the next step will be skipped
        self.params_have_scaled_gradients = False
        self.loss_id = 0
        self.by_hand: Any = None  # the bracket of a script with its own scale_loss
        self.bracketed = False  # a bracket has ended since the last step
        self.grads: dict[int, tuple[torch.Tensor, int]] = {}  # gradients and versions after a bracket, for checks
        self.has_grads = False  # that bracket left gradients
        self.undecided: Any = None  # the scaler of such a bracket, until its update_scale

    @property
    def stepped(self) -> bool | None:
        """Returns whether the last step() stepped. Waits for a GPU that decides."""
        return None if self.skipped is None else not self.skipped

    def _pairs(self) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
        pairs: list[tuple[torch.Tensor, torch.Tensor | None]] = self.session.context.masters(self.index)
        sparse = self.session.sparse
        return pairs if sparse is None else [pair for pair in pairs if not sparse.is_flag(pair[0])]

    def _groups(self, low: bool, masters: bool) -> list[list[torch.Tensor]]:
        model_of = {id(master): param for param, master in self._pairs() if master is not None}
        groups = []
        for group in getattr(self._optimizer(), "param_groups", []):
            chosen = [param for param in group["params"] if (id(param) in model_of) is low and param.requires_grad]
            groups.append(chosen if masters else [model_of.get(id(param), param) for param in chosen])
        return groups

    @property
    def fp16_groups(self) -> list[list[torch.Tensor]]:
        """Returns the 16-bit parameters of each group."""
        return self._groups(low=True, masters=False)

    @property
    def fp32_from_fp16_groups(self) -> list[list[torch.Tensor]]:
        """Returns the masters of each group."""
        return self._groups(low=True, masters=True)

    @property
    def fp32_from_fp32_groups(self) -> list[list[torch.Tensor]]:
        """Returns the parameters of each group without a master."""
        return self._groups(low=False, masters=True)

    @property
    def all_fp16_params(self) -> list[torch.Tensor]:
        """Returns the 16-bit parameters, with or without master."""
        return [param for param, _ in self._pairs() if param.dtype in (torch.float16, torch.bfloat16)]

    @property
    def all_fp32_params(self) -> list[torch.Tensor]:
        """Returns all other parameters."""
        return [param for param, _ in self._pairs() if param.dtype not in (torch.float16, torch.bfloat16)]

    @property
    def all_fp32_from_fp16_params(self) -> list[torch.Tensor]:
        """Returns the masters."""
        return [master for _, master in self._pairs() if master is not None]

    @property
    def all_fp32_from_fp32_params(self) -> list[torch.Tensor]:
        """Returns the parameters that the optimizer updates besides masters."""
        return [param for param, master in self._pairs() if master is None]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("all_") and name.endswith("_grad_stash"):  # libamp keeps gradients set aside in a bracket
            return [None] * len(
                getattr(self, name[: -len("_grad_stash")] + ("" if name.count("params") else "_params"))
            )
        raise AttributeError(name)


# ---- the methods ----


def _count_skip(optimizer: Any) -> None:
    """Counts a skip as a call of step, which lr_scheduler checks. For LARC it counts at the wrapped optimizer."""
    for each in (optimizer, *outer_optimizers.inside(optimizer, [])):
        each._opt_called = True
        if "_step_count" in vars(each):  # torch before 2.4
            each._step_count += 1


def _guard_closure(stash: AmpStash, closure: Callable[[], Any], lent: Any) -> Callable[[], Any]:
    """Returns a closure before which the model follows the masters, and whose brackets are outside of the step."""
    context = stash.session.context

    def guarded() -> Any:
        lent.__exit__()
        context.step_end(stash.index)
        try:
            with torch.enable_grad():
                return closure()
        finally:
            context.step_begin(stash.index)
            lent.__enter__()

    run_as_it_is(guarded.__code__)
    return guarded


def _begin(optimizer: Any, stash: AmpStash) -> Any:
    """Begins a step. Returns False to step, True to skip, or a tensor if the GPU decides."""
    context: Any = stash.session.context
    stash.session.follow()
    found_inf = context.step_begin(stash.index, bool(stash.session.masters))
    try:
        return cuda_graphs.settle(optimizer, found_inf)
    except BaseException:
        context.step_end(stash.index)
        raise


@outside
def _before_step(optimizer: Any, stash: AmpStash, closure: Any) -> Any:
    """Prepares a step and does the work of a skipped one. Returns the result of _begin."""
    session = stash.session
    if closure is not None and session.dynamic:
        raise RuntimeError(
            "a closure calls backward as often as it likes, which a dynamic loss scale cannot follow: use "
            "loss_scale=1.0 (or another number) in amp.initialize, or call step without a closure"
        )
    if stash.running:  # called by the step of the optimizer around it
        return False
    stash.skipped = True
    mistakes = session.mistakes
    if (mistakes.fresh or not stash.bracketed) and closure is None:
        mistakes.before_step(stash)
    mistakes.after_step(stash)
    skips = stash.undecided is not None and stash.undecided.update_scale()
    stash.already_patched = False
    found_inf = None if skips else _begin(optimizer, stash)
    if not skips and found_inf is not True:
        return found_inf
    if not skips:
        session.context.step_end(stash.index)
    _count_skip(optimizer)
    message = session.skip_message.pop(stash.loss_id, None)
    if message is not None and session.verbosity > 0:
        maybe_print(message, True)
    return True


@outside
def _stepped(stash: AmpStash, found_inf: Any) -> Any:
    """Ends a step. Returns whether it was skipped."""
    if not isinstance(found_inf, torch.Tensor):
        return False
    skipped = found_inf.clone()
    stash.skips.send(skipped)
    return skipped


def _make_step(old: Callable[..., Any], owner: Callable[..., Any]) -> Callable[..., Any]:
    @apart
    @functools.wraps(owner)
    def step(self: Any, closure: Any = None, *args: Any, **kwargs: Any) -> Any:
        stash: AmpStash = self._amp_stash
        inside = stash.running
        if not inside:
            stash.session.collect_edits()
        found_inf = _before_step(self, stash, closure)
        if inside:
            return old(*(() if closure is None else (closure,)), *args, **kwargs)
        if found_inf is True:
            return None
        stash.running = True
        try:
            lent = split_masters.lent(stash.session, self)
            guarded = () if closure is None else (_guard_closure(stash, closure, lent),)
            fuses = stash.fuses and closure is None
            with lent, cuda_graphs.lend_found_inf(self, found_inf), fused_steps.Choice(self, fuses):
                result = old(*guarded, *args, **kwargs)
            skipped = _stepped(stash, found_inf)
        finally:
            stash.running = False
            stash.session.context.step_end(stash.index)
            if stash.session.split is not None:
                stash.session.split.stepped()
        stash.skipped = skipped
        if not stash.reported:
            state_memory.report(stash.session)
            stash.reported = True
        stash.session.agree_elsewhere()
        if stash.session.shadows is not None:
            stash.session.shadows.stepped()
        return result

    return step


def _default_set_to_none(old: Callable[..., Any]) -> bool:
    try:
        parameter = inspect.signature(old).parameters.get("set_to_none")
    except (TypeError, ValueError):
        return True
    return True if parameter is None or parameter.default is inspect.Parameter.empty else bool(parameter.default)


def _zero(stash: AmpStash) -> None:
    for param, master in stash._pairs():
        if master is None:
            continue
        master.grad = None
        if param.grad is not None:
            if param.grad.grad_fn is not None:  # as torch's own zero_grad: a view cannot be detached in place
                param.grad.detach_()
            else:
                param.grad.requires_grad_(False)
            param.grad.zero_()


def _make_zero_grad(old: Callable[..., Any], owner: Callable[..., Any]) -> Callable[..., Any]:
    default = _default_set_to_none(old)

    @outside
    @functools.wraps(owner)
    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
        stash: AmpStash = self._amp_stash
        if kwargs.get("set_to_none", args[0] if args else default):
            stash.session.context.zero_grad(stash.index)
        else:
            _zero(stash)
        result = old(*args, **kwargs)
        if stash.session.split is not None:
            split_masters.forget_gradients(self)
        return result

    return zero_grad


def _list_params(group: Any) -> list[torch.Tensor]:
    if not isinstance(group, dict):
        raise TypeError(f"a param group is a dict with params, not a {type(group).__name__}")
    params = group["params"]
    if isinstance(params, torch.Tensor):
        return [params]
    if isinstance(params, (set, frozenset)):
        raise TypeError("a param group's params are a set, which has no order: give a list")
    return list(params)


def _make_add_param_group(old: Callable[..., Any], owner: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(owner)
    def add_param_group(self: Any, param_group: Any) -> Any:
        stash: AmpStash = self._amp_stash
        named = [param if isinstance(param, tuple) else (None, param) for param in _list_params(param_group)]
        params = [param for _, param in named]
        param_group["params"] = params
        add_params(stash, params)
        masters = stash.session.masters
        param_group["params"] = [
            masters.get(id(param), param) if name is None else (name, masters.get(id(param), param))
            for name, param in named
        ]
        return old(param_group)

    return add_param_group


def add_params(stash: AmpStash, params: list[torch.Tensor]) -> None:
    """Registers parameters added to an optimizer. Those of no model of the session keep their type."""
    session = stash.session
    ours = {id(param) for ref in session.models for param in getattr(ref(), "parameters", list)()}
    known = {id(param) for param, _ in stash._pairs()}
    known |= {id(master) for master in session.masters.values()}  # an outer optimizer has begun the step already
    new = [(param, f"added.{len(known) + i}", id(param) not in ours) for i, param in enumerate(params)]
    new = [entry for entry in new if id(entry[0]) not in known]
    if session.split is not None:
        session.split.before(param for param, _, foreign in new if not foreign)
    session.context.add_params(stash.index, new)
    if session.split is not None:
        session.split.after()
    if session.stochastic:
        stochastic_weights.mark((name, param) for param, name, foreign in new if not foreign)
    session.remember(stash._pairs())
    session.ranks_known = not torch.distributed.is_available()


def _replace(optimizer: Any, name: str, make: Callable[..., Callable[..., Any]]) -> Callable[[], None] | None:
    """Replaces a method of the optimizer by a bound method over the old one. Returns the undo function."""
    old = getattr(optimizer, name, None)
    if old is None:
        return None
    before = optimizer.__dict__.get(name)
    # stored as a plain function, so that only the instance's dict refers back to it
    function = getattr(old, "__func__", old)
    call = old if before is not None else functools.partial(_call, weakref.ref(optimizer), function)
    method = types.MethodType(make(call, function), optimizer)
    setattr(optimizer, name, method)

    def undo() -> None:
        if optimizer.__dict__.get(name) is not method:
            _unhook_scheduler(optimizer, name, method, before)
        elif before is None:
            delattr(optimizer, name)
        else:
            setattr(optimizer, name, before)

    return undo


def _call(optimizer: weakref.ref[Any], function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(optimizer(), *args, **kwargs)


run_as_it_is(_call.__code__)


def _unhook_scheduler(optimizer: Any, name: str, method: Any, before: Any) -> None:
    """Handles a scheduler that has wrapped our method later: it gets a counting method that calls the optimizer's
    own."""
    wrapper = optimizer.__dict__.get(name)
    if wrapper is None:
        return
    del optimizer.__dict__[name]
    if before is not None:
        setattr(optimizer, name, before)
        return
    function = getattr(type(optimizer), name)

    @functools.wraps(function)
    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        self._opt_called = True
        return function(self, *args, **kwargs)

    for flag in ("_wrapped_by_lr_sched", "_with_counter"):
        if hasattr(wrapper, flag):
            setattr(counted, flag, True)
    setattr(optimizer, name, types.MethodType(counted, optimizer))


# ---- Apex's private methods ----


def _copy_masters(self: Any) -> None:
    with torch.no_grad():
        for param, master in self._amp_stash._pairs():
            if master is not None:
                param.copy_(master)


def _nothing(self: Any, *args: Any, **kwargs: Any) -> None:
    """Does nothing: masters exist from the start."""


def _prepare(self: Any) -> None:
    """Runs the first half of a script's own scale_loss: sets existing gradients aside."""
    stash: AmpStash = self._amp_stash
    stash.session.mistakes.by_hand = True
    if stash.by_hand is not None:
        stash.by_hand.cancel()  # its backward failed
    stash.by_hand = sharding.begin(stash.session, [stash.index], 0, delay_check=True)


def _post(self: Any, loss_scaler: Any) -> None:
    """Runs the second half: unscales the gradients of backward. loss_scaler.update_scale() or the next step decides."""
    stash: AmpStash = self._amp_stash
    stash.session.mistakes.by_hand = True
    context: Any = stash.session.context
    its: Any = getattr(loss_scaler, "_context", None)
    if its is not context:
        raise RuntimeError(
            "_post_amp_backward takes one of amp._amp_state.loss_scalers, of the initialize of this optimizer"
        )
    bracket, stash.by_hand = stash.by_hand, None
    if bracket is None or loss_scaler._id != 0:  # begun too late, or for another loss: begin again
        params = [param for param, _ in stash._pairs()]
        made = [param.grad for param in params]
        for param in params:
            param.grad = None
        if bracket is not None:
            bracket.cancel()
        bracket = sharding.begin(stash.session, [stash.index], loss_scaler._id, delay_check=True)
        for param, grad in zip(params, made, strict=True):
            param.grad = grad
    sharding.end(stash.session, bracket)
    stash.undecided = loss_scaler


_PRIVATE_METHODS: dict[str, Callable[..., Any]] = {
    "_lazy_init_maybe_master_weights": _nothing,
    "_amp_lazy_init": _nothing,
    "_master_params_to_model_params": _copy_masters,
    "_prepare_amp_backward": _prepare,
    "_post_amp_backward": _post,
}
PRIVATE = tuple(_PRIVATE_METHODS)


def _put_masters(optimizer: Any, session: Session) -> Callable[[], None]:
    """Puts masters in place of parameters in groups and state. Returns the undo function."""
    for group in optimizer.param_groups:
        group["params"][:] = [session.masters.get(id(param), param) for param in group["params"]]
    outer_optimizers.re_key(optimizer, session.params_and_masters())

    def undo() -> None:
        pairs = [(master, param) for param, master in session.params_and_masters()]
        back = {id(master): param for master, param in pairs}
        for group in optimizer.param_groups:
            group["params"][:] = [back.get(id(param), param) for param in group["params"]]
        outer_optimizers.re_key(optimizer, pairs)

    return undo


def wire(optimizer: Any, session: Session, index: int, others: list[Any]) -> None:
    """Wires an optimizer as number `index` of the session, and those inside it. If one of those is called directly, its
    step is the whole optimizer's step. `others`: optimizers that initialize received too."""
    stash = AmpStash(session, index, optimizer)
    session.remember(stash._pairs())
    for each in (optimizer, *outer_optimizers.inside(optimizer, others)):
        session.undo.append(_wire_one(each, stash))
    session.optimizers.append(weakref.ref(optimizer))


def _wire_one(optimizer: Any, stash: AmpStash) -> Callable[[], None]:
    optimizer._amp_stash = stash
    undo = [_put_masters(optimizer, stash.session)]
    methods = [("step", _make_step), ("zero_grad", _make_zero_grad), ("add_param_group", _make_add_param_group)]
    if stash.session.split is not None:
        methods.append(("load_state_dict", split_masters.make_load))
    for name, make in methods:
        way_back = _replace(optimizer, name, make)
        if way_back is not None:
            undo.append(way_back)
    for name, function in _PRIVATE_METHODS.items():
        setattr(optimizer, name, types.MethodType(function, optimizer))

    def unwire() -> None:
        while undo:
            undo.pop()()
        for name in (*PRIVATE, "_amp_stash"):
            delattr(optimizer, name)

    return unwire


def stepped(optimizer: Any) -> bool | None:
    """Returns True if the optimizer's last step() stepped, False if it skipped, None before the first step or for an
    optimizer that amp does not know. If a GPU decides, this waits for it."""
    stash = getattr(optimizer, "_amp_stash", None)
    return None if stash is None else stash.stepped
