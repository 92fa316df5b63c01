# SPDX-License-Identifier: Apache-2.0
"""
Whole training steps on the CPU, forward, backward and the optimizer: the fp16 levels beside FP32, O4 beside FP32,
torch.autocast and O4 without the gate, O5 beside torch.autocast.

A mode is built anew in each round and shut down after it, since a level patches functions that the others call. The
figure of a round is the median processor time of a few steps. Modes take turns, every other round from the last one.
"""
import contextlib
import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from libamp.torch import amp
from libamp.torch.optimizers import FusedAdam
from torch import nn

if TYPE_CHECKING:
    from harness import Bench

Made = tuple[nn.Module, torch.Tensor]


class ResidualBlock(nn.Module):
    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(out)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(out)
        shrink = [nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)]
        self.shortcut = nn.Sequential(*shrink) if stride > 1 or channels != out else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(self.second_norm(self.second(y)) + self.shortcut(x))


class Bottleneck(nn.Module):
    def __init__(self, channels: int, middle: int, stride: int) -> None:
        super().__init__()
        out = 4 * middle
        sizes = [(channels, middle, 1, 1), (middle, middle, 3, stride), (middle, out, 1, 1)]
        layers: list[nn.Module] = []
        for i, o, kernel, step in sizes:
            layers += [nn.Conv2d(i, o, kernel, step, kernel // 2, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True)]
        shrink = [nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)]
        self.body, self.relu = nn.Sequential(*layers[:-1]), nn.ReLU(inplace=True)
        self.shortcut = nn.Sequential(*shrink) if channels != out else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        y += self.shortcut(x)
        return self.relu(y)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(256, 256, 2, batch_first=True), nn.Linear(256, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(x)[0])


def mlp(batch: int) -> Made:
    layers = [layer for _ in range(6) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
    return nn.Sequential(*layers[:-1]), torch.randn(batch, 1024)


def classes(batch: int) -> Made:
    sizes = [512, 1024, 1024, 10]
    layers = [layer for i, o in itertools.pairwise(sizes) for layer in (nn.Linear(i, o), nn.ReLU())]
    return nn.Sequential(*layers[:-1]), torch.randn(batch, 512)


def transformer(batch: int) -> Made:
    layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), torch.randn(batch, 64, 512)


def classifier(*layers: nn.Module, channels: int) -> nn.Module:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def convolutions(batch: int) -> Made:
    sizes = [(3, 32, 1), (32, 64, 2), (64, 64, 1)]
    layers = [layer for i, o, stride in sizes for layer in (nn.Conv2d(i, o, 3, stride, 1), nn.ReLU())]
    return classifier(*layers, channels=64), torch.randn(batch, 3, 32, 32)


def resnet18(batch: int, width: int = 64) -> Made:
    sizes = [width * times for times in (1, 1, 1, 2, 2, 4, 4, 8, 8)]
    blocks = [ResidualBlock(i, o, 1 + (i < o)) for i, o in itertools.pairwise(sizes)]
    stem = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    return classifier(*stem, *blocks, channels=8 * width), torch.randn(batch, 3, 32, 32)


def resnet50(batch: int) -> Made:
    """For 224 x 224 pixels, with activations in place where torchvision's has them."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
                               nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for middle, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(count):
            layers.append(Bottleneck(channels, middle, 2 if block == 0 and middle > 64 else 1))
            channels = 4 * middle
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)]
    return nn.Sequential(*layers, *head), torch.randn(batch, 3, 224, 224)


def recurrent(batch: int) -> Made:
    return Recurrent(), torch.randn(batch, 32, 256)


MODELS: dict[str, tuple[Callable[[int], Made], int]] = {
    "MLP": (mlp, 64),
    "transformer": (transformer, 8),
    "ResNet-18": (resnet18, 4),
    "3 convolutions": (convolutions, 16),
    "LSTM": (recurrent, 16),
    "MLP, SGD": (classes, 128),
    "MLP, SGD with momentum": (classes, 128),
}
OF_PRODUCTS = ("3 convolutions", "ResNet-18", "LSTM")  # torch's convolutions and cells take most of their step
OWN_OPTIMIZER = {"MLP, SGD": "SGD", "MLP, SGD with momentum": "SGD with momentum"}  # in place of AdamW, and alone
NO_FP16_GOAL = ("3 convolutions", "LSTM")  # so small that casts and Python show


@dataclasses.dataclass(frozen=True)
class Mode:
    """level: libamp's; else dtype is autocast's. against: reference -> the least ratio, 0 for none."""

    level: str = ""
    dtype: torch.dtype = torch.float32
    optimizer: str = "AdamW"
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    against: dict[str, float] = dataclasses.field(default_factory=dict)


FP16 = {"FP32": 1 / 1.2}
MODES = {
    "FP32": Mode(),
    "autocast": Mode(dtype=torch.bfloat16),
    "autocast, AdamW(fused=True)": Mode(dtype=torch.bfloat16, optimizer="fused AdamW"),
    "O1": Mode("O1", against=FP16),
    "O2": Mode("O2", against=FP16),
    "O3": Mode("O3", against={"FP32": 0.0}),
    "O4": Mode("O4", against={"FP32": 1.0, "autocast": 1.0, "O4, not gated": 0.0}),
    "O4, not gated": Mode("O4", settings={"gate": "off"}, against={"FP32": 0.0}),
    "O5": Mode("O5", against={"FP32": 0.0, "autocast": 1.1}),
    "O5, FusedAdam": Mode("O5", optimizer="FusedAdam", against={"autocast": 1.2, "autocast, AdamW(fused=True)": 0.0}),
}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {  # eps: 1e-8 is 0 in fp16 (O3)
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=1e-5, eps=1e-4),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=1e-2),
    "SGD with momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9),
    "fused AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=1e-5, eps=1e-4, fused=True),
    "FusedAdam": lambda parameters: FusedAdam(parameters, lr=1e-5, eps=1e-4, weight_decay=0.01),
}
WARM, STEPS = 4, 3  # libamp's checks are in the first steps, and in those whose number is a power of two
MOST = 20.0  # times FP32's step: a mode that takes longer is measured in one step, and in one model
TIME = 60.0  # seconds for a mode of a model; a tenth with --quick


def goal_of(model: str, mode: str, against: str) -> float:
    goal = MODES[mode].against[against]
    if model in NO_FP16_GOAL and against == "FP32" and goal < 1:
        return 0.0
    return min(goal, 1.0) if model in OF_PRODUCTS else goal


def fits(model: str, mode: str) -> bool:
    return model not in OWN_OPTIMIZER or MODES[mode].optimizer == "AdamW"


@contextlib.contextmanager
def training(model: str, mode: Mode, batch: int | None = None) -> Iterator[Callable[[], None]]:
    """The step of a new model. Nothing of libamp's stays."""
    torch.manual_seed(0)
    make, size = MODELS[model]
    module, x = make(batch or size)
    optimizer = OPTIMIZERS[OWN_OPTIMIZER.get(model, mode.optimizer)](module.parameters())

    def theirs() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", mode.dtype, enabled=mode.dtype is not torch.float32):
            loss = module(x).float().square().mean()
        loss.backward()
        optimizer.step()

    if not mode.level:
        yield theirs
        return
    module, optimizer = amp.initialize(module, optimizer, opt_level=mode.level, verbosity=0, **mode.settings)

    def ours() -> None:
        optimizer.zero_grad()
        loss = module(x).float().square().mean()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()

    try:
        yield ours
    finally:
        amp.shutdown()


def seconds(step: Callable[[], None], most: float = float("inf"), warm: int = WARM, steps: int = STEPS) -> float:
    """The median processor time of some steps. most: where the first one takes longer, it is the only one."""
    times = []
    for _ in range(warm + steps):
        begin = time.thread_time()
        step()
        times.append(time.thread_time() - begin)
        if times[0] > most:
            return times[0]
    return statistics.median(times[warm:])


Times = dict[str, list[float]]


def measure_model(model: str, modes: list[str], rounds: int, limit: float, batch: int | None, once: bool) -> Times:
    """The seconds of a step of each mode, a list over the rounds. once: one step alone is measured."""
    times: Times = {mode: [] for mode in modes}
    begin, most = time.monotonic(), float("inf")
    for number in range(rounds):
        for mode in modes if number % 2 == 0 else modes[::-1]:
            if times[mode] and times[mode][0] > most:
                continue  # slow: the first round is enough
            with training(model, MODES[mode], batch) as step:
                times[mode].append(seconds(step, most, 0, 1) if once else seconds(step, most))
            most = MOST * times["FP32"][0]
        if time.monotonic() - begin > limit * len(modes):
            break
    return times


def ratios(ours: list[float], reference: list[float]) -> list[float]:
    """One for each round; a mode that was measured once is compared with all rounds of the other."""
    n = max(len(ours), len(reference))
    return [(reference * n)[i] / (ours * n)[i] for i in range(n)]


def measure(bench: "Bench") -> None:
    """The group `train` on the CPU. A mode that takes MOST times FP32's step is left out of the models that follow."""
    trial = bench.rounds == 1  # does it run?
    rounds = 1 if trial else 2 if bench.quick else 9
    slow: dict[str, str] = {}
    until = time.monotonic() + bench.seconds if bench.seconds else float("inf")
    for model in ["MLP"] if trial else MODELS:
        if time.monotonic() > until:
            print(f"{bench.group:<8} {model:<34} {'':<15} left out: there was no time for it", flush=True)
            continue
        batch = 1 if trial else MODELS[model][1]
        left = [mode for mode in slow if fits(model, mode)]
        modes = [mode for mode in MODES if mode not in slow and fits(model, mode)]
        times = measure_model(model, modes, rounds, TIME / 10 if bench.quick else TIME, batch, trial)
        for mode in modes:
            for against in MODES[mode].against:
                ours, reference = times[mode], times.get(against)
                if reference:
                    bench.compared(f"{model}, {mode}", f"batch {batch}", "ms", 1e3 * statistics.median(ours),
                                   1e3 * statistics.median(reference), ratios(ours, reference), against,
                                   goal_of(model, mode, against))
        for mode in left:
            print(f"{bench.group:<8} {model + ', ' + mode:<34} {'':<15} left out: {slow[mode]}", flush=True)
        for mode in modes:
            factor = statistics.median(times[mode]) / statistics.median(times["FP32"])
            if factor > MOST and not trial:
                slow[mode] = f"{factor:.0f} times FP32's step in the {model}"
