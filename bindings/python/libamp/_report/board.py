# SPDX-License-Identifier: Apache-2.0
"""Writes the report for TensorBoard with its public writer."""

from __future__ import annotations

import math
from typing import Any

from .facts import subjects_of
from .read import Line, Training


class Missing(Exception):
    """The writer is not installed. The text names the package."""


def writer_class() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise Missing(
                "--tensorboard needs a writer: pip install tensorboardX, or tensorboard beside torch"
            ) from None
    return SummaryWriter


def write(training: Training, folder: str) -> None:
    with writer_class()(folder) as writer:
        for line in training.brackets:
            tag = f"loss {line['loss']}" if line["loss"] else "loss"
            if line.get("scale"):
                writer.add_scalar(f"{tag}/log2 scale", math.log2(line["scale"]), line["n"])
            writer.add_scalar(f"{tag}/skipped", int(line["action"] == "skip"), line["n"])
        for subject in subjects_of(training):
            for shot in subject.shots:
                add(writer, f"{subject.what}/{subject.label}", shot)
        for line in training.told:
            writer.add_text(f"told/{line.get('code') or line['as']}", line["message"], line["n"])


def add(writer: Any, tag: str, shot: Line) -> None:
    """Adds a histogram of exponents, and the losses of a cast to fp16."""
    numbers = sum(shot["binades"])
    if numbers:
        exponents = range(shot["first"], shot["first"] + len(shot["binades"]))
        writer.add_histogram_raw(
            tag,
            min=exponents[0],
            max=exponents[-1] + 1,
            num=numbers,
            sum=sum(e * count for e, count in zip(exponents, shot["binades"])),
            sum_squares=sum(e * e * count for e, count in zip(exponents, shot["binades"])),
            bucket_limits=[e + 1 for e in exponents],
            bucket_counts=shot["binades"],
            global_step=shot["n"],
        )
        if shot.get("fp16"):
            lost = shot["fp16"][0] + shot["fp16"][2]
            writer.add_scalar(f"lost in fp16/{tag}", lost / numbers, shot["n"])
