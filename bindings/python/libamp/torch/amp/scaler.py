# SPDX-License-Identifier: Apache-2.0
"""apex.amp.scaler. The library has the scale and its counters. A LossScaler is a view of those of a context, or of its
own context if a script makes one."""
from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch

from ... import _core, kernels
from .._dtensors import local_part
from . import sharding, storage
from .properties import loss_scale_of
from .session import Session, live

_NEVER = 2**32 - 1
_ON_DEVICE = 2


@torch.no_grad()
def scale_check_overflow_python(
    model_grad: torch.Tensor, master_grad: torch.Tensor, scale: float, check_overflow: bool = False
) -> bool:
    """Computes master_grad = model_grad * scale. With check_overflow it returns True if a result is not finite."""
    return bool(kernels.scale([master_grad], [model_grad], scale)) and check_overflow


@torch.no_grad()
def axpby_check_overflow_python(
    model_grad: torch.Tensor,
    stashed_grad: torch.Tensor,
    master_grad: torch.Tensor,
    a: float,
    b: float,
    check_overflow: bool = False,
) -> bool:
    """Computes master_grad = a * model_grad + b * stashed_grad. With check_overflow it returns True if model_grad is
    not finite."""
    finite = not check_overflow or bool(torch.isfinite(model_grad).all())
    kernels.axpby([master_grad], a, [model_grad], b, [stashed_grad])
    return not finite


class LossScaler:
    """Scales losses in loops that scale by hand: LossScaler("dynamic") or LossScaler(128.0), as Apex's. scale_factor is
    always 2. _amp_state.loss_scalers has one for each loss, with the scale that scale_loss uses."""

    warned_no_fused_kernel = False
    warned_unscaling_non_fp32_grad = False
    has_fused_kernel = True

    def __init__(
        self,
        loss_scale: float | str,
        init_scale: float = 2.0**16,
        scale_factor: float = 2.0,
        scale_window: int = 2000,
        min_loss_scale: float | None = None,
        max_loss_scale: float = 2.0**24,
    ) -> None:
        dynamic = loss_scale == "dynamic"
        settings: dict[str, Any] = {"loss_scale": loss_scale_of(loss_scale), "max_skips": _NEVER}
        if dynamic:
            settings.update(
                init_scale=min(init_scale, max_loss_scale), window=scale_window, min_scale=min_loss_scale or None,
                max_scale=max_loss_scale,
            )
        probe = torch.nn.Parameter(torch.zeros(1))
        self._show(_core.Context("O0", [], [[probe]], settings, None, [], storage), 0, dynamic, settings)
        self._probe: torch.nn.Parameter | None = probe

    @classmethod
    def of(cls, session: Session, loss_id: int) -> LossScaler:
        """Returns the scaler of a session's loss."""
        scaler = cls.__new__(cls)
        scaler._show(session.context, loss_id, session.dynamic, session.resolved)
        scaler._probe = None
        session.scalers.append(scaler)
        return scaler

    def _show(self, context: Any, loss_id: int, dynamic: bool, settings: dict[str, Any]) -> None:
        self._context, self._id, self.dynamic = context, loss_id, dynamic
        self._window = self._own_window = int(settings.get("window", 2000))
        self._min_loss_scale, self._max_loss_scale = settings.get("min_scale"), settings.get("max_scale", 2.0**24)
        self._first = self.loss_scale()
        self._told = False
        self._cleared = 0  # number of skips at clear_overflow_state
        self._overflow_buf = torch.zeros(1, dtype=torch.int32)

    def loss_scale(self) -> float:
        """Returns the factor of the next loss."""
        return float(self._context.scale(self._id))

    @property
    def _loss_scale(self) -> float:
        return self.loss_scale()

    @_loss_scale.setter
    def _loss_scale(self, value: float) -> None:
        self._load(loss_scale=float(value))

    @property
    def _unskipped(self) -> int:
        return self.shown(self._counted())

    @_unskipped.setter
    def _unskipped(self, value: int) -> None:
        self._load(unskipped=int(value))

    @property
    def _has_overflow(self) -> bool:
        record = self._context.record(self._id)
        return self._told or bool(record["skips_in_row"] and record["skipped"] > self._cleared)

    @_has_overflow.setter
    def _has_overflow(self, value: bool) -> None:
        self.clear_overflow_state()
        self._told = bool(value)

    @property
    def _scale_seq_len(self) -> int:
        """Returns the number of clean blocks before the scale grows. Some recipes shorten it after initialize."""
        return self._own_window

    @_scale_seq_len.setter
    def _scale_seq_len(self, value: int) -> None:
        """Sets the number. Some recipes shorten it after initialize."""
        if not 1 <= value <= self._window:
            raise ValueError(
                f"_scale_seq_len is 1 to {self._window} here: amp.initialize(..., window={value}) makes it larger"
            )
        unskipped = self._unskipped
        self._own_window = int(value)
        self._unskipped = unskipped

    @property
    def _ahead(self) -> int:
        """Returns the number from which counting begins if a shorter window was set, because the library counts to the
        window of initialize."""
        return self._window - self._own_window if self.dynamic else 0

    def shown(self, counted: int) -> int:
        """Converts the library's count to the script's."""
        return max(counted - self._ahead, 0)

    def _counted(self) -> int:
        return int(read_states(self._context)[f"loss_scaler{self._id}"]["unskipped"])

    def _hasten(self) -> None:
        """Adjusts the count after a bracket, which may have restarted it."""
        if self._ahead and (counted := self._counted()) < self._ahead:
            self._unskipped = counted

    def _restart(self) -> None:
        """Restores the state after initialize."""
        self._load(loss_scale=self._first, unskipped=0)

    def clear_overflow_state(self) -> None:
        """Clears the record of overflows."""
        self._told = False
        self._cleared = self._context.record(self._id)["skipped"]
        self._overflow_buf.zero_()

    @torch.no_grad()
    def unscale(
        self,
        model_grads: Sequence[torch.Tensor],
        master_grads: Sequence[torch.Tensor],
        unused_scale: Any = None,
        models_are_masters: bool = False,
        scale_override: float | None = None,
    ) -> None:
        """Computes master = model / scale. Records a nonfinite result for update_scale."""
        scale = self.loss_scale() if scale_override is None else scale_override
        if self._has_overflow or (scale == 1.0 and models_are_masters and not self.dynamic):
            return
        if model_grads:
            found = torch.zeros(1, device=model_grads[0].device)
            masters, made = (list(map(local_part, grads)) for grads in (master_grads, model_grads))
            kernels.scale(masters, made, 1.0 / scale, found_inf=found)
            self._note(found)

    @torch.no_grad()
    def unscale_with_stashed(
        self,
        model_grads: Sequence[torch.Tensor],
        stashed_master_grads: Sequence[torch.Tensor],
        master_grads: Sequence[torch.Tensor],
        scale_override: tuple[float, float, float] | None = None,
    ) -> None:
        """Computes master = model / scale + stashed. scale_override: the scales of model, of stashed, and of the
        result."""
        if self._has_overflow:
            return
        model, stashed, out = scale_override or (self.loss_scale(), 1.0, 1.0)
        if model_grads:
            lists = (model_grads, stashed_master_grads, master_grads)
            made, kept, masters = (list(map(local_part, grads)) for grads in lists)
            found, unused = torch.zeros(2, 1, device=made[0].device)
            kernels.check(made, norm=unused, found_inf=found)  # before axpby, which may write to them
            kernels.axpby(masters, out / model, made, out / stashed, kept, found_inf=unused)
            self._note(found)

    def _note(self, found: torch.Tensor) -> None:
        self._overflow_buf = flag = self._overflow_buf.to(found.device)
        flag.copy_(torch.maximum(flag, found.to(flag.dtype).reshape(flag.shape)))

    def update_scale(self) -> bool:
        """Decides step or skip and updates the scale, for callers that unscale by hand (unscale, or blocks with
        delay_overflow_check). It uses their results, _has_overflow and _overflow_buf. Returns True if the caller should
        skip."""
        overflow = self._told or bool(torch.as_tensor(self._overflow_buf).any())
        self._told = False
        if self._probe is not None:
            return self._update_own(self._probe, overflow)
        session = next(session for session in live() if session.context is self._context)
        stashes = [optimizer._amp_stash for optimizer in (ref() for ref in session.optimizers) if optimizer is not None]
        armed = [stash for stash in stashes if stash.already_patched]
        for stash in stashes:
            stash.undecided = None
        bracket = sharding.begin(session, [stash.index for stash in stashes], self._id)
        if overflow:  # reported to the library as usual, by a nonfinite gradient
            params = [param for stash in stashes for param, _ in stash._pairs() if local_part(param).numel()]
            for param in sorted(params, key=torch.Tensor.numel)[:1]:
                param.grad = torch.full_like(param, float("inf"))
        # waits for a GPU's decision, which the caller needs
        action = bracket.end()
        skip = (self._context.record(self._id)["action"] if action == _ON_DEVICE else action) == 1
        for stash in stashes:
            if skip and stash not in armed:  # the caller omits this step only
                self._context.step_begin(stash.index)
                self._context.step_end(stash.index)
        self._hasten()
        return skip

    def _update_own(self, probe: torch.nn.Parameter, overflow: bool) -> bool:
        bracket = self._context.begin([0], 0, False, False)
        probe.grad = torch.full_like(probe, float("inf") if overflow else 0.0)
        bracket.end()
        self._context.step_begin(0)
        self._context.step_end(0)
        probe.grad = None
        self._hasten()
        return overflow and self.dynamic

    def _load(self, **changes: Any) -> None:
        states = read_states(self._context)
        if "unskipped" in changes:
            changes["unskipped"] += self._ahead
        states[f"loss_scaler{self._id}"].update(changes)
        write_states(self._context, states)


def read_states(context: Any) -> dict[str, dict[str, Any]]:
    """Returns {"loss_scaler0": {"loss_scale": ..., "unskipped": ...}, ...}."""
    states: dict[str, dict[str, Any]] = json.loads(context.save(None, "apex"))
    return states


def write_states(context: Any, states: dict[str, dict[str, Any]]) -> None:
    context.load(json.dumps(states).encode())
