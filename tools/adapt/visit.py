# SPDX-License-Identifier: Apache-2.0
"""What is behind structs: describe_structs(host), and the hook visit for the floats in them."""
import textwrap

from c_types import Struct, pointed_struct
from host import KEPT
from parts import literals, part
from structs import float_members, integer_members, large, members, size_of, trained_pairs


def describe_structs(host):
    if not host.structs:
        return ""
    text = part("structs", n=str(len(host.structs)))
    for i, struct in enumerate(host.structs):
        text += f'    structs[{i}].name = "{struct.name}";\n'
        if struct.members is None:
            continue
        text += (f"    structs[{i}].size = sizeof({struct.spelling});\n"
                 f"    structs[{i}].alignment = (uint32_t)_Alignof({struct.spelling});\n")
        if not large(struct):
            text += f'    structs[{i}].members = "{literals(members(struct), 88, " " * 25)}";\n'
        elif stands_beside_floats(host, struct) and integer_members(struct):
            text += offsets(i, struct)
    return text + "}\n\n"


def stands_beside_floats(host, struct):
    """May an extent name its members?"""
    return any(op.takes_floats and any(struct in (each.type, pointed_struct(each.type)) for each in op.arguments)
               for op in host.ops)


def offsets(i, struct):
    """The members that extents may name."""
    named = integer_members(struct)
    rows = ", ".join(f"@%zu {each.type.name} {each.name}" for each in named)
    where = ", ".join(f"offsetof({struct.spelling}, {each.name})" for each in named)
    indent = " " * 13
    return (f"    static char members{i}[{len(rows) + 20 * len(named)}]; /* extents may name these: "
            f"{struct.name[0]}->{named[0].name} */\n"
            f'    snprintf(members{i}, sizeof members{i}, "{literals(rows, 80, indent)}",\n'
            f"{textwrap.fill(where, 112, initial_indent=indent, subsequent_indent=indent)});\n"
            f"    structs[{i}].members = members{i};\n")


def visit(host):
    if not host.visited:
        return ""
    return part("visit") + "".join(map(visit_structs, host.visited)) + part("visit_hook", visits=visits(host))


def name_of(op):
    return "visit_" + "_".join(each.struct.name for each in op.behind)


def visit_structs(op):
    """One function for all structs of a call: how many floats one has behind it may stand in another."""
    params = ", ".join(f"{each.struct.spelling} *{each.name}" for each in op.behind)
    lines = "".join(fields(each.struct, each.name) for each in op.behind)
    return f"static void {name_of(op)}(struct adapt_fields *fields, {params}) {{\n{lines}}}\n\n"


def fields(struct, name):
    weights = {gradient: weight for weight, gradient in trained_pairs(struct)}  # they are of one size
    return "".join(f"    FIELD({name}->{each.name}, 0, {roles(each.name)});"
                   f"{size_of(struct, weights.get(each.name, each.name), name)}\n" for each in float_members(struct))


def visits(host):
    """Which op has which structs at which arguments."""
    text = ""
    for op in (each for each in host.ops if each.duty == "op" and each.behind):
        test = f'!strncmp(op, "{op.name}:", {len(op.name) + 1})' if host.layers else f'!strcmp(op, "{op.name}")'
        given = ", ".join(from_args(i, each) for i, each in enumerate(op.arguments) if each.struct)
        text += f"    if ({test}) {name_of(op)}(&fields, {given});\n"
    return text


def from_args(i, argument):
    star = "" if isinstance(argument.type, Struct) else "*"
    return f"{star}({argument.struct.spelling} *{star})args[{i}]"


def roles(name):
    """In forward, in backward: by habit."""
    low = name.lower()
    if any(word in low for word in ("workspace", "scratch", "tmp", "temp", "buf")):
        return "SCRATCH, SCRATCH"
    if KEPT.search(low) or any(word in low for word in ("cost", "loss")):
        return "KEEP, KEEP"
    if any(word in low for word in ("update", "grad", "delta")):
        return "KEEP, UPDATE"
    if low.startswith("out") or low in ("y", "z"):
        return "WRITE, READ"
    return "READ, READ"
