# SPDX-License-Identifier: Apache-2.0
"""step() of libamp.torch.optimizers against the fused and the foreach implementation of torch's own optimizers."""
import torch
from libamp.torch import optimizers as fused
from torch import nn

# many small tensors; the parameters of a ResNet's blocks; a few large ones
SETS = {"200 x 1000": [1000] * 200, "50 blocks": [64 * 64 * 9, 64, 64] * 50, "4 x 2^20": [2**20] * 4}
PAIRS = {
    "SGD": (
        lambda p: fused.FusedSGD(p, 1e-3, momentum=0.9),
        lambda p, **k: torch.optim.SGD(p, 1e-3, momentum=0.9, **k),
    ),
    "AdamW": (lambda p: fused.FusedAdam(p, 1e-3), lambda p, **k: torch.optim.AdamW(p, 1e-3, weight_decay=0.0, **k)),
    "Adagrad": (lambda p: fused.FusedAdagrad(p, 1e-3), lambda p, **k: torch.optim.Adagrad(p, 1e-3, **k)),
}


def parameters(sizes, dtype, device):
    params = [nn.Parameter(torch.full((size,), 0.5, dtype=dtype, device=device)) for size in sizes]
    for param in params:
        param.grad = torch.full_like(param, 0.25)
    return params


def measure(bench):
    for device in ["cpu"] + ["cuda"] * torch.cuda.is_available():
        for name, (make, peer) in PAIRS.items():
            for dtype in (torch.float32, torch.bfloat16):
                for size, sizes in SETS.items():
                    ours = make(parameters(sizes, dtype, device))
                    for how in ("fused", "foreach"):
                        if how == "fused" and name == "Adagrad" and device == "cuda":
                            continue  # torch has it on the CPU alone
                        theirs = peer(parameters(sizes, dtype, device), **{how: True})
                        bench.pair(f"{name} {str(dtype)[6:]}, {device}", size, ours.step, theirs.step, f"torch's {how}",
                                   goal=1.0 if how == "foreach" else 0.0, device=device)
