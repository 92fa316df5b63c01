# SPDX-License-Identifier: Apache-2.0
"""
fp16 on the CPU: a product, and whole training steps at O1 and O2, beside torch in fp16 and in FP32. Without fp16
instructions torch computes fp16 element by element: --cpu shows other processors.
"""
from functools import partial

import torch
from libamp import kernels
from libamp.torch import amp
from sides import ours, torchs
from steps import made, resnet, transformer

EDGE = 1024
MODELS = {"transformer block": (transformer, "8x64x256"), "ResNet block": (resnet, "8x64x28x28")}
PEERS = {"torch.autocast, fp16": torch.float16, "torch, FP32": torch.float32}


def product(bench, edge):
    low = [torch.ones(edge, edge, dtype=torch.float16) for _ in range(3)]
    wide = [torch.ones(edge, edge) for _ in range(3)]
    for peer, (to, one, other) in {"torch.mm, fp16": low, "torch.mm, FP32": wide}.items():
        bench.pair("product, fp16", edge, lambda: kernels.matmul(*low), partial(torch.mm, one, other, out=to), peer)


def measure(bench):
    trial = bench.rounds == 1
    product(bench, 64 if trial else EDGE)
    for name, (make, size) in list(MODELS.items())[: 0 if trial else None]:
        for level in ("O1", "O2"):
            mine = ours(*made(make, "cpu"), level)
            for peer, dtype in PEERS.items():  # each beside ours: one that is slow would leave the others few rounds
                bench.pair(f"step, {name}, {level}", size, mine, torchs(*made(make, "cpu"), dtype), peer)
            amp.shutdown()
