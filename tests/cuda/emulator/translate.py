#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PTX to C++: translate.py KERNELS.ptx OUT.cpp. A kernel becomes a function of one thread that emulator.cpp runs.

A register is a member of a struct, so that a thread can wait at a barrier: the function returns, and is entered again
behind it. What an instruction means is in the methods below that bear its name; emulator.h has the arithmetic.
"""
import pathlib
import re
import sys

import ptx

C = {"s8": "int8_t", "s16": "int16_t", "s32": "int32_t", "s64": "int64_t", "u8": "uint8_t", "u16": "uint16_t",
     "u32": "uint32_t", "u64": "uint64_t", "b8": "uint8_t", "b16": "uint16_t", "b32": "uint32_t", "b64": "uint64_t",
     "f32": "float", "f64": "double", "pred": "bool"}
SPECIAL = {"%tid.x": "t.thread", "%ctaid.x": "t.block->index", "%nctaid.x": "t.block->grid->blocks",
           "%ntid.x": "t.block->grid->threads", "WARP_SZ": "32"}
COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "lo": "<", "ls": "<=", "hi": ">",
           "hs": ">="}
# Of these the value with a NaN is true: the ordered comparison, negated.
UNORDERED = {"equ": "!(x < y || x > y)", "neu": "!(x == y)", "ltu": "!(x >= y)", "leu": "!(x > y)", "gtu": "!(x <= y)",
             "geu": "!(x < y)", "nan": "x != x || y != y", "num": "x == x && y == y", "ne": "x < y || x > y"}


class Translator:
    def __init__(self, function, functions):
        self.function, self.functions = function, functions
        self.offsets = {name: offset for name, offset, _ in function.parameters}
        self.n_barriers = 0

    # ---- operands

    def value(self, operand, kind):
        """An operand as a value of a PTX type."""
        if operand in SPECIAL:
            return f"as<{C[kind]}>({SPECIAL[operand]})"
        if operand in self.function.registers:
            return f"as<{C[kind]}>({self.register(operand)})"
        if operand.startswith("0f"):
            return f"of_bits<float>(0x{operand[2:]}u)"
        if operand.startswith("0d"):
            return f"of_bits<double>(0x{operand[2:]}ull)"
        if re.fullmatch(r"-?\d+", operand):
            if operand == "-9223372036854775808":
                return f"as<{C[kind]}>(0x8000000000000000ull)"
            return f"as<{C[kind]}>({operand}{'ull' if int(operand) > 2**63 - 1 else 'll'})"
        if operand in self.function.shared:
            return f"as<{C[kind]}>({self.function.shared[operand]})"
        if operand in self.offsets:
            return f"as<{C[kind]}>((uint64_t)(parameters + {self.offsets[operand]}))"
        raise ptx.Unknown(f"operand {operand}")

    def register(self, name):
        return "r." + re.sub(r"\W", "", name)

    def set(self, operand, value):
        kind = self.function.registers[operand]
        return f"{self.register(operand)} = as<{C[kind]}>({value});"

    def address(self, operand):
        base, offset = re.fullmatch(r"\[\s*([%\w$]+)\s*(?:\+\s*(-?\d+))?\s*\]", operand).groups()
        offset = int(offset or 0)
        if base in self.function.registers:
            wide = "u64" if self.function.registers[base] == "b64" else "u32"
            return f"as<uint64_t>({self.value(base, wide)}) + {offset}ll"
        if base in self.offsets:
            return f"(uint64_t)(parameters + {self.offsets[base] + offset})"
        if base in self.function.frame:
            return f"(uint64_t)(r.{base} + {offset})"
        if base == self.function.result:
            return f"(uint64_t)(result + {offset})"
        return f"{self.function.shared[base] + offset}ull"

    @staticmethod
    def vector(operand):
        return ptx.operands_of(operand[1:-1]) if operand.startswith("{") else [operand]

    # ---- instructions

    def statement(self, instruction):
        words = instruction.opcode.replace("::", ".").split(".")
        method = getattr(self, "op_" + words[0], None)
        text = method(words[1:], *instruction.operands) if method else None
        if text is None:
            raise ptx.Unknown(f"{instruction.opcode} {', '.join(instruction.operands)}: teach it to translate.py")
        if not instruction.guard:
            return text
        return f"if ({'!' * (instruction.guard[0] == '!')}{self.register(instruction.guard.lstrip('!'))}) {{ {text} }}"

    def op_bra(self, words, label):
        return f"goto {label.replace('$', '')};"

    def op_ret(self, words):
        return "return ENDED;"

    op_exit = op_ret

    def wait(self, before, after):
        self.n_barriers += 1
        return f"{before}r.at = {self.n_barriers}; return WAITS; case {self.n_barriers}: {after};"

    def op_bar(self, words, *operands):
        if words in (["sync"], ["warp", "sync"]):  # of a warp: the whole block waits, and so may more than there
            return self.wait("", "")
        if words == ["red", "or", "pred"]:
            return self.wait(f"t.block->any_next |= {self.value(operands[2], 'pred')}; ",
                             self.set(operands[0], "t.block->any"))
        return None

    op_barrier = op_bar

    def op_membar(self, words):
        return ";"

    op_fence = op_membar

    def op_call(self, words, *operands):
        results = self.vector(operands[0].replace("(", "{").replace(")", "}"))
        given = ptx.operands_of(operands[2].strip("() \n"))
        callee = self.functions[operands[1]]
        copies = "".join(f"memcpy(a + {offset}, r.{name}, {size}); "
                         for name, (_, offset, size) in zip(given, callee.parameters))
        return (f"{{ unsigned char a[{callee.parameter_bytes}]; {copies}"
                f"(void)call_{callee.name}(t, a, r.{results[0]}); }}")

    def op_cvta(self, words, to, source):
        return self.set(to, self.value(source, words[-1]))

    def op_mov(self, words, to, source):
        kind = words[-1]
        if to.startswith("{"):
            parts = self.vector(to)
            part = f"b{ptx.width(kind) * 8 // len(parts)}"
            return f"{{ const {C[kind]} x = {self.value(source, kind)}; " + " ".join(
                self.set(name, f"as<{C[part]}>(x >> {i * ptx.width(part) * 8})") for i, name in enumerate(parts)) + " }"
        if source.startswith("{"):
            parts = self.vector(source)
            part = f"b{ptx.width(kind) * 8 // len(parts)}"
            return self.set(to, f"as<{C[kind]}>(" + " | ".join(
                f"as<uint64_t>({self.value(name, part)}) << {i * ptx.width(part) * 8}"
                for i, name in enumerate(parts)) + ")")
        return self.set(to, self.value(source, kind))

    def memory(self, words, operand, count, how):
        kind, space = words[-1], words[0]
        address = self.address(operand)
        if space in ("global", "shared"):
            return f"t.{how}_{space}({address}, {count * ptx.width(kind)})"
        if space == "param":
            return f"(unsigned char *)({address})"
        raise ptx.Unknown(f"memory of the space {space}")

    def op_ld(self, words, to, source):
        words = [word for word in words if word not in ("volatile", "relaxed", "acquire", "gpu", "nc")]
        names, kind = self.vector(to), words[-1]
        return f"{{ const unsigned char *m = {self.memory(words, source, len(names), 'read')}; " + " ".join(
            self.set(name, f"load<{C[kind]}>(m + {i * ptx.width(kind)})") for i, name in enumerate(names)) + " }"

    def op_st(self, words, to, source):
        words = [word for word in words if word not in ("volatile", "relaxed", "release", "gpu")]
        names, kind = self.vector(source), words[-1]
        return f"{{ unsigned char *m = {self.memory(words, to, len(names), 'write')}; " + " ".join(
            f"store<{C[kind]}>(m + {i * ptx.width(kind)}, {self.value(name, kind)});"
            for i, name in enumerate(names)) + " }"

    def op_atom(self, words, to, address, *given):
        words = [word for word in words if word not in ("relaxed", "gpu", "cta")]
        space, what, kind = words[0], words[1], words[-1]
        becomes = {"add": "as<T>(old + x)", "min": "old < x ? old : x", "max": "old > x ? old : x",
                   "or": "as<T>(old | x)", "and": "as<T>(old & x)", "exch": "x", "inc": "old >= x ? 0 : as<T>(old + 1)",
                   "cas": "old == x ? y : old"}[what]
        text = (f"{{ using T = {C[kind]}; unsigned char *m = t.update_{space}({self.address(address)}, sizeof(T)); "
                f"const T old = load<T>(m), x = {self.value(given[0], kind)}")
        if len(given) > 1:
            text += f", y = {self.value(given[1], kind)}"
        return f"{text}; store<T>(m, {becomes}); {self.set(to, 'old') if to else ''} }}"

    def op_red(self, words, address, *given):
        return self.op_atom(words, "", address, *given)

    def op_setp(self, words, to, a, b):
        kind, how = words[-1], words[0]
        how = UNORDERED[how] if kind[0] == "f" and how in UNORDERED else f"x {COMPARE[how]} y"
        return f"{{ const {C[kind]} x = {self.value(a, kind)}, y = {self.value(b, kind)}; {self.set(to, how)} }}"

    def op_selp(self, words, to, a, b, chosen):
        kind = words[-1]
        return self.set(to, f"{self.value(chosen, 'pred')} ? {self.value(a, kind)} : {self.value(b, kind)}")

    def infix(self, sign, words, to, a, b):
        kind = words[-1].replace("s", "u")  # two's complement, and no overflow
        value = f"{self.value(a, kind)} {sign} {self.value(b, kind)}"
        return self.set(to, f"canonical({value})" if kind[0] == "f" else f"as<{C[kind]}>({value})")

    def op_add(self, words, *operands):
        return self.infix("+", words, *operands)

    def op_sub(self, words, *operands):
        return self.infix("-", words, *operands)

    def op_and(self, words, *operands):
        return self.infix("&", words, *operands)

    def op_or(self, words, *operands):
        return self.infix("|", words, *operands)

    def op_xor(self, words, *operands):
        return self.infix("^", words, *operands)

    def op_not(self, words, to, a):
        return self.set(to, f"{'!' if words[-1] == 'pred' else '~'}{self.value(a, words[-1])}")

    def wide(self, kind):
        return kind[0] + str(ptx.width(kind) * 16)

    def op_mul(self, words, to, a, b):
        kind = words[-1]
        if words[0] == "wide":
            wide = C[self.wide(kind)]
            return self.set(to, f"({wide}){self.value(a, kind)} * ({wide}){self.value(b, kind)}")
        if words[0] == "hi":
            return self.set(to, f"high({self.value(a, kind)}, {self.value(b, kind)})")
        if words[0] == "lo":
            return self.set(to, f"as<uint64_t>({self.value(a, kind)}) * as<uint64_t>({self.value(b, kind)})")
        return self.infix("*", words, to, a, b)

    def op_mad(self, words, to, a, b, c):
        kind = words[-1]
        if words[0] == "wide":
            wide = self.wide(kind)
            return self.set(to, f"as<uint64_t>(({C[wide]}){self.value(a, kind)} * ({C[wide]}){self.value(b, kind)}) + "
                                f"as<uint64_t>({self.value(c, wide)})")
        if words[0] != "lo":
            return None
        return self.set(to, f"as<uint64_t>({self.value(a, kind)}) * as<uint64_t>({self.value(b, kind)}) + "
                            f"as<uint64_t>({self.value(c, kind)})")

    def op_fma(self, words, to, *operands):
        down = "_down" if words[0] == "rm" else ""
        return self.set(to, f"canonical(multiply_add{down}({', '.join(self.value(x, words[-1]) for x in operands)}))")

    def call(self, name, words, to, *operands):
        return self.set(to, f"{name}({', '.join(self.value(x, words[-1]) for x in operands)})")

    def op_div(self, words, to, a, b):
        kind = words[-1]
        if kind[0] == "f":
            return self.infix("/", words, to, a, b)
        return self.call("quotient", words, to, a, b)

    def op_rem(self, words, *operands):
        return self.call("remainder_of", words, *operands)

    def extreme(self, name, words, to, *operands):
        if words[0] == "NaN":
            name += "_or_nan"
        if words[-1] not in ("f16x2", "bf16x2"):
            return self.call(name, words[-1:], to, *operands)
        x, y = (self.value(operand, "b32") for operand in operands)
        return self.set(to, f"of_halves(({x}), ({y}), {words[-1][:-2]}_to_float, float_to_{words[-1][:-2]}, "
                            f"{name}<float>)")

    def op_min(self, words, *operands):
        return self.extreme("least", words, *operands)

    def op_max(self, words, *operands):
        return self.extreme("largest", words, *operands)

    def op_shl(self, words, to, a, by):
        return self.set(to, f"shift_left({self.value(a, words[-1])}, {self.value(by, 'u32')})")

    def op_shr(self, words, to, a, by):
        return self.set(to, f"shift_right({self.value(a, words[-1].replace('b', 'u'))}, {self.value(by, 'u32')})")

    def op_bfi(self, words, to, a, b, at, length):
        kind = words[-1]
        return self.set(to, f"insert({self.value(a, kind)}, {self.value(b, kind)}, {self.value(at, 'u32')}, "
                            f"{self.value(length, 'u32')})")

    def op_prmt(self, words, to, a, b, selector):
        return self.set(to, f"permute({self.value(a, 'b32')}, {self.value(b, 'b32')}, {self.value(selector, 'b32')})")

    def op_popc(self, words, to, a):
        return self.set(to, f"(uint32_t)__builtin_popcountll({self.value(a, words[-1])})")

    def op_clz(self, words, to, a):
        return self.set(to, f"leading_zeros({self.value(a, words[-1])})")

    def op_neg(self, words, to, a):
        kind = words[-1]
        return self.set(to, f"-{self.value(a, kind)}" if kind[0] == "f"
                        else f"0 - {self.value(a, kind.replace('s', 'u'))}")

    def op_abs(self, words, *operands):
        return self.call("magnitude", words, *operands)

    def op_copysign(self, words, to, sign, value):
        return self.set(to, f"std::copysign({self.value(value, words[-1])}, {self.value(sign, words[-1])})")

    def op_sqrt(self, words, to, a):
        return self.set(to, f"canonical(std::sqrt({self.value(a, words[-1])}))")

    def approximate(self, name, words, to, a):
        flush = "flushed" if "ftz" in words else ""
        return self.set(to, f"{flush}({name}({flush}({self.value(a, words[-1])})))")

    def op_rcp(self, words, to, a):
        if words[0] == "rn":
            return self.set(to, f"canonical(1 / {self.value(a, words[-1])})")
        return self.approximate("inverse", words, to, a)

    def op_ex2(self, words, to, a):
        return self.approximate("exponential", words, to, a)

    def op_lg2(self, words, to, a):
        return self.approximate("logarithm", words, to, a)

    def op_cvt(self, words, to, *sources):
        kinds = [word for word in words if re.fullmatch(r"[subf]\d+|b?f16x?2?|f16", word)]
        target, source = kinds[-2:]
        value = [self.value(x, "b16" if source in ("f16", "bf16") else source) for x in sources]
        if source in ("f16", "bf16"):
            return self.set(to, f"{source}_to_float({value[0]})") if target == "f32" else None
        if target in ("f16x2", "bf16x2"):
            one = f"float_to_{target[:-2]}"
            return self.set(to, f"(uint32_t){one}({value[0]}) << 16 | {one}({value[1]})")
        if target in ("f16", "bf16"):
            return self.set(to, f"float_to_{target}({value[0]})")
        if target[0] != "f":
            return self.set(to, f"to_integer<{C[target]}>({value[0]})" if source[0] == "f"
                            else f"as<{C[target]}>({value[0]})")
        value = value[0]
        if source[0] == "f":
            value = f"saturated({value})" if "sat" in words else f"std::trunc({value})" if "rzi" in words else value
            value = f"std::nearbyint({value})" if "rni" in words else value
            return self.set(to, f"canonical(({C[target]}){value})")
        return self.set(to, f"({C[target]}){value}")

    # ---- functions

    def text(self):
        function = self.function
        name = re.sub(r"\W", "", function.name)
        lines = [f"struct registers_{name} {{", "    int at;"]
        kinds = {}
        for register, kind in function.registers.items():
            kinds.setdefault(kind, []).append(re.sub(r"\W", "", register))
        lines += [f"    {C[kind]} {', '.join(names)};" for kind, names in kinds.items()]
        lines += [f"    unsigned char {frame}[{size}];" for frame, size in function.frame.items()] + ["};"]
        waits = function.has_barriers()
        arguments = "unsigned char *parameters" + ("" if function.is_entry else ", unsigned char *result")
        if function.is_entry:
            lines += [f"static State call_{name}(Thread &t, void *registers) {{",
                      "    unsigned char *const parameters = t.block->grid->parameters; (void)parameters;"]
            own = f"*static_cast<registers_{name} *>(registers)" if waits else ""
        else:
            if waits:
                raise ptx.Unknown(f"a barrier in {function.name}, which is called")
            lines.append(f"static State call_{name}(Thread &t, {arguments}) {{")
            own = ""
        lines.append(f"    registers_{name} &r = {own};" if own else f"    registers_{name} r; (void)t;")
        body = [(item, f"{item.replace('$', '')}: ;") if isinstance(item, str) else (item, self.at(item))
                for item in function.body]
        lines += ["    switch (r.at) {", "    case 0: ;"] if waits else []
        lines += ["    " + text for _, text in body] + (["    }"] if waits else []) + ["    return ENDED;", "}"]
        return "\n".join(lines)

    def at(self, instruction):
        try:
            return self.statement(instruction)
        except ptx.Unknown as unknown:
            raise ptx.Unknown(f"line {instruction.line}, {self.function.name}: {unknown}") from None


def translate(path):
    functions = ptx.read(path)
    by_name = {function.name: function for function in functions}
    lines = ['#include "emulator.h"', "namespace {", "using namespace emulator;"]
    lines += [Translator(function, by_name).text() for function in functions]
    lines += ["const Parameter no_parameters[] = {{0, 0}};", ""]
    rows = []
    for function in functions:
        if function.is_entry:
            name = re.sub(r"\W", "", function.name)
            parts = ", ".join(f"{{{offset}, {size}}}" for _, offset, size in function.parameters)
            lines.append(f"const Parameter parameters_{name}[] = {{{parts}}};")
            registers = f"sizeof(registers_{name})" if function.has_barriers() else "0"
            rows.append(f'    {{"{function.name}", call_{name}, {registers}, parameters_{name}, '
                        f"{len(function.parameters)}, "
                        f"{function.parameter_bytes}, {function.shared_bytes}}},")
    lines += ["const Kernel kernels[] = {", *rows, "};",
              "const Registered registered(kernels, sizeof kernels / sizeof *kernels);", "}"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    try:
        pathlib.Path(sys.argv[2]).write_text(translate(pathlib.Path(sys.argv[1])), encoding="utf-8")
    except ptx.Unknown as unknown:
        sys.exit(f"{sys.argv[1]}: {unknown}")
