# SPDX-License-Identifier: Apache-2.0
"""The ways to train a model: FP32, torch.autocast, a bfloat16 model with FP32 masters kept by hand, libamp's levels.

Each is a row of MODES. The optimizer is torch's fused AdamW or SGD, and libamp's own
where the name says "fused"."""
import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from libamp.torch import amp, optimizers
from torch import nn

from training_steps.models import Task

Step = Callable[[], torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Mode:
    """level: libamp's; else dtype is autocast's or, by_hand, the model's. compiled: the model is, by inductor.

    turn: all models have the modes of turn 1 before any of turn 2. Turns 1 and 2 have all rounds, the others one.
    """

    level: str = ""
    dtype: torch.dtype = torch.float32
    by_hand: bool = False
    own_optimizer: bool = False
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    compiled: bool = False
    turn: int = 1


FP16, BF16 = torch.float16, torch.bfloat16
TORCHS_LISTS = {"lists": "torch"}
EAGER = {
    "autocast-bf16": Mode(dtype=BF16),
    "O4-torch": Mode("O4", settings=TORCHS_LISTS),
    "O4": Mode("O4"),
    "O5": Mode("O5"),
    "O5-bf16-outputs": Mode("O5", settings={"cast_model_outputs": BF16}),
    "bf16-masters": Mode(dtype=BF16, by_hand=True),
    "autocast-fp16": Mode(dtype=FP16),
    "O1-torch": Mode("O1", settings=TORCHS_LISTS),
    "O1": Mode("O1"),
    "O2": Mode("O2"),
    "O5-fused": Mode("O5", own_optimizer=True, turn=2),
    "O2-fused": Mode("O2", own_optimizer=True, turn=2),
    "O5-split": Mode("O5", own_optimizer=True, settings={"master_weights": "split"}, turn=3),
    "fp32": Mode(turn=3),
}
# They differ from others outside of the model alone.
NOT_COMPILED = {"O5-bf16-outputs", "O5-fused", "O2-fused", "O5-split", "fp32"}
MODES = EAGER | {
    f"{name}-compiled": dataclasses.replace(mode, compiled=True, turn=4)
    for name, mode in EAGER.items()
    if name not in NOT_COMPILED
}


def make_optimizer(task: Task, parameters: Any, own: bool) -> torch.optim.Optimizer:
    if task.momentum:
        kind = optimizers.FusedSGD if own else torch.optim.SGD
        return kind(parameters, lr=1e-3, momentum=0.9, weight_decay=1e-4, **({} if own else {"fused": True}))
    if own:
        return optimizers.FusedAdam(parameters, lr=1e-4, weight_decay=0.01)
    return torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01, fused=True)


def compiled_if(mode: Mode, model: Any) -> Any:
    return torch.compile(model) if mode.compiled else model


def libamps(task: Task, mode: Mode, model: nn.Module, batch: tuple[torch.Tensor, ...]) -> Step:
    optimizer = make_optimizer(task, model.parameters(), mode.own_optimizer)
    model, optimizer = amp.initialize(model, optimizer, opt_level=mode.level, verbosity=0, **mode.settings)
    call = compiled_if(mode, model)  # initialize resets the compiler

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = task.loss(call, *batch)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
        return loss

    return step


def torchs(task: Task, mode: Mode, model: nn.Module, batch: tuple[torch.Tensor, ...]) -> Step:
    device, enabled = batch[0].device.type, mode.dtype is not torch.float32
    optimizer = make_optimizer(task, model.parameters(), False)
    scaler = torch.amp.GradScaler(device, enabled=mode.dtype is FP16)
    call = compiled_if(mode, model)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, mode.dtype if enabled else BF16, enabled=enabled):
            loss = task.loss(call, *batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return step


def masters_by_hand(task: Task, mode: Mode, model: nn.Module, batch: tuple[torch.Tensor, ...]) -> Step:
    """As O5: batch norms in FP32, masters of all that is not."""
    masters_of = {p: p.detach().clone().float() for p in model.parameters()}
    model.to(mode.dtype)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.float()
    params = [p for p in model.parameters() if p.dtype is mode.dtype]
    masters = [masters_of[p].requires_grad_() for p in params]
    rest = [p for p in model.parameters() if p.dtype is not mode.dtype]
    optimizer = make_optimizer(task, masters + rest, False)
    call = compiled_if(mode, model)
    inputs = tuple(x.to(mode.dtype) if x.is_floating_point() else x for x in batch)
    for master in masters:
        master.grad = torch.empty_like(master)

    def step() -> torch.Tensor:
        for p in model.parameters():
            p.grad = None
        loss = task.loss(call, *inputs)
        loss.backward()
        torch._foreach_copy_([m.grad for m in masters], [p.grad for p in params])
        optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(params, masters)
        return loss

    return step


@contextlib.contextmanager
def training(task: Task, mode: Mode, device: str) -> Iterator[Step]:
    """The step of a fresh copy of the model. Nothing of it is left behind."""
    model = copy.deepcopy(task.module).to(device)
    if task.channels_last:
        model = model.to(memory_format=torch.channels_last)
    batch = tuple(
        x.to(device, memory_format=torch.channels_last) if task.channels_last and x.dim() == 4 else x.to(device)
        for x in task.batch
    )
    make = libamps if mode.level else masters_by_hand if mode.by_hand else torchs
    try:
        yield make(task, mode, model, batch)
    finally:
        if mode.level:
            amp.shutdown()
        if mode.compiled:
            torch._dynamo.reset()
