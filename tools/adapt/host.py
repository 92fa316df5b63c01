# SPDX-License-Identifier: Apache-2.0
"""From declarations to what an adapter has to say of them: ops, their arguments, the structs behind these.

What a prototype does not say is kept as a question, beside what its names make probable.
"""
import re
from dataclasses import dataclass, field
from typing import Any, List, Optional

from c_header import HeaderError
from c_types import (Array, Enum, Number, Pointer, Struct, Unknown, Void, floats, is_float, is_function, is_integer,
                     pointed_struct)
from frame import FRAMES
from gemm import fill_in
from lists import LOSS, Listed, common_prefix, is_backward, stem
from structs import by_value_fault, float_members

RESERVED = {"pointer", "Tensor", "bool", "struct", "const", "self", "size_t", "ptrdiff_t", "uint8", "uint16", "uint32",
            "uint64", "int8", "int16", "int32", "int64"}
OUT = re.compile(r"^(out|output|outputs|y|dst|dest|res|result|probs|losses|logits)$", re.IGNORECASE)
ADDED = re.compile(r"^(d_?([a-z]|in|inp|inputs?|outputs?|out|weights?|bias(es)?|gamma|beta|hidden|logits|"
                   r"act\w*|[A-Z]\w*)\d?|grad\w*|\w*_grads?|\w*_updates?|\w*_?delta)$")
KEPT = re.compile(r"mean|var(iance)?$|rstd|mask|label|target|truth|index|indices|running", re.IGNORECASE)
SEED = re.compile(r"^(seed|d_?loss(es)?|grad_loss(es)?)$", re.IGNORECASE)
IN_PLACE = re.compile(r"in_?place", re.IGNORECASE)
OPTIONAL = re.compile(r"bias|optional|mask", re.IGNORECASE)
STEP = re.compile(r"(^|_)(step|update|sgd|adamw?|optimi[sz]e)(_|$)", re.IGNORECASE)
ZERO = re.compile(r"(zero|clear|reset)_?grads?", re.IGNORECASE)


@dataclass
class Argument:
    name: str
    type: Any
    schema: str            # what stands in the schema until the question is answered
    question: str = ""     # "": there is none
    struct: Optional[Struct] = None  # that the hook visit looks into


@dataclass
class Op:
    name: str              # the function, or the table's member
    type: Any
    where: str
    arguments: List[Argument] = field(default_factory=list)
    returns: str = "void"
    listed: Optional[Listed] = None
    backward_of: str = ""
    loss: bool = False
    duty: str = "op"       # or step, zero_grad, update, or one of the frame's
    seed: str = ""         # the argument that backward starts from

    @property
    def takes_floats(self):
        return any(floats(each.type) for each in self.arguments)

    @property
    def behind(self):
        """Its arguments that are structs with floats behind them."""
        return [each for each in self.arguments if each.struct]

    @property
    def lower(self):
        return bool(self.listed and self.listed.lower and not self.loss)


class Host:
    """ops, structs to describe, and of which kind the host is: "handles" (with .handle), or "buffers"."""

    def __init__(self, header, lists, ops, kind="", handle="", table=None):
        self.header, self.lists, self.table, self.optimizer = header, lists, table, None
        self.ops, self.structs = ops, []
        self.handle = self.find_handle(kind, handle)
        self.kind = "handles" if self.handle else "buffers"
        prefix = common_prefix([op.name for op in ops])
        for op in ops:
            self.describe(op, prefix)
        self.pair()
        # the table is a layer: its own functions take it, one table for each
        self.layers = table is not None and table in self.structs

    @property
    def steps(self):
        return [op for op in self.ops if op.duty == "step"]

    # ---- handles or buffers

    def find_handle(self, kind, named):
        if named:
            known = named in self.header.structs and self.header.structs[named].members
            return self.header.struct(named) if known else self.opaque(named)
        if kind in ("buffers", "structs"):
            return None
        ops = [each for each in self.ops if each.duty == "op"]
        returned = [each.type.returns.target for each in ops if pointed_struct(each.type.returns)]
        taken = [pointed_struct(param.type) for each in ops for param in each.type.params]
        several = [a for each in ops for a in [pointed_struct(param.type) for param in each.type.params]
                   if a and sum(a is pointed_struct(param.type) for param in each.type.params) > 1]
        candidates = [each for each in taken if each and (each in returned or each in several)
                      and not any(is_function(member.type) for member in each.members or [])]
        if candidates:
            return max(candidates, key=candidates.count)
        if kind == "handles":
            raise HeaderError(f"{self.header.path}: no type is seen to be a tensor's handle: name it, --handle TYPE.")
        return None

    def opaque(self, named):
        kind = self.header.typedefs.get(named) or self.header.structs.get(named)
        kind = kind.target if isinstance(kind, Pointer) else kind
        if not isinstance(kind, Struct):
            raise HeaderError(f"{self.header.path}: --handle {named}: no struct is known by that name."
                              f"{self.header.nearest(named, self.header.structs)}")
        return kind

    # ---- one op

    def describe(self, op, prefix):
        kind, where = op.type, f"{op.where}: {op.name}"
        if kind.variadic:
            raise HeaderError(f"{where} takes any number of arguments (...): a wrapper cannot hand on what it cannot "
                              f"know. "
                              "Give a function with fixed arguments that calls it.")
        if not kind.prototype:
            raise HeaderError(f"{where} has no prototype, so that its arguments are not known: write (void) if there "
                              f"are none.")
        if len(kind.params) > 64:
            raise HeaderError(f"{where} takes {len(kind.params)} arguments; a schema has 64 at most.")
        taken = set()
        for number, param in enumerate(kind.params):
            name = _argument_name(param, number, taken)
            if op.duty in FRAMES:  # called, and not described
                op.arguments.append(Argument(name, param.type, ""))
                continue
            op.arguments.append(self.argument(op, name, param.type, where, number))
        op.returns = "" if op.duty in FRAMES else self.returned(kind.returns, where)
        op.listed = self.lists.find(op.name, prefix)
        op.loss = bool(LOSS.search(op.name)) and not self.handle
        fill_in(op)
        if op.loss or op.duty != "op":  # what no level looks at need not be described
            for each in op.arguments:
                if floats(each.type) and "(seed)" not in each.question:
                    each.schema, each.question = f"pointer {each.name}", ""

    def argument(self, op, name, kind, where, number):
        what = f"{where}: argument {number + 1} ({name})"
        if floats(kind) or isinstance(kind, Array):
            return self.buffer(op, name, kind)
        if isinstance(kind, Struct):
            fault = by_value_fault(kind)
            if fault:
                raise HeaderError(f"{what} is {kind.name} by value, and {fault}: registers cannot be told. "
                                  "Leave the function out, or let it take a pointer.")
            return Argument(name, kind, f"struct {self.know(kind)} {name}",
                            struct=kind if float_members(kind) else None)
        if isinstance(kind, Pointer):
            return self.pointer(op, name, kind, number)
        if isinstance(kind, (Unknown, Void)) or kind == Number("long double"):
            raise HeaderError(f"{what} is {getattr(kind, 'name', 'void')}: schemas have no such type. Leave the "
                              f"function out.")
        return Argument(name, kind, f"{_number(kind)} {name}")

    def pointer(self, op, name, kind, number):
        struct = pointed_struct(kind)
        if op.duty != "op":
            return Argument(name, kind, f"pointer {name}")
        if struct and struct is self.handle:
            fills = isinstance(op.type.returns, Void) or is_integer(op.type.returns)  # others return what they make
            return self.tensor(name, kind, op.name.endswith("_") and number == 0, fills)
        if struct and not self.handle and float_members(struct):
            return Argument(name, kind, f"struct {self.know(struct)} *{name}", struct=struct)
        if isinstance(kind.target, Pointer) and pointed_struct(kind.target) is self.handle and self.handle:
            counted = any(is_integer(param.type) for param in op.type.params)
            return Argument(name, kind, f"Tensor[] {name}" if counted else f"pointer {name}", "" if counted else
                            f'"Tensor(out a!)* {name}" if a handle is written there, "Tensor[3] {name}" for a list')
        if is_function(kind):
            return Argument(name, kind, f"fn {name}")
        if isinstance(kind.target, Pointer) and is_float(kind.target.target):
            return Argument(name, kind, f"pointer {name}", "an array of pointers: the floats behind it stay FP32")
        if is_integer(kind.target) and isinstance(kind.target, Number):
            return Argument(name, kind, f"{kind.target.name.replace('unsigned int', 'unsigned')} *{name}")
        return Argument(name, kind, f"pointer {name}")

    @staticmethod
    def tensor(name, kind, in_place, fills):
        written = "(out a!)" if fills and OUT.match(name) and not kind.to_const else ""
        mark = "(a!)" if in_place else "(keep)" if KEPT.search(name) else written
        optional = "?" if OPTIONAL.search(name) else ""
        return Argument(name, kind, f"Tensor{mark}{optional} {name}")

    def buffer(self, op, name, kind):
        extents, element = [], kind
        while isinstance(element, Array):
            extents.append(element.length)
            element = element.element
        if isinstance(element, Pointer) and floats(element) and not extents:
            element, constant = element.target, kind.to_const
        else:
            constant = False
        if not is_float(element):
            return Argument(name, kind, f"pointer {name}")
        known = bool(extents) and all(each and _in_scope(each, op.type.params) for each in extents)
        in_place = not constant and _in_place(op, name)
        mark, sure = _use(name, constant, is_backward(op.name), in_place)
        shape = ", ".join(extents) if known else _lonely_extent(op.type.params) or "..."
        return Argument(name, kind, f"{element.name} *{name}",
                        f"{element.name}{mark} {name}[{shape}]{'' if sure else ' ?'}")

    def returned(self, kind, where):
        if isinstance(kind, Void):
            return "void"
        if isinstance(kind, Struct):
            fault = by_value_fault(kind)
            if fault:
                raise HeaderError(f"{where} returns {kind.name} by value, and {fault}: registers cannot be told.")
            return f"struct {self.know(kind)}"
        if isinstance(kind, Pointer):
            return "Tensor" if self.handle and pointed_struct(kind) is self.handle else "pointer"
        if isinstance(kind, (Unknown, Array)) or kind == Number("long double"):
            raise HeaderError(f"{where} returns {getattr(kind, 'name', 'an array')}: schemas have no such type.")
        return _number(kind)

    def know(self, struct):
        if struct not in self.structs:
            self.structs.append(struct)
        return struct.name

    # ---- all of them

    def pair(self):
        """A backward function has the class of its forward one."""
        forwards = {stem(op.name): op for op in self.ops if not is_backward(op.name)}
        for op in self.ops:
            forward = forwards.get(stem(op.name)) if is_backward(op.name) else None
            if forward:
                op.backward_of, op.listed, op.loss = forward.name, forward.listed, forward.loss

    @property
    def visited(self):
        """The ops with floats behind structs, one for each combination of structs."""
        found = {}
        for op in self.ops:
            if op.duty == "op" and op.behind:
                found.setdefault(tuple(each.struct for each in op.behind), op)
        return list(found.values())


# ---- what names make probable --------------------------------------------------------------------------------------

def _argument_name(param, number, taken):
    name = param.name or (param.type.name[0].lower() if isinstance(param.type, Struct) else f"arg{number}")
    name = f"{name}_" if name in RESERVED and (name != "self" or not isinstance(param.type, Pointer)) else name
    while name in taken:
        name += str(number)
    taken.add(name)
    return name


def _number(kind):
    return "int" if isinstance(kind, Enum) else {"unsigned int": "unsigned"}.get(kind.name, kind.name)


def _in_scope(length, params):
    names = {param.name for param in params if is_integer(param.type)}
    return all(word in names or word.isdigit() for word in re.findall(r"\w+", length))


def _lonely_extent(params):
    integers = [param.name for param in params if is_integer(param.type) and not isinstance(param.type, Enum)]
    return integers[0] if len(integers) == 1 and integers[0] else None


def _writable(param):
    return isinstance(param.type, Array) or isinstance(param.type, Pointer) and not param.type.to_const


def _in_place(op, name):
    """Is the buffer probably read and written? BLAS' c with a beta; of a function in place the first that can be
    written; of one that returns nothing the only one."""
    params = op.type.params
    if name.lower() in ("c", "y") and any((each.name or "").lower() == "beta" and is_float(each.type)
                                          for each in params):
        return True
    writable = [each for each in params if _writable(each)]
    if IN_PLACE.search(op.name):
        return [each.name for each in writable if floats(each.type)][:1] == [name]
    alone = len([each for each in params if floats(each.type)]) == 1 or not OUT.match(name)
    return isinstance(op.type.returns, Void) and len(writable) == 1 and alone


def _use(name, constant, backward, in_place):
    """The annotation that is the most probable, and whether it is sure."""
    if in_place and not SEED.match(name) and not KEPT.search(name):
        return "(a!)", False
    if backward and OUT.match(re.sub(r"^(d|grad)_?", "", name)) and not SEED.match(name):
        return "", constant  # of forward's output, or its gradient
    if SEED.match(name):
        return "(seed)", False
    if KEPT.search(name):
        return "(keep)", False
    if constant:
        return "", True
    return ("(out a!)" if OUT.match(name) else "(a!)" if ADDED.match(name) else ""), False
