#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The same work as bench's, in torch: a process that bench starts and takes turns with: peers.py [cpu|cuda]

Says "ok torch VERSION" first, or "none WHY". Then a line in, a line out:

    has MODULE              ok 1, ok 0    whether this Python has the module
    make WORK ARGUMENT...   ok NUMBER     WORK is a function below; what it returns is run
    run NUMBER TIMES        ok SECONDS    of this thread's processor time, or the GPU's, for one of TIMES in a row
    drop NUMBER             ok

What fails answers "error WHY". On the CPU, one thread, memory that a work keeps is what bench's own is: written, in
huge pages, the same numbers; what torch allocates on its way, and all of a GPU's, comes from where torch has it.
"""
import importlib
import importlib.util
import mmap
import os
import sys
import time

ANSWERS = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)  # whatever else is printed


def answer(text):
    print(" ".join(str(text).split()), file=ANSWERS, flush=True)


try:
    import torch
except Exception as error:  # pylint: disable=broad-except # a broken torch is none
    answer(f"none {error or type(error).__name__}")
    sys.exit(0)

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cpu"
if DEVICE != "cpu" and not torch.cuda.is_available():
    answer(f"none torch {torch.__version__} has no GPU here")
    sys.exit(0)

TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}


def memory(size, dtype="fp32"):
    """`size` elements of i % 1000 + 1 in units of 2^-10."""
    dtype = TYPES[dtype]
    if DEVICE != "cpu":
        return torch.full((size,), 2.0**-10, dtype=dtype, device=DEVICE)
    block = mmap.mmap(-1, size * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        block.madvise(mmap.MADV_HUGEPAGE)
    elements = torch.frombuffer(block, dtype=dtype, count=size)
    pattern = torch.arange(1, 1001) * 2.0**-10
    whole = size - size % 1000
    elements[:whole].view(-1, 1000).copy_(pattern)
    elements[whole:].copy_(pattern[:size - whole])
    return elements


def tensors(count, size, dtype="fp32", value=None):
    """`count` tensors of `size` elements, one after the other; apart on a GPU, as a model has them."""
    if DEVICE != "cpu":
        return [torch.full((size,), 2.0**-10 if value is None else value, dtype=TYPES[dtype], device=DEVICE)
                for _ in range(count)]
    block = memory(count * size, dtype)
    if value is not None:
        block.fill_(value)
    return list(block.split(size))


def unscaler(gradients):
    """By 1/2 and by 2 in turns, so that they stay what they are."""
    factors, found = [torch.tensor(f, device=DEVICE) for f in (0.5, 2.0)], torch.zeros((), device=DEVICE)

    def run():
        factors.reverse()
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, factors[0])
    return run, found


def fused_adam(params, gradients, found=None):
    moments = [tensors(len(params), params[0].numel(), value=0.0) for _ in range(2)]
    steps = [torch.zeros((), device=DEVICE) for _ in params]

    def run():
        torch._foreach_add_(steps, 1)
        torch._fused_adam_(params, gradients, moments[0], moments[1], [], steps, lr=1e-3, beta1=0.9, beta2=0.999,
                           weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False, found_inf=found)
    return run


def fused_sgd(params, gradients):
    moments = tensors(len(params), params[0].numel(), value=0.0)
    return lambda: torch._fused_sgd_(params, gradients, moments, lr=1e-3, momentum=0.9, weight_decay=0.0,
                                     dampening=0.0, nesterov=False, maximize=False, is_first_step=False)


def foreach(optimizer, params, gradients):
    """torch.optim's step, its state in memory as ours."""
    for param, gradient in zip(params, gradients):
        param.requires_grad_().grad = gradient
    optimizer = optimizer(params)
    optimizer.step()
    for name in [name for name, value in optimizer.state[params[0]].items() if value.numel() > 1]:
        for param, moment in zip(params, tensors(len(params), params[0].numel(), value=0.0)):
            optimizer.state[param][name] = moment
    return optimizer.step


# ---- the works -------------------------------------------------------------------------------------------------------

def cast(to, source, size):
    dst, src = memory(int(size), to), memory(int(size), source)
    return lambda: dst.copy_(src)


def unscale(count, size):
    return unscaler(tensors(int(count), int(size)))[0]


def unscale_sizes(*sizes):
    return unscaler([memory(int(size)) for size in sizes])[0]


def adam(low, count, size):
    """FP32; or with 16-bit gradients, which torch's step takes as FP32, and 16-bit parameters, which it does not
    write."""
    count, size = int(count), int(size)
    params, gradients = tensors(count, size), tensors(count, size, value=1e-3)
    update = fused_adam(params, gradients)
    if low == "fp32":
        return update
    low_gradients, low_params = (tensors(count, size, low) for _ in range(2))

    def run():
        torch._foreach_copy_(gradients, low_gradients)
        update()
        torch._foreach_copy_(low_params, params)
    return run


def step(rule, kind, count, size):
    count, size = int(count), int(size)
    params, gradients = tensors(count, size), tensors(count, size, value=1e-3)
    if kind == "fused":
        return {"adam": fused_adam, "sgd": fused_sgd}[rule](params, gradients)
    return foreach({"adam": lambda p: torch.optim.Adam(p, lr=1e-3, foreach=True),
                    "sgd": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, foreach=True)}[rule], params, gradients)


def step8(module, count, size):
    """AdamW with 8-bit moments, of bitsandbytes or torchao."""
    count, size = int(count), int(size)
    params, gradients = tensors(count, size), tensors(count, size, value=1e-3)
    for param, gradient in zip(params, gradients):
        param.requires_grad_().grad = gradient
    optimizer = importlib.import_module(f"{module}.optim").AdamW8bit(params, lr=1e-3)
    optimizer.step()  # makes its state
    return optimizer.step


def unscale_step_write(low, count, size):
    count, size = int(count), int(size)
    params, gradients, halves = tensors(count, size), tensors(count, size, value=1e-3), tensors(count, size, low)
    unscale_all, found = unscaler(gradients)
    adam = fused_adam(params, gradients, found)

    def run():
        unscale_all()
        adam()
        torch._foreach_copy_(halves, params)
    return run


def matmul(dtype, size):
    size = int(size)
    a, b, d = (memory(size * size, dtype).view(size, size) for _ in range(3))
    return lambda: torch.mm(a, b, out=d)


def numkong(dtype, size):
    """b is packed for each product, as a training has a new one in each step."""
    module, size = importlib.import_module("numkong"), int(size)
    named = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}[dtype]
    a, b = (memory(size * size, dtype).view(size, size) for _ in range(2))
    if dtype == "bf16":  # NumPy has no such type
        a, b = (x.view(torch.int16) for x in (a, b))
    a, b = (module.Tensor(x.numpy().view("uint16") if dtype == "bf16" else x.numpy(), dtype=named) for x in (a, b))
    return lambda: module.dots_packed(a, module.dots_pack(b, dtype=named))


WORKS = {work.__name__: work for work in (cast, unscale, unscale_sizes, adam, step, step8, unscale_step_write,
                                            matmul, numkong)}


# ---- the conversation ------------------------------------------------------------------------------------------------

def run_work(work, times):
    if DEVICE != "cpu":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        for _ in range(times):
            work()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) * 1e-3 / times
    begin = time.thread_time_ns()
    for _ in range(times):
        work()
    return (time.thread_time_ns() - begin) * 1e-9 / times


def main():
    torch.set_num_threads(1)
    answer(f"ok torch {torch.__version__}")
    made, number = {}, 0
    for line in sys.stdin:
        word, *arguments = line.split()
        try:
            if word == "has":
                answer(f"ok {int(importlib.util.find_spec(arguments[0]) is not None)}")
            elif word == "make":
                number += 1
                made[number] = WORKS[arguments[0]](*arguments[1:])
                answer(f"ok {number}")
            elif word == "run":
                answer(f"ok {run_work(made[int(arguments[0])], int(arguments[1])):.9g}")
            elif word == "drop":
                del made[int(arguments[0])]
                answer("ok")
            else:
                answer(f"error {word}?")
        except Exception as failure:  # pylint: disable=broad-except # bench says it and ends
            answer(f"error {line.strip()}: {type(failure).__name__}: {failure}")


if __name__ == "__main__":
    with torch.no_grad():
        main()
