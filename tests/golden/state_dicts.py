#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The state_dicts of each level and mode: state_dicts.py make FOLDER. Read by bindings/python/tests/test_amp_resume.py.

Gradients are single products with powers of two, so that no sum of torch's has an order, and the optimizers are
libamp's, whose bits are promised. torch's own AdamW is compared within a tolerance.
"""
import copy
import hashlib
import json
import pathlib
import pickle
import sys

import torch
from libamp.torch import amp, optimizers
from torch import nn

BEFORE, AFTER = 5, 4


def _adam(params, **settings):
    return optimizers.FusedAdam(params, lr=0.01, weight_decay=0.01, **settings)


# name: (level, arguments of initialize, optimizer, features)
CASES = {
    **{level: (level, {}, _adam, 4) for level in ("O0", "O1", "O2", "O3", "O4", "O5")},
    "O1-three-losses": ("O1", {"num_losses": 3}, lambda p: optimizers.FusedSGD(p, lr=0.1, momentum=0.9), 4),
    "O2-eight-bits": ("O2", {}, lambda p: _adam(p, state_bits=8, seed=5), 64),
    "O2-lamb": ("O2", {}, lambda p: optimizers.FusedLAMB(p, lr=0.01), 4),
    "O2-torch-adamw": ("O2", {}, lambda p: torch.optim.AdamW(p, lr=0.01), 4),
    "O5-split": ("O5", {"master_weights": "split"}, _adam, 4),
    "O5-stochastic": ("O5", {"master_weights": "stochastic"}, _adam, 4),
}
CLOSE = {"O2-torch-adamw"}  # torch promises no bits from one version to the next


class Net(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear, self.norm = nn.Linear(features, features), nn.BatchNorm1d(features)
        with torch.no_grad():
            for number, param in enumerate(self.parameters()):
                values = torch.arange(param.numel()).mul(29).add(number).remainder(32).sub(16).div(37)
                param.copy_(values.reshape(param.shape))

    def forward(self, x, factors):
        """Each gradient is one product of powers of two."""
        return (self.linear(x).float() * factors).sum() + (self.norm.weight * factors[0] - self.norm.bias).sum()


def start(name):
    level, settings, make, features = CASES[name]
    model = Net(features)
    return amp.initialize(model, make(model.parameters()), opt_level=level, verbosity=0, **settings)


def train(name, model, optimizer, steps):
    features, losses = CASES[name][3], CASES[name][1].get("num_losses", 1)
    dynamic = CASES[name][0] in ("O1", "O2")
    for step in steps:
        x = torch.eye(features).mul(2.0 ** -(step % 3))
        factors = 2.0 ** -torch.arange(features * features).add(step).remainder(5).float().reshape(features, features)
        optimizer.zero_grad()
        with amp.scale_loss(model(x, factors), optimizer, loss_id=step % losses) as scaled:
            (scaled * float("inf") if dynamic and step == 2 else scaled).backward()
        optimizer.step()


def _tensors(value, name):
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from _tensors(value[key], f"{name}.{key}")
    elif isinstance(value, (list, tuple)):
        for key, item in enumerate(value):
            yield from _tensors(item, f"{name}.{key}")
    elif isinstance(value, torch.Tensor):
        yield name, value.detach().contiguous()


def numbers(name, model, optimizer):
    """The loss scales, and of each tensor its type and its bytes' digest, or for CLOSE its sum."""
    found = {"amp": dict(amp.state_dict())}
    for key, tensor in [*_tensors(model.state_dict(), "model"), *_tensors(optimizer.state_dict()["state"], "state")]:
        raw = tensor.view(torch.uint8).numpy().tobytes() if tensor.dim() else str(tensor).encode()
        digest = hashlib.sha256(raw).hexdigest()[:8]
        found[key] = tensor.double().sum().item() if name in CLOSE else f"{tensor.dtype} {digest}"
    return found


def saved(folder, name):
    path = pathlib.Path(folder) / "states.pt"
    try:
        return torch.load(path, weights_only=True)[name]
    except (RuntimeError, EOFError, OSError, pickle.UnpicklingError) as error:
        raise RuntimeError(f"{path} cannot be read: {error}") from error


def resume(folder, name):
    """(numbers once loaded, numbers once trained on, the states once loaded)"""
    model, optimizer = start(name)
    states = saved(folder, name)
    model.load_state_dict(states["model"])
    optimizer.load_state_dict(states["optimizer"])
    amp.load_state_dict(states["amp"])
    loaded = numbers(name, model, optimizer)
    again = copy.deepcopy(_states(model, optimizer))
    train(name, model, optimizer, range(BEFORE, BEFORE + AFTER))
    return loaded, numbers(name, model, optimizer), again


def _states(model, optimizer):
    return {"model": dict(model.state_dict()), "optimizer": optimizer.state_dict(), "amp": amp.state_dict()}


def make(folder):
    states, found = {}, {}
    for name in CASES:
        model, optimizer = start(name)
        train(name, model, optimizer, range(BEFORE))
        states[name], found[name] = copy.deepcopy(_states(model, optimizer)), [numbers(name, model, optimizer)]
        train(name, model, optimizer, range(BEFORE, BEFORE + AFTER))
        found[name].append(numbers(name, model, optimizer))
        amp.shutdown()
    torch.save(states, folder / "states.pt")
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(numbers)}" for name, numbers in found.items())
    (folder / "numbers.json").write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "make":
        sys.exit(__doc__)
    make(pathlib.Path(sys.argv[2]))
