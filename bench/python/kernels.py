# SPDX-License-Identifier: Apache-2.0
"""libamp.kernels on torch's tensors and NumPy's arrays, against torch's and NumPy's own functions for the same work."""
import numpy as np
import torch
from libamp import kernels

SETS = [(200, 50_000), (1000, 1000), (200, 16)]


def tensors(count, size, dtype=torch.float32, device="cpu", value=None):
    if value is not None:
        return [torch.full((size,), value, dtype=dtype, device=device) for _ in range(count)]
    return [(torch.arange(size, device=device) % 1000 + 1).to(dtype) / 1024 for _ in range(count)]


def unscale(bench, count, size, device):
    grads, factors, found = tensors(count, size, device=device), [0.5, 2.0], torch.zeros(1, device=device)
    theirs = [torch.full((), factor, device=device) for factor in factors]  # in turns: the numbers stay

    def ours():
        factors.reverse()
        kernels.scale(grads, grads, factors[0], found_inf=found)

    def reference():
        theirs.reverse()
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found, theirs[0])

    bench.pair(f"unscale and check, {device}", f"{count} x {size}", ours, reference, "torch's foreach", goal=1.0,
               moved=8 * count * size, device=device)


def cast(bench, count, size, device, dtype):
    source, target = tensors(count, size, device=device), tensors(count, size, dtype, device)
    bench.pair(f"cast fp32 to {str(dtype)[6:]}, {device}", f"{count} x {size}", lambda: kernels.cast(target, source),
               lambda: torch._foreach_copy_(target, source), "torch._foreach_copy_", goal=1.0, moved=6 * count * size,
               device=device)


def norm(bench, count, size, device):
    grads, result = tensors(count, size, device=device), torch.zeros(1, device=device)
    bench.pair(f"L2 norm, {device}", f"{count} x {size}", lambda: kernels.l2norm(grads, norm=result),
               lambda: torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads))), "torch._foreach_norm",
               goal=1.0, moved=4 * count * size, device=device)


def adamw(bench, count, size, device):
    sets = [[tensors(count, size, device=device, value=value) for value in (0.5, 0.25, 0.0, 0.0)] for _ in range(2)]
    steps = torch.zeros(count, dtype=torch.int64, device=device)
    (p, g, m, v), (tp, tg, tm, tv) = sets
    counts = [torch.zeros((), device=device) for _ in range(count)]
    state = {"exp_avg": m, "exp_avg_sq": v}

    def reference():
        torch._foreach_add_(counts, 1)
        torch._fused_adamw_(tp, tg, tm, tv, [], counts, lr=1e-3, beta1=0.9, beta2=0.999, weight_decay=0.01, eps=1e-8,
                            amsgrad=False, maximize=False)

    bench.pair(f"AdamW, {device}", f"{count} x {size}",
               lambda: kernels.optimizer_step("adamw", p, g, state, steps=steps, lr=1e-3, weight_decay=0.01), reference,
               "torch's fused", goal=1.0, moved=28 * count * size, device=device)


def arrays(bench):
    for size in (1_000, 10_000_000):
        source = np.linspace(-1, 1, size, dtype=np.float32)
        target = np.zeros(size, np.float16)
        bench.pair("cast fp32 to float16, NumPy", size, lambda a=target, b=source: kernels.cast(a, b),
                   lambda a=target, b=source: np.copyto(a, b, casting="same_kind"), "numpy.copyto", goal=1.0,
                   moved=6 * size)
        bench.pair("L2 norm, NumPy", size, lambda b=source: kernels.l2norm(b), lambda b=source: np.linalg.norm(b),
                   "numpy.linalg.norm", moved=4 * size)


def products(bench):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        a, b, d = (torch.ones(512, 512, dtype=dtype) for _ in range(3))
        bench.pair(f"matmul {str(dtype)[6:]}", "512 x 512", lambda a=a, b=b, d=d: kernels.matmul(d, a, b),
                   lambda a=a, b=b, d=d: torch.mm(a, b, out=d), "torch.mm")


def measure(bench):
    for device in ["cpu"] + ["cuda"] * torch.cuda.is_available():
        for count, size in SETS:
            unscale(bench, count, size, device)
            cast(bench, count, size, device, torch.float16)
            cast(bench, count, size, device, torch.bfloat16)
            norm(bench, count, size, device)
            adamw(bench, count, size, device)
    arrays(bench)
    products(bench)
