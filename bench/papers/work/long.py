# SPDX-License-Identifier: Apache-2.0
"""Long trainings in FP32, at O1, O2 and O5 and under autocast, with several seeds: figures/long.py. Runs of the slow
tier that ended are kept in files, the one that goes on leaves a checkpoint, and the next call continues there."""
import json
import math
import pathlib
import time
from typing import Any

import torch
from adam_state import Characters
from libamp.torch import amp
from torch.nn import functional

from ..figure import Budget, Data
from ..language import Text
from ..training import Mode, ResNet, Training, accuracy, batches, digits

KEPT = pathlib.Path(__file__).resolve().parents[3] / "build" / "results" / "long"
MODES = (Mode("FP32"), Mode("autocast", autocast=True), Mode("O1", "O1"), Mode("O2", "O2"), Mode("O5", "O5"))
POINTS = 50  # of a loss curve: means of as many windows
SAVE = 300.0  # seconds between checkpoints


class Letters:
    """A transformer over characters, AdamW."""

    name, unit = "character transformer", "nats a character"

    def __init__(self, device: str, steps: int, context: int, **shape: int) -> None:
        self.text, self.context, self.steps = Text(device), context, steps
        self.shape = {**shape, "context": context}
        self.rate, self.batch = 2e-3 if shape["width"] < 256 else 1e-3, 16

    def make(self) -> Any:
        return Characters(self.text.letters, **self.shape)

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=self.rate, betas=(0.9, 0.99), weight_decay=0.1)

    def loss(self, training: Training, step: int, seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed * 10**6 + step)
        return self._loss(training, *self.text.batch(generator, self.batch, self.context))

    def test(self, training: Training) -> float:
        training.model.eval()
        with torch.no_grad():
            return float(self._loss(training, *self.text.examined(200, self.context)))

    def _loss(self, training: Training, inputs: Any, targets: Any) -> torch.Tensor:
        return functional.cross_entropy(training.forward(inputs.T).flatten(0, 1), targets.T.flatten())


class Images:
    """A ResNet-18 on the digits, SGD with momentum."""

    name, unit, rate, batch = "ResNet-18", "% of the test images", 0.05, 64

    def __init__(self, device: str, steps: int, width: int) -> None:
        self.images, self.labels, *self.tests = digits(device)
        self.steps, self.width = steps, width

    def make(self) -> Any:
        return ResNet((2, 2, 2, 2), self.width)

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=self.rate, momentum=0.9, weight_decay=5e-4)

    def loss(self, training: Training, step: int, seed: int) -> torch.Tensor:
        epoch = -(-len(self.labels) // self.batch)
        these = batches(len(self.labels), self.batch, epoch, seed * 10**6 + step // epoch)[step % epoch]
        return functional.cross_entropy(training.forward(self.images[these]), self.labels[these])

    def test(self, training: Training) -> float | None:
        return accuracy(training, *self.tests)


def tasks(budget: Budget) -> list[Any]:
    """slow: nanoGPT's small shape, 10.7 million parameters, and a ResNet-18 of 64 channels, 11 million."""
    device = budget.device
    if budget.slow:
        return [Letters(device, 10_000, 128, width=384, layers=6, heads=6), Images(device, 10_000, 64)]
    part = 1 if budget.quick else 2
    return [Letters(device, 75 * part, 64, width=128, layers=4, heads=4), Images(device, 40 * part, 16)]


def curve(losses: list[float]) -> list[float | None]:
    """Returns means of windows, None where one is not finite."""
    size = max(len(losses) // POINTS, 1)
    means = (sum(part) / len(part) for part in (losses[i : i + size] for i in range(0, len(losses), size)))
    return [round(each, 4) if math.isfinite(each) else None for each in means]


class Run:
    """A training that can be saved and continued."""

    def __init__(self, task: Any, mode: Mode, seed: int, device: str) -> None:
        torch.manual_seed(seed)
        self.task, self.seed, self.losses = task, seed, list[float]()
        self.training = Training(mode, task.make(), task.optimizer, device)
        warm = max(task.steps // 20, 1)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.training.optimizer, lambda step: min(
            (step + 1) / warm, 0.55 + 0.45 * math.cos(math.pi * step / task.steps)))

    def parts(self) -> dict[str, Any]:
        found = {"model": self.training.model, "optimizer": self.training.optimizer, "schedule": self.schedule}
        if self.training.mode.level:
            found["amp"] = amp
        if self.training.scaler is not None:
            found["scaler"] = self.training.scaler
        return found

    def save(self, file: pathlib.Path) -> None:
        part = file.with_suffix(".part")
        torch.save({**{name: each.state_dict() for name, each in self.parts().items()}, "losses": self.losses}, part)
        part.replace(file)

    def load(self, file: pathlib.Path) -> None:
        state = torch.load(file, weights_only=False)
        self.losses = state["losses"]
        for name, each in self.parts().items():
            each.load_state_dict(state[name])

    def step(self) -> None:
        loss = self.task.loss(self.training, len(self.losses), self.seed)
        self.losses.append(self.training.step(loss))
        self.schedule.step()

    def to_end(self, budget: Budget, file: pathlib.Path) -> Data | None:
        """Returns None if there was no time to end it."""
        saved = time.monotonic()
        while len(self.losses) < self.task.steps:
            if budget.slow and (budget.left() < 0 or time.monotonic() > saved + SAVE):
                self.save(file)
                saved = time.monotonic()
            if budget.left() < 0:
                return None
            self.step()
        test = self.task.test(self.training)
        return {"curve": curve(self.losses), "test": None if test is None else round(test, 4)}


def trained(task: Any, mode: Mode, seed: int, budget: Budget) -> Data | None:
    """Trains, or returns the kept result of the slow tier."""
    name = f"{task.name}-{mode.name}-{seed}".replace(" ", "-")
    done, file = KEPT / f"{name}.json", KEPT / f"{name}.pt"
    if budget.slow and done.exists():
        found: Data = json.loads(done.read_text(encoding="utf-8"))
        return found
    run = Run(task, mode, seed, budget.device)
    try:
        if budget.slow and file.exists():
            run.load(file)
        result = run.to_end(budget, file)
    finally:
        run.training.close()
    if budget.slow and result is not None:
        done.with_suffix(".part").write_text(json.dumps(result), encoding="utf-8")
        done.with_suffix(".part").replace(done)
        file.unlink(missing_ok=True)
    return result


def measure(budget: Budget) -> Data:
    """All modes of a seed come before the next seed: an early end leaves whole comparisons."""
    seeds, plan = [0] if budget.quick else [0, 1, 2], tasks(budget)
    data: Data = {"seeds": seeds, "steps": {task.name: task.steps for task in plan}, "slow": budget.slow, "tasks": {}}
    if budget.slow:
        KEPT.mkdir(parents=True, exist_ok=True)
    for task in plan:
        n = sum(param.numel() for param in task.make().parameters())
        data["tasks"][task.name] = {"parameters": n, "unit": task.unit, "runs": {mode.name: {} for mode in MODES}}
    for seed in seeds:
        for task in plan:
            for mode in MODES:
                found = trained(task, mode, seed, budget)
                if found is None:
                    data["stopped"] = f"before the end of {task.name}, {mode.name}, seed {seed}"
                    return data
                data["tasks"][task.name]["runs"][mode.name][str(seed)] = found
    return data
