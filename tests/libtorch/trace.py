#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a program on traces of torch.amp.GradScaler: trace.py PROGRAM

What Python's GradScaler does with gradients of a seeded sequence is written down, a line for each call, and the program
does the same in C++ and compares. Prints what the program prints.
"""
import pathlib
import random
import subprocess
import sys
import tempfile

import torch

SEEDS = (1, 2, 5)  # 5: factors that have no exact product, 1.0001 and 0.9
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
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for seed in SEEDS:
            files.append(pathlib.Path(folder) / f"trace-{seed}")
            files[-1].write_text("\n".join(trace(seed)) + "\n", encoding="utf-8")
        sys.exit(subprocess.run([sys.argv[1], *map(str, files)], check=False).returncode)


if __name__ == "__main__":
    main()
