#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What an average over many ranks loses when it is sent in 16 bits, simulated: rounding.py

Gradients of standard deviation 1 about a mean, rounded to the type on each rank, then averaged: as amp_mpi_average.h
does it (summed in FP32, rounded once); by a ring and by a tree that round after every addition, as an MPI_Op for 16-bit
numbers would. The root mean square of the error, against that of the exact average.
"""
import math
import random
import struct

ELEMENTS, SEED = 256, 1


def bf16(value):
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return struct.unpack("<f", struct.pack("<I", (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000))[0]


def fp16(value):
    return struct.unpack("<e", struct.pack("<e", value))[0]


def fp32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def once(values, low):
    total = 0.0
    for value in values:
        total = fp32(total + value)
    return low(total / len(values))


def ring(values, low):
    total = values[0]
    for value in values[1:]:
        total = low(total + value)
    return low(total / len(values))


def tree(values, low):
    n = len(values)
    while len(values) > 1:
        values = [low(a + b) for a, b in zip(values[::2], values[1::2])]
    return low(values[0] / n)


def rms(values):
    return math.sqrt(sum(value * value for value in values) / len(values))


def main():
    print(f"seed {SEED}, {ELEMENTS} gradients\nranks  mean  type   libamp's     ring       tree")
    for ranks in (8, 1024):
        for mean in (0.0, 1.0):
            source = random.Random(SEED)
            gradients = [[source.gauss(mean, 1.0) for _ in range(ranks)] for _ in range(ELEMENTS)]
            exact = [math.fsum(values) / ranks for values in gradients]
            for low in (bf16, fp16):
                sent = [[low(value) for value in values] for values in gradients]
                errors = [rms([way(values, low) - right for values, right in zip(sent, exact)]) / rms(exact)
                          for way in (once, ring, tree)]
                print(f"{ranks:>5}  {mean:>4}  {low.__name__}  {errors[0]:.1e}    {errors[1]:.1e}    {errors[2]:.1e}")


if __name__ == "__main__":
    main()
