# SPDX-License-Identifier: Apache-2.0
"""record_torch.py OUTPUT: a few steps of torch's optimizers on the CPU, for test_torch.c to replay. In an environment
outside the tree: pip install torch==2.15.0 numpy && python record_torch.py data/torch.txt

A file: comment lines, then for each run

    run NAME KIND FLAGS LR WEIGHT_DECAY MOMENTUM DAMPENING BETA1 BETA2 EPS SIZE STEPS
    param W...        SIZE words: the parameter before the first step
    grad W... , param W... for each step: the gradient, and the parameter after it

KIND and FLAGS are AMP_OPTIM_* as numbers; settings are decimal, words the eight hexadecimal digits of a float's bits.
"""
import struct
import sys

import torch

SGD, ADAM, ADAMW, ADAGRAD = 1, 2, 3, 6
NESTEROV, BIAS_CORRECTION, AMSGRAD = 1 << 0, 1 << 2, 1 << 3
SIZE, STEPS = 24, 12

# name, kind, flags, torch's class, its options
RUNS = [
    ("sgd", SGD, 0, torch.optim.SGD, {"lr": 0.1}),
    ("sgd-momentum", SGD, 0, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    ("sgd-dampening", SGD, 0, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}),
    ("sgd-nesterov", SGD, NESTEROV, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    ("adam", ADAM, BIAS_CORRECTION, torch.optim.Adam, {"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-8}),
    ("adam-decay", ADAM, BIAS_CORRECTION, torch.optim.Adam,
     {"lr": 0.01, "betas": (0.8, 0.99), "eps": 1e-3, "weight_decay": 0.1}),
    ("adam-amsgrad", ADAM, BIAS_CORRECTION | AMSGRAD, torch.optim.Adam,
     {"lr": 0.01, "betas": (0.9, 0.9), "eps": 1e-8, "amsgrad": True}),
    ("adamw", ADAMW, BIAS_CORRECTION, torch.optim.AdamW,
     {"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1}),
    ("adamw-amsgrad", ADAMW, BIAS_CORRECTION | AMSGRAD, torch.optim.AdamW,
     {"lr": 0.01, "betas": (0.9, 0.9), "eps": 1e-8, "weight_decay": 0.1, "amsgrad": True}),
    ("adagrad", ADAGRAD, 0, torch.optim.Adagrad, {"lr": 0.1, "eps": 1e-10}),
    ("adagrad-decay", ADAGRAD, 0, torch.optim.Adagrad, {"lr": 0.1, "eps": 1e-10, "weight_decay": 0.1}),
]


def words(tensor):
    return " ".join(f"{struct.unpack('<I', struct.pack('<f', value))[0]:08x}" for value in tensor.tolist())


def record(out, name, kind, flags, make, options):
    generator = torch.Generator().manual_seed(kind * 1000 + flags)
    param = torch.nn.Parameter(torch.randn(SIZE, generator=generator))
    optimizer = make([param], **options)
    betas = options.get("betas", (0.0, 0.0))
    numbers = [options["lr"], options.get("weight_decay", 0.0), options.get("momentum", 0.0),
               options.get("dampening", 0.0), *betas, options.get("eps", 0.0)]
    print("run", name, kind, flags, *(repr(float(number)) for number in numbers), SIZE, STEPS, file=out)
    print("param", words(param.detach()), file=out)
    for step in range(STEPS):
        size = 10.0 ** -(step % 4)  # some gradients are small
        param.grad = size * torch.randn(SIZE, generator=generator)
        print("grad", words(param.grad), file=out)
        optimizer.step()
        print("param", words(param.detach()), file=out)


def main():
    with open(sys.argv[1], "w", encoding="ascii") as out:
        print("# SPDX-License-Identifier: Apache-2.0", file=out)
        print(f"# Format: tests/optim/record_torch.py. Recorded from: torch {torch.__version__}, torch.optim, CPU",
              file=out)
        for run in RUNS:
            record(out, *run)


main()
