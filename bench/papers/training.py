# SPDX-License-Identifier: Apache-2.0
"""Ways to train, for the figures: FP32, torch's half and autocast, libamp's levels. It imports torch, so that figures
import it in measure."""
from __future__ import annotations

import contextlib
import math
import pathlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from libamp.torch import amp
from libamp.torch.amp.fast_half import fast_half

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples" / "python"))
from digits import load  # the folder is named above
from resnet_model import ResNet

__all__ = ["Mode", "ResNet", "Training", "accuracy", "batches", "digits", "half_products"]


@dataclass(frozen=True)
class Mode:
    """A way to train. level: of amp.initialize, with its options. Else half: a model after `.half()`, or autocast:
    torch.autocast in fp16 with torch's GradScaler, or neither: FP32."""

    name: str
    level: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    half: bool = False
    autocast: bool = False


class Training:
    """A model that trains in one mode. close() restores torch."""

    def __init__(self, mode: Mode, model: Any, make_optimizer: Callable[[Any], Any], device: str) -> None:
        self.mode, self.device = mode, device
        self.model = (model.half() if mode.half else model).to(device)
        self.optimizer = make_optimizer(self.model.parameters())
        self.scaler = torch.amp.GradScaler(device) if mode.autocast else None
        self.products = None if mode.level else fast_half()
        if mode.level:
            self.model, self.optimizer = amp.initialize(
                self.model, self.optimizer, opt_level=mode.level, verbosity=0, **mode.options)

    def forward(self, x: Any) -> Any:
        """Returns the model's output in FP32, but for a model in half alone: its loss is in half, too."""
        if self.mode.half:
            return self.model(x.half() if x.is_floating_point() else x)
        with torch.autocast(self.device, torch.float16) if self.mode.autocast else contextlib.nullcontext():
            return self.model(x).float()

    def step(self, loss: Any) -> float:
        """Backward and a step. Returns the loss, NaN if it is not finite."""
        self.optimizer.zero_grad()
        if self.mode.level:
            with amp.scale_loss(loss, self.optimizer) as scaled:
                scaled.backward()
            self.optimizer.step()
        elif self.scaler is not None:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            loss.backward()
            self.optimizer.step()
        value = float(loss.detach())
        return value if math.isfinite(value) else math.nan

    def close(self) -> None:
        if self.products is not None:
            self.products.remove()
        else:
            amp.shutdown()


def half_products(device: str) -> str:
    """Returns the kernels that multiply fp16 here, in words."""
    if device != "cpu":
        return "the GPU's"
    with fast_half() as products:
        if torch.float16 in products.types:
            return "libamp's: sums in FP32, each result rounded once to fp16"
        return "torch's for the processor's fp16 instructions"


def digits(device: str) -> tuple[Any, Any, Any, Any]:
    """Returns images and labels of the training, then of the test."""
    tensors = (*load(train=True), *load(train=False))
    return tuple(tensor.to(device) for tensor in tensors)


def batches(count: int, size: int, steps: int, seed: int) -> list[Any]:
    """Returns the same indices for each mode: epochs in random order."""
    generator = torch.Generator().manual_seed(seed)
    found: list[Any] = []
    while len(found) < steps:
        found.extend(torch.randperm(count, generator=generator).split(min(size, count)))
    return found[:steps]


def accuracy(training: Training, images: Any, labels: Any) -> float | None:
    """Returns the percentage of correct labels, None if an output is not finite."""
    training.model.eval()
    with torch.no_grad():
        out = training.forward(images).float()
    training.model.train()
    if not bool(torch.isfinite(out).all()):
        return None
    return round(100 * float((out.argmax(1) == labels).float().mean()), 2)
