# SPDX-License-Identifier: Apache-2.0
"""The types of C, as c_header.py reads them."""
from dataclasses import dataclass, field
from typing import Any, List, Optional

ANONYMOUS = "(no name)"
# C's numbers, and the C library's typedefs that schemas know as well.
FIXED = [f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)]
INTEGERS = ["_Bool", "bool", "char", "signed char", "unsigned char", "short", "unsigned short", "int", "unsigned",
            "unsigned int", "long", "unsigned long", "long long", "unsigned long long", "size_t", "ptrdiff_t", *FIXED]
NUMBERS = ["float", "double", "long double", *INTEGERS]


@dataclass
class Void:
    pass


@dataclass
class Number:
    name: str


@dataclass
class Pointer:
    target: Any
    to_const: bool = False  # what it points to is not written through it


@dataclass
class Array:
    element: Any
    length: Optional[str]  # a number, a name, an expression; None: not said, or not understood


@dataclass
class Enum:
    name: str
    spelling: str
    names: List[str] = field(default_factory=list)


@dataclass
class Unknown:
    """What libamp's schemas have no word for: complex numbers and the like."""
    name: str


@dataclass
class Member:
    name: str
    type: Any
    bits: bool  # a bit-field
    where: str


@dataclass(eq=False, repr=False)
class Struct:
    name: str      # its tag, or the typedef that alone names it
    spelling: str  # in C
    union: bool
    where: str
    members: Optional[List[Member]] = None  # None: only declared


@dataclass
class Param:
    name: Optional[str]
    type: Any


@dataclass
class FunctionType:
    returns: Any
    params: List[Param]
    variadic: bool
    prototype: bool  # False: f(), which says nothing of arguments


@dataclass
class Function:
    name: str
    type: FunctionType
    inline: bool  # static or inline: no symbol that others could catch
    where: str
    defined: bool = False  # with its body


def is_float(kind):
    return isinstance(kind, Number) and kind.name in ("float", "double")


def is_integer(kind):
    return isinstance(kind, Enum) or (isinstance(kind, Number) and kind.name in INTEGERS)


def floats(kind):
    """Does it lead to floating elements: float *, float [N]?"""
    return isinstance(kind, (Pointer, Array)) and is_float(kind.target if isinstance(kind, Pointer) else kind.element)


def pointed_struct(kind):
    """The struct behind a pointer to one, or None."""
    return kind.target if isinstance(kind, Pointer) and isinstance(kind.target, Struct) else None


def is_function(kind):
    """A pointer to a function?"""
    return isinstance(kind, Pointer) and isinstance(kind.target, FunctionType)


def declared(kind, name):
    """A declaration of `name`."""
    text = spelling(kind)
    return text + name if text.endswith("*") else f"{text} {name}"


def spelling(kind):
    """In C, where no name follows or one that stands behind it."""
    if isinstance(kind, (Pointer, Array)):
        target = kind.target if isinstance(kind, Pointer) else kind.element
        const = "const " if isinstance(kind, Pointer) and kind.to_const else ""
        return f"{const}{spelling(target)} *".replace("* *", "**")
    if isinstance(kind, Void):
        return "void"
    return kind.spelling if isinstance(kind, (Enum, Struct)) else kind.name
