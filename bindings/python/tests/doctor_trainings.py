# SPDX-License-Identifier: Apache-2.0
"""Small trainings for the doctor's tests: what they share, and their lists."""
import contextlib

import torch
import torch.nn.functional as F
from torch import nn

STEPS = 25


def net(dtype=torch.float32):
    return nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 8)).to(dtype)


def batch(size=64):
    return torch.randn(size, 32), torch.randint(0, 8, (size,))


def half():
    return torch.autocast("cpu", torch.float16)


def bfloat():
    return torch.autocast("cpu", torch.bfloat16)


def grad_scaler(**options):
    return torch.amp.GradScaler("cpu", **{"init_scale": 1024.0} | options)


def loss_of(model, x, y):
    return F.cross_entropy(model(x).float(), y)


def plain(model, optimizer, steps=STEPS, loss=loss_of, after=lambda step: None, dtype=None, region=None):
    """Trains without a scaler. after: runs behind each step. region: of autocast."""
    for step in range(steps):
        x, y = batch()
        with region() if region else contextlib.nullcontext():
            value = loss(model, x if dtype is None else x.to(dtype), y)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        after(step)


def scaled(model, optimizer, scaler, steps=STEPS, loss=loss_of, clip=None, after=lambda step: None, data=batch):
    """Trains in fp16 with a scaler. clip: runs before its step."""
    for step in range(steps):
        x, y = data()
        with half():
            value = loss(model, x, y)
        optimizer.zero_grad()
        scaler.scale(value).backward()
        if clip is not None:
            clip()
        scaler.step(optimizer)
        scaler.update()
        after(step)


def adam(model, rate=1e-3, **options):
    return torch.optim.Adam(model.parameters(), rate, **options)


MISTAKES, RIGHT = {}, []


def mistake(*codes, subject=None):
    """A training with these findings and no other. subject: of the first."""

    def add(training):
        MISTAKES[training.__name__] = training, codes, subject
        return training

    return add


def right(training):
    RIGHT.append(training)
    return training


