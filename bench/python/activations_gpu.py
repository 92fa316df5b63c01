# SPDX-License-Identifier: Apache-2.0
"""
A transformer's step on a GPU at O4 with activations in 8, 4 and 2 bits, and at O5 with split masters: time, and what
the step adds to the memory that torch's allocator gives out. Beside the level alone, and torch's checkpoints of layers.
"""
import torch
from activations import checkpointed
from libamp.torch import amp, optimizers
from sides import ours
from torch import nn

BATCH, TOKENS, WIDTH, LAYERS = 32, 512, 1024, 6


def build(level, bits=None, checkpoints=False, softmax=False, **settings):
    """A step."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 16, 4 * WIDTH, dropout=0.1, activation="gelu", batch_first=True)
    model = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).cuda()
    x = torch.randn(BATCH, TOKENS, WIDTH, device="cuda")
    optimizer = optimizers.FusedAdam(model.parameters(), lr=1e-5)
    step = ours(model, x, optimizer, level, **settings)
    if bits:
        amp.compress_activations(model, bits, softmax=softmax)
    if checkpoints:
        checkpointed(model)
    return step


def peak(step):
    """Bytes of the step's highest moment beyond what is held between steps."""
    step()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def held(**settings):
    """Bytes of weights, gradients, masters and moments after a step."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    step = build("O5", **settings)
    step()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated() - before, step


def measure(bench):
    if not torch.cuda.is_available():
        print(f"{bench.group:<8} left out: torch sees no GPU")
        return
    size = f"{BATCH} x {TOKENS} x {WIDTH}"
    plain, again = build("O4"), build("O4", checkpoints=True)
    for bits, softmax in ((8, False), (4, False), (4, True), (2, False)):
        name = f"transformer, {LAYERS} layers, {bits} bits{', softmax' if softmax else ''}"
        packed = build("O4", bits, softmax=softmax)
        bench.turns(name, size, packed, {"O4": (plain, 1 / 1.2 if bits == 4 else 0.0), "O4, checkpoints": (again, 0.0)},
                    device="cuda")
        for against, other in (("O4", plain), ("O4, checkpoints", again)):
            bench.amounts(f"{name}, peak", size, "MiB", peak(packed) / 2**20, peak(other) / 2**20, against)
    amp.shutdown()
    whole, by_fp32 = held()
    less, by_split = held(master_weights="split")
    bench.pair(f"transformer, {LAYERS} layers, O5, split", size, by_split, by_fp32, "FP32 masters", goal=1.0,
               device="cuda")
    bench.amounts(f"transformer, {LAYERS} layers, O5, split", size, "MiB", less / 2**20, whole / 2**20, "FP32 masters")
    amp.shutdown()
