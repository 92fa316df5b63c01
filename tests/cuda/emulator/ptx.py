# SPDX-License-Identifier: Apache-2.0
"""PTX as a list of instructions: what a kernel's text says, without what it means."""
import dataclasses
import re

BYTES = {"pred": 1, "8": 1, "16": 2, "32": 4, "64": 8}


def width(kind):
    """Bytes of a PTX type: f32 is 4."""
    return BYTES[kind if kind == "pred" else kind[1:]]


class Unknown(Exception):
    """What the emulator has not learned, with its place."""


@dataclasses.dataclass
class Instruction:
    opcode: str
    operands: list
    guard: str = ""       # a predicate, with ! before it where it is negated
    line: int = 0


@dataclasses.dataclass
class Function:
    """An .entry, or a .func of an entry's."""
    name: str
    is_entry: bool
    parameters: list = dataclasses.field(default_factory=list)   # (name, offset, bytes)
    result: str = ""                                             # a .func's return parameter
    registers: dict = dataclasses.field(default_factory=dict)    # name: type
    shared: dict = dataclasses.field(default_factory=dict)       # name: offset
    frame: dict = dataclasses.field(default_factory=dict)        # parameters of its calls: bytes
    body: list = dataclasses.field(default_factory=list)         # instructions, and labels as strings
    parameter_bytes: int = 0
    shared_bytes: int = 0

    def has_barriers(self):
        return any(not isinstance(item, str) and item.opcode.startswith(("bar.", "barrier.")) for item in self.body)


def _aligned(offset, alignment):
    return (offset + alignment - 1) // alignment * alignment


PARAMETER = re.compile(r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(?:\.ptr\s+)?(?:\.\w+\s+)?"
                       r"(?:\.align\s+\d+\s+)?(\w+)(?:\[(\d+)\])?")


def _parameters(function, text):
    offset = 0
    for match in PARAMETER.finditer(text):
        alignment, kind, name, count = match.groups()
        size = int(count or 1) * width(kind)
        offset = _aligned(offset, int(alignment or width(kind)))
        function.parameters.append((name, offset, size))
        offset += size
    function.parameter_bytes = offset


def operands_of(text):
    """Split at commas, but for those inside of brackets."""
    operands, depth, current = [], 0, ""
    for character in text:
        depth += (character in "{[(") - (character in "}])")
        if character == "," and not depth:
            operands.append(current.strip())
            current = ""
        else:
            current += character
    return operands + [current.strip()] if current.strip() else operands


class _Body:
    """Reads a body statement by statement; registers of an inner scope get names of their own."""

    def __init__(self, function, text, line, path):
        self.function, self.text, self.line, self.path = function, text, line, path
        self.scopes, self.n_scopes = [], 0

    def fail(self, what):
        raise Unknown(f"{self.path}:{self.line}: {what}")

    def name(self, register):
        for scope in reversed(self.scopes):
            if register in scope:
                return scope[register]
        return register

    def renamed(self, text):
        return re.sub(r"%?[A-Za-z_$][\w$]*", lambda match: self.name(match[0]), text) if self.scopes else text

    def take(self, pattern):
        match = re.compile(pattern, re.S).match(self.text)
        if match:
            self.line += self.text.count("\n", 0, match.end())
            self.text = self.text[match.end():]
        return match

    def declare(self, name):
        if not self.scopes:
            return name
        self.scopes[-1][name] = f"{name}_{self.n_scopes}"
        return self.scopes[-1][name]

    def read(self):
        while self.take(r"\s*") and self.text:
            if self.take(r"\{"):
                self.n_scopes += 1
                self.scopes.append({})
            elif self.take(r"\}"):
                self.scopes.pop()
            elif not (self.declaration() or self.label() or self.instruction()):
                self.fail(f"what is this? {self.text[:80]!r}")

    def declaration(self):
        if self.take(r"\.(?:loc|pragma)\b[^;\n]*[;\n]"):
            return True
        if match := self.take(r"\.reg\s+\.(\w+)\s+([^;]*);"):
            for name, count in re.findall(r"(%?[\w$]+)(?:<(\d+)>)?", match[2]):
                names = [f"{name}{i}" for i in range(int(count))] if count else [self.declare(name)]
                self.function.registers.update(dict.fromkeys(names, match[1]))
            return True
        if match := self.take(r"\.shared\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)(?:\[(\d+)\])?\s*;"):
            self.function.shared_bytes = _aligned(self.function.shared_bytes, int(match[1] or width(match[2])))
            self.function.shared[match[3]] = self.function.shared_bytes
            self.function.shared_bytes += width(match[2]) * int(match[4] or 1)
            return True
        if match := self.take(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+([\w$]+)(?:\[(\d+)\])?\s*;"):
            self.function.frame[self.declare(match[2])] = width(match[1]) * int(match[3] or 1)
            return True
        return False

    def label(self):
        match = self.take(r"(\$?[\w$]+):")
        if match:
            self.function.body.append(match[1])
        return match

    def instruction(self):
        line = self.line
        match = self.take(r"(?:@(!?%[\w$]+)\s+)?([a-z][\w.:]*)\s*([^;]*);")
        if match:
            guard, opcode, operands = match.groups()
            self.function.body.append(Instruction(opcode, operands_of(self.renamed(operands)),
                                                  self.renamed(guard or ""), line))
        return match


def read(path):
    """The functions of a file, those that others call first."""
    text = re.sub(r"//[^\n]*", "", path.read_text(encoding="utf-8"))
    functions = []
    heads = re.compile(r"\.(entry|func)\s*(?:\((.*?)\)\s*)?([\w$]+)\s*\(([^)]*)\)([^{;]*)([{;])", re.S)
    at = 0
    while match := heads.search(text, at):
        at = match.end()
        kind, result, name, parameters, _, opens = match.groups()
        if opens == ";":
            continue
        end = text.index("\n}\n", at)
        function = Function(name, kind == "entry")
        _parameters(function, parameters)
        if result:
            function.result = PARAMETER.search(result)[3]
        _Body(function, text[at:end], text.count("\n", 0, at) + 1, path).read()
        functions.append(function)
        at = end
    return sorted(functions, key=lambda function: function.is_entry)
