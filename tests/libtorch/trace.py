#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes traces of torch.amp.GradScaler: trace.py FILE..., the last character of whose names is the seed.

What Python's GradScaler does with gradients of a seeded sequence is written down, a line for each call; the programs of
this folder do the same by libamp and compare.
"""
import pathlib
import random
import sys

import torch

ITERATIONS = 150
INF = float("inf")


def settings(chance):
    return (chance.choice([4.0, 65536.0, 3e4]), chance.choice([2.0, 1.0001, 4.0]), chance.choice([0.5, 0.25, 0.9]),
            chance.choice([1, 2, 3, 5]))


def trace(seed):
    """The lines of one training with two optimizers, of which one, the other or both get gradients in an iteration."""
    chance = random.Random(seed)
    params = [torch.ones(3, requires_grad=True), torch.ones(2, requires_grad=True)]
    optimizers = [torch.optim.SGD([param], lr=1.0) for param in params]
    scale, growth, backoff, interval = settings(chance)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_factor=growth, backoff_factor=backoff,
                                  growth_interval=interval)
    yield f"new {scale!r} {growth!r} {backoff!r} {interval}"
    for iteration in range(ITERATIONS):
        if iteration == 70:
            scaler.update(new_scale=128.0)
            yield "set 128.0"
        for which in chance.choice([[0], [1], [0, 1]]):
            gradient = chance.choice([1.0, 0.5, -0.25, 2.0, INF if chance.random() < 0.4 else 1.0])
            scaler.scale((params[which] * gradient).sum()).backward()
            yield f"backward {which} {gradient!r}"
            if chance.random() < 0.5:
                scaler.unscale_(optimizers[which])
                yield f"unscale {which}"
            scaler.step(optimizers[which])
            yield f"step {which} {params[which][0].item()!r} {params[which].grad[0].item()!r}"
            params[which].grad = None
        scaler.update()
        yield f"update {scaler.get_scale()!r} {scaler.state_dict()['_growth_tracker']}"


def main():
    for name in sys.argv[1:]:
        pathlib.Path(name).write_text("\n".join(trace(int(name[-1]))) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
