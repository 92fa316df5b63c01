# SPDX-License-Identifier: Apache-2.0
"""Findings about layers and buffers, and the advice about speed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from ...._words import counted
from ..watch import Buffer, Found, Module, Run
from .words import LOW, others, share, size, where

_WHOLE = {"float16": 2048.0, "bfloat16": 256.0}  # whole numbers beyond are not all there
_BITS = {"float16": 2.0**-12, "bfloat16": 2.0**-9}  # half of a last bit, of a number
_POSITION = 4096  # as libamp.torch.amp.buffer_rounding judges angles
_ANGLE = 0.1
_SPAN = 100.0
_TILE = 8
_SMALL = 64  # a product below this size is not worth a tile


def _modules(run: Run) -> Iterator[Module]:
    for model in run.models:
        yield from model.modules


def _trains(run: Run) -> bool:
    return any(optimizer.tried or optimizer.steps for optimizer in run.optimizers)


def _full(module: Module, name: str) -> str:
    return f"{module.name}.{name}" if module.name else name


def check_batch_norms(run: Run) -> Iterable[Found]:
    """AMP-D24. Evaluation in 16 bits rounds finished statistics once, which harms nobody."""
    found = []
    for module in _modules(run):
        low = [buffer for buffer in module.buffers if buffer.name.startswith("running_") and buffer.dtype in LOW]
        if "BatchNorm" in module.kind and module.training and low:
            found.append((module, low[0]))
    if found and _trains(run):
        module, buffer = found[0]
        saw = f"{buffer.name} is {buffer.dtype} in {counted(len(found), 'batch norm')}"
        names = [each.name for each, _ in found]
        line = where(run, module.line)
        yield Found("AMP-D24", module.name or module.kind, saw + others(names), line, float(len(found)))


def _ruin(buffer: Buffer) -> str:
    """Returns the damage of a 16-bit buffer, "" for none. Only its rounded numbers are known: masks and repeated values
    look merged as well, so neighbours count where they are positions (whole numbers beyond those that the type has) or
    a grid that rises or falls throughout."""
    if buffer.dtype not in LOW or buffer.name.startswith(("running_", "num_batches")):
        return ""
    if buffer.distinct_lost and (not buffer.whole or buffer.largest > _WHOLE[buffer.dtype]):
        return f"{counted(buffer.distinct_lost, 'pair')} of neighbours became equal in {buffer.dtype}"
    if buffer.monotone and 0 < buffer.least <= buffer.largest / _SPAN and buffer.largest <= math.pi:
        # The largest frequency is 1 and exact. The next one carries nearly all of the error.
        error = _POSITION * buffer.largest * _BITS[buffer.dtype] / 2
        if error > _ANGLE:
            return f"in {buffer.dtype} an angle at position {_POSITION} is off by up to {size(error)}"
    return ""


def check_buffers(run: Run) -> Iterable[Found]:
    """AMP-D25."""
    found = [
        (_full(module, buffer.name), module, words)
        for module in _modules(run)
        for buffer in module.buffers
        for words in [_ruin(buffer)]
        if words
    ]
    if found:
        name, module, words = found[0]
        names = [each for each, _, _ in found]
        yield Found("AMP-D25", name, words + others(names), where(run, module.line), float(len(found)))


# ---- speed ----


def _on_gpu(run: Run) -> bool:
    return "cuda" in run.devices


def _lowered(run: Run) -> bool:
    return any(region.enabled and region.regions for region in run.autocasts) or any(
        param.dtype in LOW for param in run.params
    )


def check_tiles(run: Run) -> Iterable[Found]:
    """AMP-D80. Tensor cores have tiles, CPUs have none. Three channels of a picture and ten classes are what they are,
    and cost little."""
    if not _on_gpu(run) or not _lowered(run):
        return
    found = []
    for module in _modules(run):
        odd = {name: extent for name, extent in module.sizes.items() if extent > _SMALL and extent % _TILE}
        found += [(module, *next(iter(odd.items())))] if odd else []
    if found:
        module, name, extent = found[0]
        saw = f"{name} is {extent}, and {_TILE * math.ceil(extent / _TILE)} is the next multiple of {_TILE}"
        names = [each.name for each, _, _ in found]
        yield Found("AMP-D80", module.name or module.kind, saw + others(names), where(run, module.line), float(extent))


def check_fp32_products(run: Run) -> Iterable[Found]:
    """AMP-D81. Small models are not bound by products."""
    if not _on_gpu(run) or run.tf32 or _lowered(run) or run.capability < (8, 0) or run.libamp:
        return
    products = [param for param in run.params if param.trained and len(param.shape) > 1 and param.dtype == "float32"]
    products = [param for param in products if min(param.shape[:2]) >= _SMALL]
    if products and _trains(run):
        elements = [math.prod(param.shape) for param in products]
        whole = sum(math.prod(param.shape) for param in run.params) or 1
        saw = f"{counted(len(products), 'weight')}, {share(sum(elements), whole)} of the elements, multiply in FP32"
        yield Found("AMP-D81", products[0].name, saw, run.optimizers[0].place, float(sum(elements)))
