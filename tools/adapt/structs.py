# SPDX-License-Identifier: Apache-2.0
"""Structs, as schemas want them: what lies in one, and in which registers it travels."""
import re

from c_types import ANONYMOUS, Array, Enum, Number, Pointer, Struct, floats, is_function, is_integer

BYTES = {"float": 4, "double": 8, "_Bool": 1, "bool": 1, "char": 1, "signed char": 1, "unsigned char": 1, "short": 2,
         "unsigned short": 2, "int": 4, "unsigned": 4, "unsigned int": 4, "long double": 16}
REGISTERS = 64  # bytes: above that a struct travels in memory, and size and alignment are enough


def _bytes(name):
    fixed = re.match(r"u?int(\d+)_t", name)
    return int(fixed.group(1)) // 8 if fixed else BYTES.get(name, 8)


def _times(array):
    return int(array.length) if array.length and array.length.isdigit() else 1


def least(kind):
    """(bytes, alignment) at least, on a machine of 64 bits; what cannot be told counts as nothing."""
    if isinstance(kind, Array):
        size, alignment = least(kind.element)
        return size * _times(kind), alignment
    if isinstance(kind, Struct):
        offset, most = 0, 1
        for each in kind.members or []:
            size, alignment = (0, 1) if each.bits else least(each.type)
            offset = max(offset, size) if kind.union else (offset + alignment - 1) // alignment * alignment + size
            most = max(most, alignment)
        return (offset + most - 1) // most * most, most
    size = 4 if isinstance(kind, Enum) else _bytes(kind.name) if isinstance(kind, Number) else 8
    return size, size


def large(struct):
    return least(struct)[0] > REGISTERS


def _odd(kind):
    """What a schema's members cannot say, or ""."""
    if isinstance(kind, Array):
        known = kind.length and kind.length.isdigit()
        return _odd(kind.element) if known else "has an array whose length is not a number"
    if isinstance(kind, Struct):
        if kind.union:
            return "has a union"
        bits = [each.name for each in kind.members or [] if each.bits]
        if bits:
            return f"has the bit-field {bits[0]}"
        return next(filter(None, (_odd(each.type) for each in kind.members or [])), "")
    known = isinstance(kind, (Pointer, Enum)) or (isinstance(kind, Number) and kind.name != "long double")
    return "" if known else f"has a member of type {getattr(kind, 'name', '?')}"


def by_value_fault(struct):
    """Why it cannot be passed by value, or ""."""
    if struct.union:
        return "it is a union"
    if struct.name == ANONYMOUS:
        return "it has no name to declare another one with"
    if struct.members is None:
        return "its members are not declared"
    return "" if large(struct) else _odd(struct) and f"it {_odd(struct)}"


def members(struct):
    """As amp_struct.members wants them, in their order."""
    return ", ".join(_member(each.type, each.name) for each in struct.members)


def _member(kind, name):
    lengths = ""
    while isinstance(kind, Array):
        lengths, kind = f"{lengths}[{kind.length}]", kind.element
    if isinstance(kind, Struct):
        return f"{{ {members(kind)} }}{' ' + name if name else ''}{lengths}"
    pointer = "fn" if is_function(kind) else "pointer"
    word = pointer if isinstance(kind, Pointer) else "int" if isinstance(kind, Enum) else kind.name
    return f"{word} {name}{lengths}"


def float_members(struct):
    """Its pointers to floats: visit knows no doubles."""
    return [each for each in struct.members or []
            if isinstance(each.type, Pointer) and floats(each.type) and each.type.target.name == "float"]


def integer_members(struct):
    return [each for each in struct.members or []
            if is_integer(each.type) and not each.bits and not isinstance(each.type, Enum)]


def kind_member(struct):
    """(member, enum) that says which layer it is: type or kind, or None."""
    enums = [each for each in struct.members or [] if isinstance(each.type, Enum)]
    named = [each for each in enums if re.search(r"type|kind", each.name)]
    return named[0] if named else None


# ---- what names make probable --------------------------------------------------------------------------------------

def _singular(name):
    return name[:-2] if name.endswith("ses") else name[:-1] if name.endswith("s") else name


def size_of(struct, member, name="x"):
    """A comment that names the integer member that sounds like its size, or nothing."""
    one = _singular(member)
    sounds = {form.format(word) for word in (one, member, f"{one}s")
              for form in ("n{}", "n_{}", "num_{}", "{}_n", "{}_size", "{}_count")} | {f"{one}s"}
    near = [each.name for each in integer_members(struct) if each.name.lower() in sounds]
    return f" /* {name}->{near[0]}? */" if near else ""


def trained_pairs(struct):
    """(weight, gradient) by their names: weights and weight_updates, w and dw."""
    names, found = [each.name for each in float_members(struct)], []
    for name in names:
        one = _singular(name)
        gradients = [f"{word}_{end}" for word in (one, name) for end in ("updates", "update", "grad", "grads")]
        near = [each for each in [*gradients, f"d{name}", f"grad_{name}"] if each in names]
        if near and not name.endswith("_cpu"):
            found.append((name, near[0]))
    return found
