#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes C functions of random signatures, each with its schema and a caller: gen_signatures.py OUT.c [COUNT [SEED]]

A function notes every byte it receives (see(), signatures.h), spoils its copies of structs and returns a constant; its
caller calls it, or whatever stands in its slot, with constants of that signature, and checks that its structs are as
before. The same seed gives the same file.
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
          "fn": "void *", "const char *": "const char *", "float *": "float *", "Tensor": "void *", "Tensor?": "void *"}
OUT_PARAMETERS = {"Tensor(out a!)*": "void **", "Tensor(out a!)*?": "void **", "Tensor(out a!)[3]": "void **"}
BUFFERS = {"float": "float *", "float(a!)": "float *", "double(out a!)": "double *", "half": "uint16_t *",
           "bfloat16(keep)?": "uint16_t *", "int32": "int32_t *", "const float": "const float *"}
VECTOR = ["float", "double"]
TYPES = list(INTEGERS) + list(OTHERS)
RETURNS = ["void"] + TYPES
FLOATS = [0x00000000, 0x80000000, 0x00000001, 0x7f7fffff, 0xff800000, 0x7fc00000, 0x7fc12345, 0xffabcdef, 0x7f812345]
DOUBLES = [0, 1 << 63, 1, 0x7fefffffffffffff, 0xfff0000000000000, 0x7ff8000000000000, 0x7ff8123456789abc,
           0xfff7fedcba987654]
# member: (C type, bytes); alignment is the same. What decides the registers of a struct.
MEMBERS = {"float": ("float", 4), "double": ("double", 8), "int8": ("int8_t", 1), "uint16": ("uint16_t", 2),
           "int": ("int", 4), "int64": ("int64_t", 8), "pointer": ("void *", 8), "char *": ("char *", 8)}
STRUCTS = 400


def round_up(size, alignment):
    return (size + alignment - 1) // alignment * alignment


class Struct:
    """members: [(schema type, C declaration, place in the struct as a designator)]"""

    def __init__(self, rng, index):
        self.name = f"s{index}"
        self.given = []  # for the descriptor
        self.leaves = []  # designators of what is compared: all but the padding
        if index % 8 >= 6:  # large: bytes, nothing told
            size = {6: 1184, 7: 4096, 14: 65, 15: 72}.get(index, rng.randint(65, 4096))
            unit, bytes_ = rng.choice([("unsigned char", 1), ("float", 4), ("double", 8)])
            self.members = None
            self.body = f"{unit} m[{(size + bytes_ - 1) // bytes_}];"
            self.leaves = ["m"]
            return
        limit = index * 37 // 8 % 64 + 1  # the largest size: small ones as often as those that just fit
        self.unpadded = 0
        self.kinds = [kind for kind in MEMBERS if index % 2 == 0 or limit % MEMBERS[kind][1] == 0]
        self.body, _, alignment, _ = self.fill(rng, limit, "", 0)
        rest = limit - self.unpadded
        if rest and limit % alignment == 0 and (not self.given or index % 2):  # every size from 1 to 64
            self.body += f"int8_t rest[{rest}];"
            self.given.append(f"int8[{rest}]")
            self.leaves.append("rest")
        self.members = ", ".join(self.given)

    def fill(self, rng, limit, prefix, depth):
        """(C text, size, alignment) of members that take at most `limit` bytes; notes leaves and, at depth 0, types."""
        text, size, alignment, given, count = "", 0, 1, [], 0
        few = rng.random() < 0.5  # all of one or two kinds: structs that fill registers of one class
        kinds = rng.sample(self.kinds, rng.randint(1, min(2, len(self.kinds)))) if few else self.kinds
        for _ in range(rng.randint(1, 20)):
            name = f"m{count}"
            if depth < 3 and rng.random() < 0.15:
                leaves_before = len(self.leaves)
                inner, inner_size, inner_alignment, inner_given = self.fill(rng, limit // 2, prefix + name + ".",
                                                                            depth + 1)
                total = round_up(round_up(size, inner_alignment) + inner_size, max(alignment, inner_alignment))
                if not inner or total > limit:
                    del self.leaves[leaves_before:]
                    continue
                text += f"struct {{ {inner} }} {name}; "
                given.append("{" + ", ".join(inner_given) + "}")
                size = round_up(size, inner_alignment) + inner_size
                alignment = max(alignment, inner_alignment)
            else:
                kind = rng.choice(kinds)
                c_name, bytes_ = MEMBERS[kind]
                length = rng.randint(2, 4) if rng.random() < 0.2 else 1
                if round_up(round_up(size, bytes_) + bytes_ * length, max(alignment, bytes_)) > limit:
                    continue
                text += f"{c_name} {name}{f'[{length}]' if length > 1 else ''}; "
                given.append(kind + (f"[{length}]" if length > 1 else rng.choice(["", f" {name}"])))
                size = round_up(size, bytes_) + bytes_ * length
                alignment = max(alignment, bytes_)
                self.leaves.append(prefix + name)
            count += 1
        if depth == 0:
            self.given, self.unpadded = given, size
        return text, round_up(size, alignment), alignment, given

    def write(self, out):
        out.write(f"\nstruct {self.name} {{ {self.body} }};\n")
        out.write(f"static __attribute__((unused)) void bytes_{self.name}(const struct {self.name} *x, "
                  "unsigned char *bytes) {\n"
                  "    memset(bytes, 0, sizeof *x);\n")
        for leaf in self.leaves:
            out.write(f"    memcpy(bytes + offsetof(struct {self.name}, {leaf}), &x->{leaf}, sizeof x->{leaf});\n")
        out.write("}\n")

    def row(self):
        members = f"\"{self.members}\"" if self.members else "NULL"
        return (f"    {{ sizeof(amp_struct), 0, \"{self.name}\", sizeof(struct {self.name}), "
                f"_Alignof(struct {self.name}), 0, {members} }},\n")


class Argument:
    """kind: schema type; text: in the schema; given: C expression (None: a local variable of its name)."""

    def __init__(self, kind, name, given=None, length=None, text=None, c_name=None, struct=None, seed=0):
        self.kind, self.name, self.given, self.length, self.struct, self.seed = kind, name, given, length, struct, seed
        self.text = text or f"{kind} {name}"
        self.c_name = c_name or c_type(kind)


def c_type(kind):
    if kind.startswith("struct "):
        return kind
    if kind in OUT_PARAMETERS:
        return OUT_PARAMETERS[kind]
    return "void **" if kind == "Tensor[]" else INTEGERS[kind][0] if kind in INTEGERS else OTHERS[kind]


def pointer(rng, c_name="void *"):
    return f"({c_name})(uintptr_t)UINT64_C(0x{rng.getrandbits(47) & ~7:012x})"


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
    if kind in ("Tensor?", "Tensor(out a!)*?") and rng.random() < 0.5:
        return "NULL"
    return pointer(rng, c_type(kind))


def extents(rng, names):
    """The inside of the brackets; libamp reads it and a wrapped identity must not care."""
    if rng.random() < 0.1:
        return "?"
    operands = names + ["1", "7", "64"]
    dims = [rng.choice(["{a}", "{a}*{b}", "({a} + {b}) / 2", "{a} ? {b} : 3", "!{a} && {b} < 9", "-{a} % 5"])
            .format(a=rng.choice(operands), b=rng.choice(operands)) for _ in range(rng.randint(1, 4))]
    stride = f" : {rng.choice(operands)}" if len(dims) > 1 and rng.random() < 0.3 else ""
    return ", ".join(dims) + stride


def arguments(rng, wanted, structs):
    found, buffers, large = [], [], 0
    while len(found) < wanted:
        name, chance = f"a{len(found)}", rng.random()
        if chance < 0.1 and len(found) + 2 <= wanted:
            length = rng.randint(0, 9)
            counter = rng.choice(list(INTEGERS))
            found.append(Argument("Tensor[]", name, length=length))
            found.append(Argument(counter, "n_" + name, f"({INTEGERS[counter][0]}){length}"))
        elif chance < 0.2:
            element = rng.choice(list(BUFFERS))
            found.append(Argument(element, name, pointer(rng, BUFFERS[element]), c_name=BUFFERS[element]))
            buffers.append(found[-1])
        elif chance < 0.35:
            struct = rng.choice(structs)
            if not struct.members:
                large += 1
                if large > 3:
                    continue
            found.append(Argument(f"struct {struct.name}", name, struct=struct, seed=rng.getrandbits(63)))
        elif chance < 0.4:
            kind = f"struct {rng.choice(structs).name} *"
            found.append(Argument(kind, name, pointer(rng, kind), text=rng.choice(["", "const "]) + f"{kind}{name}"))
        else:
            kind = rng.choice(list(OUT_PARAMETERS) if chance < 0.43 else TYPES)
            found.append(Argument(kind, name, value(rng, kind)))
    integers = [a.name for a in found if a.kind in INTEGERS and a not in buffers]
    for argument in buffers:  # names of arguments before and behind
        argument.text = f"{argument.kind} {argument.name}[{extents(rng, integers)}]"
    return found


def in_registers(rng):
    """As many as there are registers on x86-64, or on arm64, or one more; in any order."""
    kinds = [rng.choice([kind for kind in TYPES if kind not in VECTOR])
             for _ in range(rng.choice([0, 1, 2, 5, 6, 6, 7, 8, 9]))]
    kinds += [rng.choice(VECTOR) for _ in range(rng.choice([0, 0, 0, 1, 2, 7, 8, 8, 9]))]
    rng.shuffle(kinds)
    return [Argument(kind, f"a{i}", value(rng, kind)) for i, kind in enumerate(kinds)]


def last_register(rng, structs):
    """One general register of x86-64 is left for a struct of two halves (libffi before 3.4.7:
    src/intercept/split.c)."""
    kinds = [rng.choice([kind for kind in TYPES if kind not in VECTOR]) for _ in range(5)]
    kinds += [rng.choice(VECTOR) for _ in range(rng.randint(0, 8))]
    rng.shuffle(kinds)
    kinds += [rng.choice([s for s in structs if s.members and 8 < s.unpadded <= 16])]
    kinds += [rng.choice(TYPES) for _ in range(rng.randint(0, 3))]
    return [Argument(kind, f"a{i}", value(rng, kind)) if isinstance(kind, str) else
            Argument(f"struct {kind.name}", f"a{i}", struct=kind, seed=rng.getrandbits(63))
            for i, kind in enumerate(kinds)]


def write_function(out, index, rng, args, returns, returns_c, struct, parameters):
    out.write(f"\nstatic {returns_c} function{index}({parameters}) {{\n")
    for a in args:
        if a.struct:
            out.write(f"    unsigned char b_{a.name}[sizeof {a.name}];\n"
                      f"    bytes_{a.struct.name}(&{a.name}, b_{a.name});\n"
                      f"    see(b_{a.name}, sizeof b_{a.name});\n    spoil(&{a.name}, sizeof {a.name});\n")
            continue
        if a.kind in INTEGERS and a.c_name == INTEGERS[a.kind][0]:
            # clang reads the register beyond a narrow argument, which the caller has extended
            out.write(f"    see(&(int64_t){{ (int64_t){a.name} }}, 8);\n")
        out.write(f"    see(&{a.name}, sizeof {a.name});\n")
        if a.kind == "Tensor[]":
            out.write(f"    see({a.name}, (size_t)n_{a.name} * sizeof *{a.name});\n")
    if struct:
        out.write(f"    struct {struct.name} result;\n    fill(&result, sizeof result, {rng.getrandbits(63)}u);\n"
                  "    return result;\n")
    elif returns != "void":
        out.write(f"    return {value(rng, returns)};\n")
    out.write("}\n")


def write_caller(out, index, rng, args, returns_c, struct, parameters):
    out.write(f"\nstatic void call{index}(amp_fn slot, struct record *result) {{\n")
    for a in args:
        if a.kind == "Tensor[]":
            handles = ", ".join(value(rng, "Tensor") for _ in range(a.length)) or "NULL"
            out.write(f"    void *{a.name}[] = {{ {handles} }};\n")
        elif a.struct:
            out.write(f"    struct {a.struct.name} {a.name};\n    fill(&{a.name}, sizeof {a.name}, {a.seed}u);\n")
    given = ", ".join(a.given or a.name for a in args)
    call = f"(({returns_c} (*)({parameters}))slot)({given})"
    if returns_c == "void":
        out.write(f"    {call};\n    (void)result;\n")
    elif struct:
        out.write(f"    const {returns_c} x = {call};\n    unsigned char bytes[sizeof x];\n"
                  f"    bytes_{struct.name}(&x, bytes);\n    record(result, bytes, sizeof bytes);\n")
    else:
        out.write(f"    {returns_c} x = {call};\n    record(result, &x, sizeof x);\n")
    for a in args:
        if a.struct:
            out.write(f"    intact(&{a.name}, sizeof {a.name}, {a.seed}u);\n")
    out.write("}\n")


def write(out, index, rng, structs):
    wanted = rng.randint(20, 64) if index % 8 == 6 else rng.randint(0, 12)
    args, returns, struct = arguments(rng, wanted, structs), RETURNS[index % len(RETURNS)], None
    if index % 4 == 3:
        args, returns = in_registers(rng), RETURNS[index // 4 % len(RETURNS)]
    elif index % 8 == 5:
        args = last_register(rng, structs)
    elif index % 3 == 1:
        struct = structs[index // 3 % len(structs)]
        returns = f"struct {struct.name}"
    returns_c = "void" if returns == "void" else c_type(returns)
    parameters = ", ".join(f"{a.c_name} {a.name}" for a in args) or "void"
    write_function(out, index, rng, args, returns, returns_c, struct, parameters)
    write_caller(out, index, rng, args, returns_c, struct, parameters)
    return f"f{index}(" + ", ".join(a.text for a in args) + f") -> {returns}"


def main():
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 20250501
    rng = random.Random(seed)
    with open(sys.argv[1], "w") as out:
        out.write(f"/* Made by gen_signatures.py, seed {seed}. Do not edit. */\n#include \"signatures.h\"\n")
        structs = [Struct(rng, index) for index in range(STRUCTS)]
        for struct in structs:
            struct.write(out)
        schemas = [write(out, index, rng, structs) for index in range(count)]
        out.write("\nconst amp_struct signature_structs[] = {\n")
        for struct in structs:
            out.write(struct.row())
        out.write("};\nconst size_t n_signature_structs = sizeof signature_structs / sizeof signature_structs[0];\n")
        out.write(f"\nconst unsigned signature_seed = {seed};\nconst struct signature signatures[] = {{\n")
        for index, schema in enumerate(schemas):
            out.write(f"    {{ \"{schema}\", (amp_fn)function{index}, call{index} }},\n")
        out.write("};\nconst size_t n_signatures = sizeof signatures / sizeof signatures[0];\n")


main()
