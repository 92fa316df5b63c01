# SPDX-License-Identifier: Apache-2.0
"""The frame of a program that is not edited: what the adapter does around the program's own functions."""
from c_header import HeaderError
from c_types import Void, declared, is_float, is_function, pointed_struct, spelling
from parts import part

FRAMES = ("start", "backward", "stop", "seed")

BODY = {
    "start": ("", "    must(@prefix@_start(@arguments@));\n"),
    "backward": ("    static int n; /* of brackets, until the report: in the first ones the loss scale may fall */\n"
                 "    if (n >= 2 && (scaled.action != AMP_SKIP || n == 40) && getenv(\"ADAPTER_HEALTH\")) "
                 "@prefix@_health(), n = -1;\n"
                 "    if (n >= 0 && n < 40) n++;\n"
                 "    must(@prefix@_begin());\n", "    must(@prefix@_end());\n"),
    "seed": ("", ""),
    "stop": ("    must(@prefix@_stop());\n", ""),
}


def check(op, argument=""):
    if op.duty == "seed" and not any(each.name == argument and is_float(each.type) for each in op.type.params):
        raise HeaderError(f"{op.where}: {op.name} has no argument {argument or '(none was named)'} that is a float: "
                          "--seed FUNCTION.ARGUMENT names the number that backward starts from.")
    if any(is_function(each.type) for each in op.type.params):
        raise HeaderError(f"{op.where}: {op.name} takes a function pointer: nothing can be put around it here. Name "
                          f"another, "
                          "or call the adapter's functions from the program.")


def start_arguments(host):
    """(type, name) of what is known when the parameters are there: the function's result, and its arguments."""
    for op in host.ops:
        if op.duty == "start":
            result = [] if isinstance(op.type.returns, Void) else [(op.type.returns, "result")]
            return result + [(each.type, each.name) for each in op.arguments]
    return []


def tried_with(kind):
    """An argument for the trial: an empty struct, or nothing."""
    struct = pointed_struct(kind)
    return f"&({struct.spelling}){{ 0 }}" if struct and struct.members is not None else "0"


def frame(host, prefix):
    ops = [op for op in host.ops if op.duty in FRAMES]
    if not ops:
        return ""
    puts = "".join(f"    next_{op.name} = {op.name}_slot;\n    {op.name}_slot = (amp_fn)around_{op.name};\n"
                   for op in ops)
    return part("frame", slots=", ".join(f"next_{op.name}" for op in ops), puts=puts,
                functions="".join(around(op, prefix) for op in ops))


def around(op, prefix):
    before, after = BODY[op.duty]
    returns = spelling(op.type.returns)
    params = ", ".join(declared(each.type, each.name) for each in op.arguments) or "void"
    types = ", ".join(spelling(each.type) for each in op.arguments) or "void"
    names = ", ".join(f"{each.name} * @prefix@_seed()" if op.seed == each.name else each.name for each in op.arguments)
    void = isinstance(op.type.returns, Void)
    call = f"(({returns} (*)({types}))next_{op.name})({names});\n"
    arguments = ", ".join(filter(None, ["" if void else "result", names]))
    text = (f"static {declared(op.type.returns, 'around_' + op.name)}({params}) {{\n{before}    "
            f"{'' if void else declared(op.type.returns, 'result') + ' = '}{call}{after}"
            f"{'' if void else '    return result;' + chr(10)}}}\n\n")
    return text.replace("@prefix@", prefix).replace("@arguments@", arguments)
