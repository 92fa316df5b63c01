# SPDX-License-Identifier: Apache-2.0
"""What O4 adds to a call, beside what torch.autocast adds to the same call. A piece of work is 100 calls inside one
forward or one `with torch.autocast`, which casts each weight once."""
import torch
from libamp import _core
from libamp.torch.amp import patching

CALLS = 100
LOW = torch.bfloat16
F = torch.nn.functional


def calls(function, *args):
    def work():
        for _ in range(CALLS):
            function(*args)

    return work


def within(context, work):
    def scoped():
        context.enter()
        try:
            work()
        finally:
            context.leave()

    return scoped


def under_autocast(work):
    def scoped():
        with torch.autocast("cpu", dtype=LOW):
            work()

    return scoped


def in_low(value):
    """What a call would be given by hand: FP32 tensors in 16 bits, leaves as they were."""
    if not isinstance(value, torch.Tensor) or value.dtype is LOW:
        return value
    return value.detach().to(LOW).requires_grad_(value.requires_grad)


def measure(bench):
    single, other = torch.randn(4, 4), torch.randn(4, 4)
    low, low_other = single.to(LOW), other.to(LOW)
    recorded = torch.randn(4, 4, requires_grad=True) * 2
    weight = torch.nn.Parameter(torch.randn(4, 4))
    bias = torch.nn.Parameter(torch.randn(4))
    listed = [  # ours is found by name, the bare one is torch's own
        ("mm, both inputs cast", "mm", torch, (single, other)),
        ("mm, both inputs cast and recorded", "mm", torch, (recorded, recorded)),
        ("mm, an input cast, a weight kept", "mm", torch, (single, weight)),
        ("linear, an input cast, two weights kept", "linear", F, (single, weight, bias)),
        ("linear, recorded input, two weights kept", "linear", F, (recorded, weight, bias)),
        ("mse_loss, both inputs cast to FP32", "mse_loss", F, (low, low_other)),
        ("mm, nothing to cast", "mm", torch, (low, low_other)),
        ("cat, nothing to cast", "cat", torch, ([single, other],)),
    ]
    originals = {name: getattr(owner, name) for _, name, owner, _ in listed}
    unlisted, promoted = torch.relu, torch.add
    context = _core.Context("O4", [(weight, "weight", False), (bias, "bias", False)], [], {})
    patching.install(context, verbosity=0)
    try:
        for label, name, owner, args in listed:
            by_hand = {"cat": lambda value: value, "mse_loss": torch.Tensor.float}.get(name, in_low)
            bare = calls(originals[name], *map(by_hand, args))
            ours = within(context, calls(getattr(owner, name), *args))
            reference = under_autocast(calls(originals[name], *args))
            bench.overhead(f"{label}, {CALLS} calls", "4 x 4", ours, bare, reference, bare, "torch.autocast", goal=2.0)
        bench.allowance(f"add, nothing to cast (not in autocast's lists), {CALLS} calls", "4 x 4",
                        within(context, calls(torch.add, single, other)), calls(promoted, single, other), 150 * CALLS)
        bench.allowance(f"relu, in no list, {CALLS} calls", "4 x 4", within(context, calls(torch.relu, single)),
                        calls(unlisted, single), 50 * CALLS)
    finally:
        patching.uninstall(context)
        context.shutdown()
