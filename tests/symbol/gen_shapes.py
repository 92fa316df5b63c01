#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a C program that calls functions of random signatures directly and through a trampoline of amp_symbol.h, and
compares what arrived and what came back: gen_shapes.py OUT.c COUNT SEED WIDEST_VECTOR. The same arguments give the same
file; the program prints what differed and returns 1, or prints how many agreed."""
import random
import sys

SCALARS = ["char", "unsigned char", "short", "unsigned short", "int", "unsigned", "long", "unsigned long", "float",
           "float", "double", "double", "long double", "__int128", "void *", "_Bool", "float _Complex",
           "double _Complex", "long double _Complex"]
# no __int128: older clangs read one that no longer fits into registers from the wrong place
PROMOTED = ["int", "unsigned", "long", "double", "double", "long double", "void *", "double _Complex"]

HEAD = """/* Written by gen_shapes.py. */
#include <amp_symbol.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static unsigned long digest;
static void note(const void *data, unsigned long size) {
    for (unsigned long i = 0; i < size; i++) digest = (digest ^ ((const unsigned char *)data)[i]) * 1099511628211u + 1;
}
/* x86's long double has six bytes that nobody sets */
static void note_long(long double value) {
#ifdef __x86_64__
    note(&value, 10);
#else
    note(&value, sizeof value);
#endif
}
static unsigned state;
static int next(void) { return (int)((state = state * 1664525u + 1013904223u) >> 9); }
"""


class Type:
    """spelling, and what sets and notes a value of it: statements in which @ is the value."""

    def __init__(self, name, fill, note):
        self.name, self.fill, self.note = name, fill, note


def scalar(name):
    if name == "long double":
        return Type(name, "@ = next() / 7.0L;", "note_long(@);")
    if name == "long double _Complex":
        return Type(name, "@ = next() / 7.0L + next() * 1.0iL;", "note_long(__real__ @); note_long(__imag__ @);")
    if name.endswith("_Complex"):
        return Type(name, "@ = next() / 7.0 + next() * 1.0i;", "note(&@, sizeof @);")
    fill = {"void *": "@ = (void *)(unsigned long)next();", "_Bool": "@ = next() & 1;",
            "__int128": "@ = (__int128)next() << 90 | next();", "float": "@ = (float)(next() / 7.0);",
            "double": "@ = next() / 7.0;"}
    return Type(name, fill.get(name, f"@ = ({name})next();"), "note(&@, sizeof @);")


def vector(size):
    return Type(f"vector{size}", f"for (int i = 0; i < {size // 4}; i++) @[i] = (float)next();", "note(&@, sizeof @);")


class Generator:
    def __init__(self, seed, widest):
        self.random = random.Random(seed)
        self.vectors = [vector(size) for size in (16, 32, 64) if size <= widest]
        self.structs = []
        self.text = [HEAD]
        self.text += [f"typedef float {v.name} __attribute__((vector_size({v.name[6:]})));" for v in self.vectors]

    def make_struct(self):
        """Members, of few kinds as often as of many (all floats travel otherwise), or up to 4 KB of bytes."""
        name = f"struct s{len(self.structs)}"
        if self.random.random() < 0.3:
            size = self.random.choice([1, 3, 8, 16, 17, 24, 65, 1184, 4096, self.random.randint(1, 4096)])
            fill = f"for (int i = 0; i < {size}; i++) @.m0[i] = (unsigned char)next();"
            members = [(f"unsigned char m0[{size}];", Type("", fill, "note(@.m0, sizeof @.m0);"))]
        else:
            kinds = self.random.sample(SCALARS, self.random.randint(1, 2))
            members = []
            for i in range(self.random.randint(1, 5)):
                kind = scalar(self.random.choice(kinds))
                fill, note = (text.replace("@", f"@.m{i}") for text in (kind.fill, kind.note))
                members.append((f"{kind.name} m{i};", Type("", fill, note)))
        self.text.append(f"{name} {{ {' '.join(text for text, _ in members)} }};")
        self.structs.append(Type(name, " ".join(t.fill for _, t in members), " ".join(t.note for _, t in members)))
        return self.structs[-1]

    def type(self, promoted=False):
        if self.random.random() < 0.35:
            again = self.structs and self.random.random() < 0.5
            return self.random.choice(self.structs) if again else self.make_struct()
        if self.vectors and not promoted and self.random.random() < 0.15:
            return self.random.choice(self.vectors)
        return scalar(self.random.choice(PROMOTED if promoted else SCALARS))

    def function(self, number):
        fixed = [self.type() for _ in range(self.random.choice([0, 1, 2, 3, 4, 6, 9, 14, 20]))]
        variadic = [self.type(True) for _ in range(self.random.randint(1, 12))] if number % 4 == 3 else []
        if variadic:
            fixed.append(scalar("int"))  # va_start wants a type that is not promoted
        returned = None if self.random.random() < 0.15 else self.type()
        result, names = returned.name if returned else "void", [f"a{i}" for i in range(len(fixed) + len(variadic))]
        parameters = ", ".join([f"{t.name} {name}" for t, name in zip(fixed,
                                                                      names)] + ["..."] * bool(variadic)) or "void"
        body = [t.note.replace("@", name) for t, name in zip(fixed, names)]
        if variadic:
            body.append(f"va_list list; va_start(list, {names[len(fixed) - 1]});")
            body += [f"{t.name} {name} = va_arg(list, {t.name}); {t.note.replace('@', name)}"
                     for t, name in zip(variadic, names[len(fixed):])]
            body.append("va_end(list);")
        if returned:
            body.append(f"state = (unsigned)digest; {returned.name} r; {returned.fill.replace('@', 'r')} return r;")
        keep = "r = " if returned else ""
        see = returned.note.replace("@", "r") if returned else ""
        fills = " ".join(f"{t.name} {name}; {t.fill.replace('@', name)}" for t, name in zip(fixed + variadic, names))
        self.text += [
            f"{result} real_{number}({parameters}) {{ digest = digest * 3 + 1; {' '.join(body)} }}",
            f"{result} through_{number}({parameters});",
            f"AMP_SYMBOL(slot_{number}, through_{number}, real_{number});",
            f"static int test_{number}(void) {{",
            f"    state = {number}; {fills} {result + ' r;' if returned else ''} digest = 0;",
            f"    {keep}real_{number}({', '.join(names)}); {see} const unsigned long direct = digest; digest = 0;",
            f"    {keep}through_{number}({', '.join(names)}); {see}",
            f"    if (digest != direct) printf(\"{result} f({parameters}) with {len(variadic)} more differs\\n\");",
            "    return digest != direct; }",
        ]


def main():
    out, count, seed, widest = sys.argv[1], *map(int, sys.argv[2:5])
    generator = Generator(seed, widest)
    for number in range(count):
        generator.function(number)
    calls = " ".join(f"failed += test_{number}();" for number in range(count))
    generator.text.append(f"int main(void) {{ int failed = 0; {calls}\n"
                          f"    if (!failed) printf(\"{count} agreed\\n\");\n    return failed != 0; }}")
    with open(out, "w", encoding="utf-8") as file:
        file.write("\n".join(generator.text) + "\n")


if __name__ == "__main__":
    main()
