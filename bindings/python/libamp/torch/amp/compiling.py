# SPDX-License-Identifier: Apache-2.0
"""Support for torch.compile: the frames of the library that it skips, and the graphs that a session invalidates.
Nothing here imports torch._dynamo, which takes seconds."""
from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeVar

import torch

_frames: Any = torch._C._dynamo.eval_frame
set_compiler: Callable[[Any], Any] = _frames.set_eval_frame  # of this thread, None for none. Returns the old one

# True, as a constant, where torch.compile traces. torch 2.0 has none, and bool() is False
is_compiling: Callable[[], bool] = getattr(getattr(torch, "compiler", None), "is_compiling", bool)

_Function = TypeVar("_Function", bound=Callable[..., Any])


def run_as_it_is(code: types.CodeType, calls: bool = False) -> None:
    """Makes torch.compile skip frames of this code. `calls`: also the functions that it calls, which would be
    compiled."""
    if hasattr(_frames, "skip_code"):  # until torch 2.6
        _frames.skip_code(code)
    else:
        skip, default = _frames._FrameAction.SKIP, _frames._FrameAction.DEFAULT
        _frames.set_code_exec_strategy(code, _frames._FrameExecStrategy(skip, skip if calls else default))


def apart(function: _Function, calls: bool = False) -> _Function:
    """Ends a graph before each call of the function, as torch.compiler.disable does. calls: see run_as_it_is."""
    marked: Any = function
    run_as_it_is(marked.__code__, calls)
    marked._torchdynamo_disable = True
    marked._torchdynamo_disable_msg = "libamp: gradients and masters change hands there"
    return function


def outside(function: _Function) -> _Function:
    """Keeps a function and the functions that it calls out of graphs. For brackets."""
    return apart(function, calls=True)


def _call(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return forward(*args, **kwargs)


def root() -> Callable[..., Any]:
    """Returns the first frame of a graph. torch.compile stores graphs by the code of the frame, does not know levels,
    and skips forwards of torch.nn's own modules. With a code of its own a model finds the graphs of its level."""
    code = _call.__code__
    return types.FunctionType(code.replace(co_name="forward"), globals())


class Graphs:
    """The graphs compiled while torch's functions are patched. Such a graph contains the casts of its policy.
    torch.compile checks the identity of traced functions, so a graph from before the patches is not used under them and
    is used again after them. It checks neither tensor methods and operators nor the policy, so graphs compiled under a
    policy are dropped when one begins or ends. All other graphs of the process remain. Those with methods and operators
    only are also used, without casts, while functions are patched."""

    _before: dict[int, weakref.ref[types.CodeType]] | None = None

    def begin(self) -> None:
        """Begins before the first context patches."""
        self.forget()  # a context that the garbage collector ended has dropped none
        self._before = {id(entry.code): weakref.ref(entry.code) for _, entry in _entries()}

    def end(self) -> None:
        """Ends after the last context."""
        self.forget()
        self._before = None

    def forget(self, code: Collection[types.CodeType] = ()) -> None:
        """Drops the graphs compiled since `begin`, and older ones of these code objects and of their continuations
        after a graph break."""
        dynamo = sys.modules.get("torch._dynamo")
        if dynamo is None or self._before is None:
            return
        if not hasattr(_frames, "_debug_get_cache_entry_list"):  # torch 2.0
            dynamo.reset()
            return
        own = {id(each) for each in code}
        stale: dict[int, tuple[types.CodeType, list[Any], int]] = {}
        for frame, entry in _entries():
            of_code = stale.setdefault(id(frame), (frame, [], 0))
            wired = frame.co_filename == _call.__code__.co_filename  # by one session, under its policy alone
            if not wired and (self._since(entry.code) or _origin(frame) in own):
                of_code[1].append(entry)
            else:
                stale[id(frame)] = (*of_code[:2], of_code[2] + 1)
        for frame, entries, kept in stale.values():
            if entries:
                _drop(frame, entries, kept)

    def _since(self, compiled: types.CodeType) -> bool:
        known = (self._before or {}).get(id(compiled))
        return known is None or known() is not compiled


def _entries() -> Iterator[tuple[types.CodeType, Any]]:
    """Yields the code of each compiled frame with its graphs."""
    frames = sys.modules.get("torch._dynamo.convert_frame")
    if frames is None or not hasattr(_frames, "_debug_get_cache_entry_list"):
        return
    for known in list(frames.input_codes.seen):
        code = known()
        if code is not None:
            for entry in _frames._debug_get_cache_entry_list(code):
                if entry.code is not None:  # else dropped
                    yield code, entry


def _origin(code: types.CodeType) -> int:
    """Returns the code from which a graph break cut this frame, or its own."""
    resumed: Any = sys.modules["torch._dynamo.resume_execution"]
    made = resumed.ContinueExecutionCache.generated_code_metadata
    while code in made:
        code = made[code].code
    return id(code)


def _drop(code: types.CodeType, entries: list[Any], kept: int) -> None:
    """Drops these graphs of a frame, or all of its graphs if torch cannot drop a single one."""
    from torch._dynamo import guards

    deleted = getattr(guards, "DeletedGuardManagerWrapper", None)
    managers: list[Any] = [getattr(entry, "guard_manager", None) for entry in entries]
    if not kept or deleted is None or not all(getattr(each, "extra_state", None) for each in managers):
        _frames.reset_code(code)
        return
    for entry, manager in zip(entries, managers, strict=True):
        manager.extra_state.invalidate(entry, deleted("libamp: the policy that it was compiled under has changed"))
