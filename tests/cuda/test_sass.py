#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What nvcc made of the kernels: test_sass.py PLUGIN CUOBJDUMP FOLDER NVCC FLAG... Prints TAP.

For each kernel and each GPU that the plugin has code for: tensors are read and written 16 bytes at a time, nothing lies
in local memory (no spill, no array that is indexed at run time), and floats are multiplied and added apart. "-REASON"
in place of a file: skipped. Where there is no cuobjdump, the kernels of FOLDER are compiled again for the newest of the
GPUs, and the same is read from their PTX and from what ptxas says of registers: all but the instructions themselves.

Where there is code for BUDGET_ARCH, kernels also keep to budgets there: registers, and instructions an element in the
loop over whole tiles, which may convert nothing to double. They are what bench/README.md expects of a GPU from. The
lines that this prints begin with "# budget".
"""
import collections
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import sass

# What reads tensors, what writes them, and in which the elementwise arithmetic may have no fused operation.
READS = {"cast", "scale", "axpby", "add", "clamp", "reconcile", "round", "check", "update", "step", "lamb_moments",
         "finish", "statistics", "sum_columns", "sum_rows", "split", "squares", "adam8"}
WRITES = {"cast", "scale", "axpby", "add", "clamp", "reconcile", "round", "zero", "update", "step", "lamb_moments",
          "finish", "split", "adam8"}
NARROW = {"pack", "pack_mask", "unpack"}  # a lane's rows lie apart: neighbours move together
SMALL = {"norms", "prepare", "lamb_lr", "sum_columns", "sum_rows", "scaler", "statistics_sums"}  # a block a tensor
NO_DIVISION = {"finish"}  # of integers, for each group
BOUNDED = {"finish"}  # has erf, tanh and exp, whose insides are CUDA's: within a bound, not to the bit
COUNTS = {"pack": 3, "unpack": 4}  # kernel_pack<bits>; and rule_counts

BUDGET_ARCH = "sm_90"
REGISTERS = {  # 64: half of a multiprocessor's threads at a time, 80: three eighths
    "cast": 64, "scale": 64, "clamp": 64, "reconcile": 64, "round": 64, "zero": 64, "check": 64, "norms": 64,
    "axpby": 80, "add": 80, "update": 80, "step": 80, "lamb_moments": 80, "finish": 64, "sum_columns": 64,
    "sum_rows": 64, "prepare": 64, "lamb_lr": 64, "scaler": 64,
    "statistics": 64, "statistics_sums": 64, "split": 64, "squares": 64, "adam8": 80,
    "pack": 80, "pack_mask": 80, "unpack": 64,
}
# Kernel (of kernel_update the rule's number as well), types, elements, their bytes in all that is moved, instructions
# an element, and the work by which the way round the loop is known: two groups of eight, four where 16 bits alone are
# read, of an optimizer half a group, whose accesses to parameter and gradient may be two instructions of which one is
# passed over, or to pack a pair of lanes, once through the kernel.
SPLIT = {"load16": 2, "load8": 3, "load": 2, "to_bf16": 2, "store16": 2, "store8": 2}


def packing(words):
    """Ways with so many words of codes for each lane: stored in pairs, and where they are not aligned one by one."""
    return [{"load": 16, "store8": words, "store": 2 + more, r"FADD.* 8388608": 32} for more in (0, 2 * words)]


BUDGETS = [
    ("cast", "fp32 to fp16", 16, 6, 3, {"load16": 4, "to_f16": 8, "store8": 4}),
    ("cast", "fp32 to bf16", 16, 6, 3, {"load16": 4, "to_bf16": 8, "store8": 4}),
    ("cast", "fp16 to fp32", 32, 6, 3, {"load8": 8, "from_f16": 32, "store16": 8}),
    ("scale", "fp32", 16, 8, 5, {"load16": 4, "store16": 4}),
    ("scale", "fp16", 32, 4, 5, {"load16": 4, "from_f16": 32, "to_f16": 16, "store16": 4}),
    ("scale", "bf16", 32, 4, 5, {"load16": 4, "to_bf16": 16, "store16": 4}),
    ("scale", "fp16 to fp32", 32, 6, 6, {"load8": 8, "from_f16": 32, "store16": 8}),
    ("axpby", "fp32", 16, 12, 8, {"load16": 8, "store16": 4}),
    ("axpby", "fp16", 16, 6, 9, {"load16": 4, "from_f16": 32, "to_f16": 8, "store16": 2}),
    ("axpby", "bf16", 16, 6, 9, {"load16": 4, "to_bf16": 8, "store16": 2}),
    ("add", "fp16", 16, 6, 9, {"load16": 4, "from_f16": 32, "to_f16": 8, "store16": 2}),
    ("clamp", "fp16", 32, 4, 8, {"load16": 4, "from_f16": 32, "to_f16": 16, "store16": 4}),
    ("check", "fp32", 16, 4, 8, {"load16": 4, "fma64": 16}),
    ("check", "fp16", 32, 2, 8, {"load16": 4, "from_f16": 32, "fma64": 32}),
    ("check", "bf16", 32, 2, 8, {"load16": 4, "fma64": 32}),
    ("statistics", "fp32", 16, 4, 22, {"load16": 4, "fma64": 32, "atomic": 16}),
    ("statistics", "fp16", 32, 2, 21, {"load16": 4, "from_f16": 32, "fma64": 64, "atomic": 32}),
    ("statistics", "bf16", 32, 2, 19, {"load16": 4, "fma64": 64, "atomic": 32}),
    ("update0", "SGD, fp32", 4, 20, 40, {"load16": 3, "store16": 2}, {"load16": 3, "store16": 2, "store8": 1}),
    ("update1", "Adam, fp32", 4, 28, 100, {"load16": 4, "store16": 3}, {"load16": 4, "store16": 3, "store8": 1}),
    ("update1", "Adam, split masters", 4, 26, 120, SPLIT, {**SPLIT, "from_f16": 4}),
    ("pack8", "bf16", 32, 3, 17, *packing(4)),
    ("pack4", "bf16", 32, 2.5, 17, *packing(2)),
    ("pack2", "bf16", 32, 2.25, 17, *packing(1)),
    ("pack_mask", "bf16", 32, 2.125, 12, {"load": 16, "store": 4}),
]
# How often, on the way, loads begin after something has waited for earlier ones: once, and of split masters once more
# for the words of ties, which most threads pass over.
TRIPS = {"Adam, fp32": 1, "Adam, split masters": 2}
# An H200: multiprocessors, their clock, warp instructions that each issues a cycle, bytes a second of copying.
H200 = (132, 1.98e9, 4, 4.3e12)


def rule_counts(folder):
    """Of kernel_update<rule, stochastic> and kernel_step<rule>, from the lists in update.h."""
    text = (pathlib.Path(folder) / "update.h").read_text(encoding="utf-8")
    rows = {name: len(re.findall(r"X\(\w+, \w+, \d\)",
                                 re.search(rf"#define CUDA_{name}_MAP\(X\)(.*?[^\\])\n", text, re.S).group(1)))
            for name in ("KNOWN_RULE", "RULE")}
    return {"step": rows["KNOWN_RULE"], "update": 2 * (rows["KNOWN_RULE"] + rows["RULE"])}  # stochastic or not


def tool(*command):
    """Both outputs. nvdisasm, which cuobjdump calls, lies beside it."""
    path = os.path.dirname(os.path.realpath(command[0])) + ":" + os.environ.get("PATH", "")
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env={**os.environ, "LC_ALL": "C", "PATH": path})
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stdout}")
    return done.stdout


def kernel_of(symbol):
    """scale of _Z12kernel_scale10cuda_table..."""
    found = re.search(r"\d+kernel_(" + "|".join(sorted(READS | WRITES | NARROW | SMALL, key=len, reverse=True)) + ")",
                      symbol)
    return found.group(1) if found else None


def instructions(text):
    """{(arch, symbol): Counter of opcodes}"""
    return {key: collections.Counter(instruction.opcode for instruction in code)
            for key, code in sass.functions(text).items()}


def budgets(plugin, cuobjdump, text):
    """What is over its budget; prints what was found."""
    counted, rules = sass.functions(text), re.compile(r"kernel_(?:updateIL9cuda_rule(\d)ELb0|packILi(\d))E")
    code = {}
    for (arch, symbol), instructions_of in counted.items():
        if arch == BUDGET_ARCH:
            rule = rules.search(symbol)
            code[kernel_of(symbol) + (rule.group(1) or rule.group(2) if rule else "")] = instructions_of
    for symbol, registers in re.findall(r"Function (\S+):\s*\n\s*REG:(\d+)",
                                        tool(cuobjdump, "-res-usage", "-arch", BUDGET_ARCH, plugin)):
        limit = REGISTERS.get(kernel_of(symbol), 0)
        print(f"# budget: {symbol[:50]} {registers} registers")
        if int(registers) > limit:
            yield f"{symbol}: {registers} registers, {limit} are its budget"
    processors, clock, issued, copied = H200
    for kernel, types, elements, moved, limit, *works in BUDGETS:
        way = sass.through if kernel.startswith("pack") else sass.round_of
        found = [x for x in (way(code[kernel], work) for work in works if kernel in code) if x is not None]
        if not found:
            yield f"{kernel}, {types}: nothing does {works[0]}, and that alone"
            continue
        least, path = min(found)
        each, trips = least / elements, sass.trips(path)
        if trips > TRIPS.get(types, trips):
            yield f"{kernel}, {types}: loads begin {trips} times, {TRIPS[types]} is the budget"
        share = each * copied / moved / (processors * clock * issued * 32)
        print(f"# budget: {kernel}, {types}: {each:.1f} instructions an element of {moved} bytes, {100 * share:.0f} % "
              f"of an H200's at its rate of copying")
        if each > limit:
            yield f"{kernel}, {types}: {each:.1f} instructions an element, {limit} are its budget"


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
        if kernel in NO_DIVISION and count(r"CALL"):
            yield f"{arch} {kernel}: {count(r'CALL')} calls, as of a division"
        if count(r"(LDL|STL)\b"):
            yield f"{arch} {kernel}: {count(r'(LDL|STL)')} accesses to local memory"
        if kernel not in SMALL and count(r"(LD|ST)\."):
            yield f"{arch} {kernel}: {count(r'(LD|ST)[.]')} accesses to memory of a kind that is not known"


# In PTX: what may be fused or approximated later, or already is. A float's square, exact in double, is added by
# fma.rn.f64.
INEXACT = re.compile(r"\b(fma\.\w+\.f32|mad\.\w+\.f32|(?:mul|add|sub)\.f(?:32|64)|div\.(?:approx|full)\S*|"
                     r"sqrt\.approx\S*|rcp\.approx\S*|\w+(?:\.\w+)*\.ftz\S*)")


def entries(ptx):
    """[(kernel, its text)]"""
    return [(kernel_of(part.split("(")[0]), part) for part in re.split(r"(?=\.entry )", ptx)[1:]]


def exact_ptx(ptx):
    """All kernels' but those of BOUNDED."""
    return "".join(text for kernel, text in entries(ptx) if kernel not in BOUNDED)


# ---- without cuobjdump

WIDE = r"\.global\S*\.(?:v4\.[a-z]32|v2\.[a-z]64)\b"


def compile_again(folder, nvcc, flags):
    """The PTX of all kernels, and what ptxas says of each."""
    ptx, said = "", ""
    with tempfile.TemporaryDirectory() as scratch:
        for source in sorted(pathlib.Path(folder).glob("*.cu")):
            out = os.path.join(scratch, source.stem + ".ptx")
            tool(nvcc, "-ptx", str(source), "-o", out, *flags)
            ptx += pathlib.Path(out).read_text(encoding="utf-8")
            said += tool(nvcc, "-cubin", out, "-o", out + ".cubin", "-Xptxas", "-v", *[f for f in flags if "arch" in f])
    return ptx, said


def stacks_of(said):
    return [(name, int(stack), int(stores) + int(loads)) for name, stack, stores, loads in
            re.findall(r"Function properties for (\S+)\n\s*(\d+) bytes stack frame, (\d+) bytes spill stores, "
                       r"(\d+) bytes spill loads", said)]


def ptx_problems(ptx):
    for kernel, text in entries(ptx):
        if kernel is None:
            yield f"a kernel that this test does not know: {text[:80]}"
        if kernel in READS and not re.search(r"\bld" + WIDE, text):
            yield f"{kernel}: no load of 16 bytes"
        if kernel in WRITES and not re.search(r"\bst" + WIDE, text):
            yield f"{kernel}: no store of 16 bytes"
        if kernel in NO_DIVISION and re.search(r"\b(div|rem)\.[us]\d", text):
            yield f"{kernel}: divides"
        if re.search(r"\b(ld|st)\.local\b|^\s*\.local\b", text, re.M):
            yield f"{kernel}: memory of its own, outside registers"


# ---- what is reported

def report(number, good, what, complaints=()):
    print(f"{'ok' if good else 'not ok'} {number} - {what}")
    for line in () if good else complaints:
        print(f"# {line}")


def judge(how, kernels, archs, found, used, ptx, over):
    """kernels: Counter of (arch, kernel); found: what is wrong with code; used: of stacks(); over: of budgets(), or why
    not."""
    missing = [f"{arch} {kernel}: not as many as there should be" for arch in archs
               for kernel in sorted(READS | WRITES | NARROW | SMALL)
               if kernels[arch, kernel] != COUNTS.get(kernel, 1)]
    print("1..5")
    report(1, archs and not missing, "every kernel is there, for each GPU" + how,
           missing or ([] if archs else ["no code at all"]))
    report(2, archs and not found, "16 bytes at a time, nothing in local memory" + how, found)
    bad = [entry for entry in used if entry[1] or entry[2]]
    total = sum(kernels.values())
    report(3, len(used) == total and not bad, "no stack, no spill" + how,
           bad or [f"{len(used)} kernels in the list of resources, {total} in the code"])
    rounded, inexact = len(re.findall(r"\bmul\.rn\.f32\b", ptx)), INEXACT.findall(ptx)
    report(4, rounded and not inexact, "every operation rounds once, as IEEE 754 says",
           [f"{times} of {name}" for name, times in collections.Counter(inexact).items()])
    if isinstance(over, str):
        print(f"ok 5 # SKIP {over}")
    else:
        report(5, not over, f"registers and instructions an element keep to their budgets on {BUDGET_ARCH}", over)


def main():
    plugin, cuobjdump, folder, nvcc, *flags = sys.argv[1:]
    COUNTS.update(rule_counts(folder))
    if plugin.startswith("-"):
        print(f"1..0 # SKIP {plugin[1:]}")
    elif os.environ.get("AMP_TEST_SHORT"):
        print("1..0 # SKIP AMP_TEST_SHORT: nvcc makes the same in every build, and another one looks at it")
    elif cuobjdump.startswith("-"):
        print(f"# {cuobjdump[1:]}: PTX and ptxas are asked")
        ptx, said = compile_again(folder, nvcc, flags)
        kernels = collections.Counter(("PTX", kernel) for kernel, _ in entries(ptx))
        judge(", as PTX has it", kernels, ["PTX"], list(ptx_problems(ptx)), stacks_of(said), exact_ptx(ptx),
              "instructions are not counted without cuobjdump")
    else:
        plugin = os.path.abspath(plugin)
        text = tool(cuobjdump, "-sass", plugin)
        code = instructions(text)
        kernels = collections.Counter((arch, kernel_of(symbol)) for arch, symbol in code)
        judge("", kernels, sorted({arch for arch, _ in code}), list(problems(code)), stacks(plugin, cuobjdump),
              exact_ptx(tool(cuobjdump, "-ptx", plugin)),
              list(budgets(plugin, cuobjdump, text)) if any(arch == BUDGET_ARCH for arch, _ in code)
              else f"the plugin has no code for {BUDGET_ARCH}")


if __name__ == "__main__":
    main()
