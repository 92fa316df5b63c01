# SPDX-License-Identifier: Apache-2.0
"""
Training steps under amp.doctor() beside the same steps without it: the models of `train` on the CPU, in FP32 and under
torch.autocast, and its GPT-2 and BERT in their tiny sizes, whose steps are bound by Python.

One training for each line. Blocks of its steps take turns, with a doctor and without one. A block's figure is the mean
of its steps: the doctor looks at few of them, and a median would leave these out. The first steps under a new doctor,
which it looks at in any case, are lines of their own, without a goal.
"""
import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from libamp.torch import amp
from libamp.torch.doctor.seen import FIRST
from training_steps import cpu, models

if TYPE_CHECKING:
    from harness import Bench

GOAL = 1 / 1.03
BLOCK = 0.6  # seconds that a block takes at least
SMALL = ("gpt2", "bert")
Step = Callable[[], None]


@contextlib.contextmanager
def small(name: str) -> Iterator[Step]:
    torch.manual_seed(0)
    task = models.MODELS[name](True, 2)
    optimizer = torch.optim.AdamW(task.module.parameters(), lr=1e-5)

    def step() -> None:
        optimizer.zero_grad()
        task.loss(task.module, *task.batch).backward()
        optimizer.step()

    yield step


def trainings() -> dict[str, Callable[[], contextlib.AbstractContextManager[Step]]]:
    made = {f"{model}, {mode}": lambda model=model, mode=mode: cpu.training(model, cpu.MODES[mode])
            for model in cpu.MODELS for mode in ("FP32", "autocast")}
    return made | {f"{name}, tiny": lambda name=name: small(name) for name in SMALL}


def mean(step: Step, count: int) -> float:
    begin = time.thread_time()
    for _ in range(count):
        step()
    return (time.thread_time() - begin) / count


def watched(step: Step, count: int) -> tuple[float, float]:
    """The mean of the first steps under a new doctor, and of as many as a block has after them."""
    with amp.doctor(quiet=True):
        return mean(step, FIRST), mean(step, count)


def measure(bench: "Bench") -> None:
    trial = bench.rounds == 1  # does it run?
    rounds = 1 if trial else 3 if bench.quick else 15
    for name, training in list(trainings().items())[-1 if trial else 0:]:
        with training() as step:
            mean(step, cpu.WARM)
            count = 1 if trial else max(8, int(BLOCK / mean(step, 2)) + 1)
            first, ours, reference = [], [], []
            for turn in range(rounds):
                if turn % 2:
                    reference.append(mean(step, count))
                one, other = watched(step, count)
                first.append(one)
                ours.append(other)
                if turn % 2 == 0:
                    reference.append(mean(step, count))
            for words, times, goal in ((f"first {FIRST} steps", first, 0.0), (f"{count} steps", ours, GOAL)):
                bench.compared(name, words, "ms", 1e3 * statistics.median(times), 1e3 * statistics.median(reference),
                               [b / a for a, b in zip(times, reference)], "without", goal)
