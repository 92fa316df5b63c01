# SPDX-License-Identifier: Apache-2.0
"""Bytes a parameter and bytes an activation at each level, and the batches that would fit: figures/memory.py."""
import gc
from typing import Any

import torch
from activations import Saved, bytes_of, under
from adam_state import Characters
from libamp.torch import amp
from memory import Training
from training_steps.cpu import resnet50, transformer

from ..figure import Budget, Data

# name: level, options of initialize, bits of FusedAdam's moments
WAYS: dict[str, tuple[str, dict[str, Any], int]] = {
    **{f"O{i}": (f"O{i}", {}, 32) for i in range(6)},
    "O2, 8-bit moments": ("O2", {}, 8),
    "O5, split": ("O5", {"master_weights": "split"}, 32),
    "O5, split, 8-bit moments": ("O5", {"master_weights": "split"}, 8),
    "O5, stochastic": ("O5", {"master_weights": "stochastic"}, 32),
    "O5, stochastic, 8-bit moments": ("O5", {"master_weights": "stochastic"}, 8),
}
FITS: dict[str, tuple[str, int | None]] = {  # name: way, bits of the saved activations
    "O0": ("O0", None), "O4": ("O4", None), "O5": ("O5", None), "O5, split": ("O5, split", None),
    "O5, split, 4-bit activations": ("O5, split", 4),
}
GIGABYTES = (8, 16, 24)
BATCH, STEPS = 4, 2


def gpt2() -> tuple[torch.nn.Module, torch.Tensor]:
    """GPT-2's shape with an output layer of its own, and one sample of 512 tokens."""
    return Characters(50257, width=768, layers=12, heads=12, context=512), torch.randint(50257, (1, 512))


def network() -> tuple[torch.nn.Module, torch.Tensor]:
    return transformer(BATCH)


NETWORKS = {"ResNet-50, 224 x 224": lambda: resnet50(2), "GPT-2, 512 tokens": gpt2}


def parameters(model: torch.nn.Module) -> int:
    return sum(param.numel() for param in model.parameters())


# ---- bytes a parameter, bytes an activation ----


def predicted(of: Any, level: str, options: dict[str, Any], bits: int) -> dict[str, int]:
    """Returns the prediction of the training at O0. Split and stochastic masters have no FP32 gradients."""
    told = amp.memory(of, level)
    masters = {"split": told.masters_split, "stochastic": 0}.get(options.get("master_weights", ""), told.masters)
    copies = 0 if options else told.master_gradients
    return {"weights": told.weights, "gradients": told.gradients, "masters": masters, "master gradients": copies,
            "moments": told.moments_8bit if bits == 8 else told.moments}


def measured(training: Any) -> dict[str, int]:
    told = amp.memory(training.model)
    moments = [each for state in training.optimizer.state.values() for each in state.values() if torch.is_tensor(each)]
    return {"weights": told.weights, "gradients": told.gradients, "masters": told.masters,
            "master gradients": told.master_gradients, "moments": sum(each.nbytes for each in moments)}


def trained(way: str, observed: bool = False) -> Any:
    level, options, bits = WAYS[way]
    training = Training(BATCH, level, options, None, "", bits)
    if observed:
        amp.observe(training.model, every=1)
    for _ in range(STEPS):
        training.step()
    return training


def ways(budget: Budget) -> Data:
    """A transformer of 12.6 million parameters, two steps at each level, then its bytes."""
    base = trained("O0", observed=True)
    n = parameters(base.model)
    outputs = amp.memory(base.model).outputs
    said = {way: (predicted(base.model, *settings), amp.memory(base.model, settings[0]).outputs)
            for way, settings in WAYS.items()}
    amp.shutdown()
    found: Data = {}
    exact, whole = saved_of(network, "O0", None)[1], 0
    for way, (level, _, _) in WAYS.items():
        if budget.left() < 0:
            break
        training = trained(way)
        gated = training.saved()
        whole = whole or gated
        found[way] = {
            "predicted": {purpose: round(count / n, 3) for purpose, count in said[way][0].items()},
            "measured": {purpose: round(count / n, 3) for purpose, count in measured(training).items()},
            "activation": {"predicted": round(4 * said[way][1] / outputs, 3), "gated": round(4 * gated / whole, 3)}}
        amp.shutdown()
        ungated = saved_of(network, level, None, gate="off")[1]
        found[way]["activation"]["measured"] = round(4 * ungated / exact, 3)
    return {"network": "transformer, 4 layers of 512", "parameters": n, "batch": BATCH, "ways": found}


# ---- the largest batch ----


def saved_of(make: Any, level: str, bits: int | None, **options: Any) -> tuple[int, int]:
    """Returns the number of parameters, and the bytes of one sample that wait for backward."""
    torch.manual_seed(0)
    model, x = make()
    n = parameters(model)
    model = amp.initialize(model, opt_level=level, verbosity=0, **options)
    if bits:
        handle = amp.compress_activations(model, bits)
        model(x)
        size = handle.bytes.now
    else:
        hooks = Saved(0)
        under(model, hooks)
        size = bytes_of(lambda: model(x), hooks)
    amp.shutdown()
    gc.collect()
    return n, size // len(x)


def largest(found: Data, budget: Budget) -> Data:
    """Predicted from the bytes a parameter above and from the activations of a small batch."""
    fits: Data = {}
    for network, make in NETWORKS.items():
        for name, (way, bits) in FITS.items():
            if budget.left() < 0 or way not in found:
                return fits
            n, sample = saved_of(make, WAYS[way][0], bits)
            state = n * sum(found[way]["measured"].values())
            batches = {str(size): max(0, int((size * 1e9 - state) // sample)) for size in GIGABYTES}
            fits.setdefault(network, {"parameters": n, "ways": {}})["ways"][name] = {
                "state_mb": round(state / 1e6, 1), "sample_mb": round(sample / 1e6, 3), "batch": batches}
    return fits


def measure(budget: Budget) -> Data:
    data = ways(budget)
    data |= {"seeds": [0], "steps": STEPS, "largest": largest(data["ways"], budget)}
    if len(data["largest"]) < len(NETWORKS) or any(len(each["ways"]) < len(FITS) for each in data["largest"].values()):
        data["stopped"] = "not all levels and networks were measured"
    return data
