# SPDX-License-Identifier: Apache-2.0
"""A small training that tests share: a network, its data, and one backward of it."""
import contextlib

import torch
from libamp.torch import amp
from torch import nn


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def batches(n):
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(16, 8, generator=generator), torch.randn(16, 4, generator=generator)) for _ in range(n)]


def backward(model, optimizer, batch, factor=1.0):
    loss = nn.functional.mse_loss(model(batch[0]).float(), batch[1]) * factor
    with amp.scale_loss(loss, optimizer) as scaled:
        scaled.backward()


def fp32_weights(model):
    return [value.float().clone() for value in model.state_dict().values()]


def far(ours, theirs):
    return max((a - b).abs().max().item() for a, b in zip(ours, theirs))


@contextlib.contextmanager
def nothing_waits():
    """Nothing that torch sees waits for a GPU."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
