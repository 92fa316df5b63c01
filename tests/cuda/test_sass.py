#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What nvcc made of the kernels: test_sass.py PLUGIN CUOBJDUMP. Prints TAP.

For each kernel and each GPU that the plugin has code for: tensors are read and written 16 bytes at a time, nothing lies in
local memory (no spill, no array that is indexed at run time), and floats are multiplied and added apart. "-REASON" in place
of a file: skipped.
"""
import collections
import os
import re
import subprocess
import sys

# What reads tensors, what writes them, and in which the elementwise arithmetic may have no fused operation.
READS = {"cast", "scale", "axpby", "add", "clamp", "reconcile", "check", "update", "lamb_moments", "finish"}
WRITES = {"cast", "scale", "axpby", "add", "clamp", "reconcile", "zero", "update", "lamb_moments", "finish"}
SMALL = {"norms", "prepare", "lamb_lr", "sum_columns", "sum_rows", "scaler"}  # a block or a thread a tensor, or a sum
BOUNDED = {"finish"}  # has erf, tanh and exp, whose insides are CUDA's: within a bound, not to the bit
RULES = 5  # kernel_update<rule>


def tool(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, "LC_ALL": "C"}).stdout


def kernel_of(symbol):
    """scale of _Z12kernel_scale10cuda_table..."""
    found = re.search(r"\d+kernel_(" + "|".join(sorted(READS | WRITES | SMALL, key=len, reverse=True)) + ")", symbol)
    return found.group(1) if found else None


def instructions(plugin, cuobjdump):
    """{(arch, symbol): Counter of opcodes}"""
    code, arch, symbol = {}, None, None
    for line in tool(cuobjdump, "-sass", plugin).splitlines():
        if found := re.match(r"\s*arch = (\w+)", line):
            arch = found.group(1)
        elif found := re.match(r"\s*Function : (\S+)", line):
            symbol = found.group(1)
            code[arch, symbol] = collections.Counter()
        elif (found := re.match(r"\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+ )?([A-Z][\w.]*)", line)) and symbol:
            code[arch, symbol][found.group(1)] += 1
    return code


def stacks(plugin, cuobjdump):
    """[(symbol, bytes of stack, of local memory)]"""
    said = tool(cuobjdump, "-res-usage", plugin)
    return [(name, int(stack), int(local)) for name, stack, local in
            re.findall(r"Function (\S+):\s*\n\s*REG:\d+ STACK:(\d+) .*?LOCAL:(\d+)", said)]


def problems(code):
    for (arch, symbol), opcodes in sorted(code.items()):
        kernel = kernel_of(symbol)
        if kernel is None:
            yield f"{arch} {symbol}: a kernel that this test does not know"
            continue
        count = lambda pattern: sum(n for name, n in opcodes.items() if re.match(pattern, name))
        if kernel in READS and not count(r"LDG\..*128"):
            yield f"{arch} {kernel}: no load of 16 bytes: {dict(opcodes)}"
        if kernel in WRITES and not count(r"STG\..*128"):
            yield f"{arch} {kernel}: no store of 16 bytes"
        if count(r"(LDL|STL)\b"):
            yield f"{arch} {kernel}: {count(r'(LDL|STL)')} accesses to local memory"
        if kernel not in SMALL and count(r"(LD|ST)\."):
            yield f"{arch} {kernel}: {count(r'(LD|ST)[.]')} accesses to memory of a kind that is not known"


# In PTX: what may be fused or approximated later, or already is. A float's square, exact in double, is added by fma.rn.f64.
INEXACT = re.compile(r"\b(fma\.\w+\.f32|mad\.\w+\.f32|(?:mul|add|sub)\.f(?:32|64)|div\.(?:approx|full)\S*|sqrt\.approx\S*|"
                     r"rcp\.approx\S*|\w+(?:\.\w+)*\.ftz\S*)")


def exact_ptx(plugin, cuobjdump):
    """All kernels' but those of BOUNDED."""
    parts = re.split(r"(?=\.entry )", tool(cuobjdump, "-ptx", plugin))
    return "".join(part for part in parts if kernel_of(part.split("(")[0]) not in BOUNDED)


def main():
    plugin, cuobjdump = sys.argv[1:]
    for given in (plugin, cuobjdump):
        if given.startswith("-"):
            print(f"1..0 # SKIP {given[1:]}")
            return
    code = instructions(os.path.abspath(plugin), cuobjdump)
    kernels = collections.Counter((arch, kernel_of(symbol)) for arch, symbol in code)
    print("1..4")
    wanted = READS | WRITES | SMALL
    missing = [f"{arch} {kernel}" for arch in sorted({arch for arch, _ in code}) for kernel in sorted(wanted)
               if kernels[arch, kernel] != (RULES if kernel == "update" else 1)]
    print(f"{'ok' if code and not missing else 'not ok'} 1 - every kernel is there, for each GPU")
    for name in missing or ([] if code else ["no code at all"]):
        print(f"# {name}: not as many as there should be")
    found = list(problems(code))
    print(f"{'not ok' if found or not code else 'ok'} 2 - 16 bytes at a time, nothing in local memory")
    for line in found:
        print(f"# {line}")
    used = stacks(plugin, cuobjdump)
    bad = [entry for entry in used if entry[1] or entry[2]]
    print(f"{'ok' if len(used) == len(code) and not bad else 'not ok'} 3 - no stack, no spill")
    if len(used) != len(code):
        print(f"# {len(used)} kernels in the list of resources, {len(code)} in the code")
    for entry in bad:
        print(f"# {entry}")
    ptx = exact_ptx(plugin, cuobjdump)
    rounded, inexact = len(re.findall(r"\bmul\.rn\.f32\b", ptx)), INEXACT.findall(ptx)
    print(f"{'not ok' if inexact or not rounded else 'ok'} 4 - every operation rounds once, as IEEE 754 says")
    for name, times in collections.Counter(inexact).items():
        print(f"# {times} of {name}")


if __name__ == "__main__":
    main()
