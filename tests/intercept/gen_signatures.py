#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes C functions of random signatures, each with its schema and a caller: gen_signatures.py OUT.c [COUNT [SEED]]

A function notes every byte it receives (see(), signatures.h) and returns a constant; its caller calls it, or whatever
stands in its slot, with constants of that signature. The same seed gives the same file.
"""
import random
import sys

# schema type: (C type, bits, signed) for integers; other types are handled by name.
INTEGERS = {
    "int8": ("int8_t", 8, True), "uint8": ("uint8_t", 8, False),
    "int16": ("int16_t", 16, True), "uint16": ("uint16_t", 16, False),
    "int32": ("int32_t", 32, True), "uint32": ("uint32_t", 32, False),
    "int64": ("int64_t", 64, True), "uint64": ("uint64_t", 64, False),
    "short": ("short", 16, True), "unsigned short": ("unsigned short", 16, False),
    "int": ("int", 32, True), "unsigned": ("unsigned", 32, False),
    "long": ("long", 32, True), "unsigned long": ("unsigned long", 32, False),  # 32 bits of value fit everywhere
    "size_t": ("size_t", 32, False),
}
OTHERS = {"char": "char", "bool": "_Bool", "float": "float", "double": "double", "pointer": "void *",
          "Tensor": "void *", "Tensor?": "void *"}
TYPES = list(INTEGERS) + list(OTHERS)
RETURNS = ["void"] + TYPES
FLOATS = [0x00000000, 0x80000000, 0x00000001, 0x7f7fffff, 0xff800000, 0x7fc00000, 0x7fc12345, 0xffabcdef, 0x7f812345]
DOUBLES = [0, 1 << 63, 1, 0x7fefffffffffffff, 0xfff0000000000000, 0x7ff8000000000000, 0x7ff8123456789abc,
           0xfff7fedcba987654]


def c_type(kind):
    return "void **" if kind == "Tensor[]" else INTEGERS[kind][0] if kind in INTEGERS else OTHERS[kind]


def value(rng, kind):
    """A C expression of the type: the ends of its range as often as something in between."""
    if kind in INTEGERS:
        name, bits, signed = INTEGERS[kind]
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        number = rng.choice([low, high, 0, -1 if signed else 1, rng.randint(low, high), rng.randint(low, high)])
        return f"({name})INT64_MIN" if number == -(1 << 63) else f"({name}){number}{'' if number < 1 << 63 else 'u'}"
    if kind == "char":
        return f"(char){rng.randint(-128, 127)}"
    if kind == "bool":
        return rng.choice(["(_Bool)0", "(_Bool)1"])
    if kind == "float":
        return f"float_of(0x{rng.choice(FLOATS + [rng.getrandbits(32)]):08x}u)"
    if kind == "double":
        return f"double_of(UINT64_C(0x{rng.choice(DOUBLES + [rng.getrandbits(64)]):016x}))"
    if kind == "Tensor?" and rng.random() < 0.5:
        return "NULL"
    return f"(void *)(uintptr_t)UINT64_C(0x{rng.getrandbits(47):012x})"


def arguments(rng, wanted):
    """[(kind, name, C expression, length of the list or None)]"""
    found = []
    while len(found) < wanted:
        name = f"a{len(found)}"
        if rng.random() < 0.1 and len(found) + 2 <= wanted:
            length = rng.randint(0, 9)
            counter = rng.choice(list(INTEGERS))
            found.append(("Tensor[]", name, None, length))
            found.append((counter, "n_" + name, f"({INTEGERS[counter][0]}){length}", None))
        else:
            kind = rng.choice(TYPES)
            found.append((kind, name, value(rng, kind), None))
    return found


def write(out, index, rng):
    wanted = rng.randint(20, 64) if index % 8 == 7 else rng.randint(0, 12)
    args, returns = arguments(rng, wanted), RETURNS[index % len(RETURNS)]
    returns_c = "void" if returns == "void" else c_type(returns)
    parameters = ", ".join(f"{c_type(kind)} {name}" for kind, name, _, _ in args) or "void"
    out.write(f"\nstatic {returns_c} function{index}({parameters}) {{\n")
    for kind, name, _, _ in args:
        if kind in INTEGERS:  # clang reads the register beyond a narrow argument, which the caller has extended
            out.write(f"    see(&(int64_t){{ (int64_t){name} }}, 8);\n")
        out.write(f"    see(&{name}, sizeof {name});\n")
        if kind == "Tensor[]":
            out.write(f"    see({name}, (size_t)n_{name} * sizeof *{name});\n")
    if returns != "void":
        out.write(f"    return {value(rng, returns)};\n")
    out.write(f"}}\n\nstatic void call{index}(amp_fn slot, struct record *result) {{\n")
    for kind, name, _, length in args:
        if kind == "Tensor[]":
            handles = ", ".join(value(rng, "Tensor") for _ in range(length)) or "NULL"
            out.write(f"    void *{name}[] = {{ {handles} }};\n")
    given = ", ".join(name if kind == "Tensor[]" else text for kind, name, text, _ in args)
    call = f"(({returns_c} (*)({parameters}))slot)({given})"
    if returns == "void":
        out.write(f"    {call};\n    (void)result;\n}}\n")
    else:
        out.write(f"    const {returns_c} x = {call};\n    record(result, &x, sizeof x);\n}}\n"
                  .replace("const void * x", "void *const x"))
    return f"f{index}(" + ", ".join(f"{kind} {name}" for kind, name, _, _ in args) + f") -> {returns}"


def main():
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 300
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 20250501
    rng = random.Random(seed)
    with open(sys.argv[1], "w") as out:
        out.write(f"/* Made by gen_signatures.py, seed {seed}. Do not edit. */\n#include \"signatures.h\"\n")
        schemas = [write(out, index, rng) for index in range(count)]
        out.write(f"\nconst unsigned signature_seed = {seed};\nconst struct signature signatures[] = {{\n")
        for index, schema in enumerate(schemas):
            out.write(f"    {{ \"{schema}\", (amp_fn)function{index}, call{index} }},\n")
        out.write("};\nconst size_t n_signatures = sizeof signatures / sizeof signatures[0];\n")


main()
