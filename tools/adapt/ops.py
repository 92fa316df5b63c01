# SPDX-License-Identifier: Apache-2.0
"""The ops in C: describe_ops(host) -> the function that fills in the table `ops`."""
import textwrap

from c_types import Struct, is_float, is_integer, pointed_struct
from gemm import implementation, recognise
from lists import LOSS, MEANS, common_prefix, is_backward
from parts import comment, part
from structs import integer_members, kind_member

MARK = 40  # column of the questions beside a schema


def extents_from(op):
    names = [each.name for each in op.arguments if is_integer(each.type)]
    for each in op.arguments:
        struct, arrow = (each.type, ".") if isinstance(each.type, Struct) else (pointed_struct(each.type), "->")
        if struct and each.schema.startswith("struct"):
            names += [f"{each.name}{arrow}{member.name}" for member in integer_members(struct)][:8]
    return f"Extents are expressions of {', '.join(names)}." if names else ""


def about(op, host):
    """Which class it gets, and why."""
    if op.duty != "op":
        return f"{op.name}: {op.duty}"
    if op.loss:
        text = f"{op.name}: a loss is no part of the model: every level leaves it alone."
        seeds = [each.name for each in op.arguments if is_float(each.type)]
        if seeds and is_backward(op.name):
            text += f" Does backward start from {seeds[0]}? amp-adapt --seed {op.name}.{seeds[0]} multiplies it."
    elif op.backward_of:
        text = f"{op.name}: backward of {op.backward_of}, whose class it has."
    elif op.listed:
        known = "" if op.listed.name == op.name.rstrip("_") else f"{op.listed.name}, "
        text = f"{op.name}: {known}{op.listed.words()}."
    else:
        text = (f"{op.name}: no cast list knows it: at O1 and O4 it runs as it comes. Is it one of theirs by another "
                f"name, "
                "such as linear or conv2d? Give that as its alias.")
    if recognise(op):
        text += (" Its arguments are those of BLAS' gemm: extents and the 16-bit product are filled in. What a "
                 "described op calls is not cast again: where the ops around it are described too, they get op_class = "
                 "AMP_LEAVE.")
    elif any("[" in each.question for each in op.arguments):
        needed = "" if op.lower or op.loss else " Only O2, O3 and O5 need them."
        text += f" {extents_from(op)}{needed}"
    return " ".join(text.split())


def schema(op, name):
    """As C string literals, a question beside each argument that has one."""
    lines, run = [], ""
    last = len(op.arguments) - 1
    for i, each in enumerate(op.arguments):
        text = each.schema + ("" if i == last else ", ")
        if not each.question:
            run += text
            continue
        lines += _strings(run)
        run = ""
        lines.append(f'"{text}"'.ljust(MARK - 8) + f" /* AMP_ADAPT: {each.question} */")
    return [f'"{name}("', *lines, *_strings(run), f'") -> {op.returns}"']


def _strings(text):
    if not text:
        return []
    return [f'"{line}{" " if more else ""}"' for line, more in _marked(textwrap.wrap(text, 90), text)]


def _marked(lines, text):
    """Each line, and whether a blank followed it."""
    return [(line, i < len(lines) - 1 or text.endswith(" ")) for i, line in enumerate(lines)]


def entry(op, array, slot, name, alias):
    """ops[n++] = op(...), with what follows it."""
    pad = " " * 8
    text = f"    {array} = op({name}, {alias}, {slot},\n" + "".join(f"{pad}{line}\n"
                                                                    for line in schema(op, op.name)).rstrip()
    return text + ");\n"


def after(op, array):
    """What else its descriptor says."""
    text = ""
    if op.backward_of:
        text += f'    {array}.backward_of = "{op.backward_of}";\n'
    if op.loss:
        text += f"    {array}.op_class = AMP_LEAVE;\n"
    if recognise(op):
        text += f"    {array}.fp16 = (amp_fn){op.name}_fp16, {array}.bf16 = (amp_fn){op.name}_bf16;\n"
    return text


def alias_of(op):
    name = op.listed.name if op.listed and not op.backward_of and op.listed.name != op.name.rstrip("_") else ""
    return f'"{name}"' if name else "NULL"


def describe_ops(host):
    """For functions called by name, and for a table of the framework's ops."""
    table = host.table
    ops = [op for op in host.ops if op.duty == "op"]
    text = f"enum {{ N_OPS = {len(ops)} }};\nstatic amp_op ops[N_OPS];\nstatic size_t n_ops;\n\n"
    text += "".join(implementation(op) for op in ops) + part(f"legend_{host.kind}")
    text += f"static void describe_ops({table.spelling + ' *table' if table else 'void'}) {{\n    n_ops = 0;\n"
    for op in ops:
        text += "\n" + comment(about(op, host)) + entry(op, "ops[n_ops++]", slot(op, table), f'"{op.name}"',
                                                        alias_of(op))
        text += after(op, "ops[n_ops - 1]")
    return text + "}\n\n"


def slot(op, table):
    return f"(amp_fn *)(void *)&table->{op.name}" if table else f"&{op.name}_slot"


def describe_layers(host):
    """For layers that have the function pointers themselves: one op for each layer and duty."""
    layer = host.table
    kind = kind_member(layer)
    ops = [op for op in host.ops if op.duty == "op"]
    text = kinds(host, kind) + part("layer_ops", type=layer.spelling)
    for op in ops:
        text += comment(about_duty(op))
        text += entry(op, "ops[n_ops]", f"(amp_fn *)(void *)&x->{op.name}", f'name_of("{op.name}", x)', "NULL")
        text += "    ops[n_ops++].op_class = kind_of(x)->op_class;\n"
    for op in (each for each in host.ops if each.duty == "step"):
        text += comment("The update of the weights: skipped after an overflow.") + f"    if (!x->{op.name}) return;\n"
        text += entry(op, "steps[n_steps++]", f"(amp_fn *)(void *)&x->{op.name}", f'"{op.name}"', "NULL")
    return text + "}\n\n"


def about_duty(op):
    text = f"{op.name} of a layer: messages call it \"{op.name}: linear#1\", the second of that kind."
    return text + (" Where visit says SEED, that kind's gets .flags = AMP_OP_SEEDS." if is_backward(op.name) else "")


def kinds(host, kind):
    """What the cast lists call each kind of layer."""
    layer = host.table
    if not kind:
        return part("kinds_unknown", type=layer.spelling)
    rows = ""
    prefix = common_prefix(kind.type.names)
    for name in kind.type.names:
        listed, short = host.lists.find(name, prefix), name[len(prefix):].lower()
        policy = "AMP_LEAVE" if LOSS.search(name) else "AMP_BY_LIST"
        row = f'[{name}] = {{ "{listed.name if listed else short}", {policy} }},'
        means = MEANS.get(listed.policy, "") if listed else ""
        why = "a loss is no part of the model" if policy == "AMP_LEAVE" else means or "as it comes"
        rows += f"    {row.ljust(56)} /* {why} */\n"
    return part("kinds", type=layer.spelling, rows=rows, member=kind.name)
