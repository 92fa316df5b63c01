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
    return part("visit") + "".join(map(visit_struct, host.visited)) + part("visit_hook", visits=visits(host))


def visit_struct(struct):
    weights = {gradient: name for name, gradient in trained_pairs(struct)}  # they are of one size
    lines = "".join(f"    FIELD(x->{each.name}, 0, {roles(each.name)});{size_of(struct, weights.get(each.name, each.name))}\n"
                    for each in float_members(struct))
    return f"static void visit_{struct.name}(struct adapt_fields *f, {struct.spelling} *x) {{\n{lines}}}\n\n"


def visits(host):
    """Which op has which struct at which argument."""
    text = ""
    for op in host.ops:
        calls = "".join(visit_call(i, each) for i, each in enumerate(op.arguments) if each.struct)
        if calls and op.duty == "op":
            test = f'!strncmp(op, "{op.name}:", {len(op.name) + 1})' if host.layers else f'!strcmp(op, "{op.name}")'
            text += f"    if ({test}) {{\n{calls}    }}\n"
    return text


def visit_call(i, argument):
    star = "" if isinstance(argument.type, Struct) else "*"
    return f"        visit_{argument.struct.name}(&f, {star}({argument.struct.spelling} *{star})args[{i}]);\n"


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
