# SPDX-License-Identifier: Apache-2.0
"""The command: what is wanted, from which header, to which file."""
import argparse
import os
import pathlib
import re
import sys

import c_header
from c_header import HeaderError
from c_types import floats, is_function, pointed_struct
from frame import FRAMES, check
from host import STEP, ZERO, Host, Op
from lists import Lists
from write import write

HELP = """Writes the skeleton of libamp's adapter for a C framework: it compiles as it comes, and says what is missing.

A trainer whose functions take float arrays and call each other by name:

    amp-adapt net.h dense_forward dense_backward softmax sgd_step -o adapter.c
    cc -DADAPTER_TRY adapter.c -lamp -o try && ./try     # lists what is still to be filled in
    grep -n AMP_ADAPT adapter.c                          # the places where it goes

A framework with a table of ops, or layers that hold their functions:

    amp-adapt minitape.h --table mt_ops -o adapter.c
    amp-adapt darknet.h --table layer -I/usr/lib/darknet/include -o adapter.c
"""
FOLDER = pathlib.Path(__file__).resolve().parent
LISTS = next(folder for folder in (FOLDER / "lists", FOLDER.parents[1] / "src" / "opt_levels" / "lists")
             if folder.is_dir())


def arguments(argv):
    parser = argparse.ArgumentParser(prog="amp-adapt", description=HELP,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("header", help="the C header that declares them")
    parser.add_argument("functions", nargs="*",
                        help="functions that compute, and the optimizer's step, called by their names")
    parser.add_argument("--table", metavar="STRUCT",
                        help="instead of functions: a struct whose members are function pointers")
    parser.add_argument("--step", metavar="NAME",
                        help="which function, or STRUCT.MEMBER, updates the weights (else by its name)")
    parser.add_argument("--zero-grad", metavar="NAME", help="which one clears the gradients (else by its name)")
    for name, what in (("start", "behind which the parameters are there"), ("backward", "that runs backward"),
                       ("stop", "before which the parameters are still there")):
        parser.add_argument(f"--{name}", metavar="NAME", help=f"a function of a program that is not edited, {what}")
    parser.add_argument("--seed", metavar="NAME.ARG",
                        help="which number, given to which function, backward starts from: it is "
                        "multiplied with the loss scale on its way")
    parser.add_argument("--host", choices=["buffers", "handles", "structs"], default="", metavar="KIND",
                        help="buffers (float *), structs (floats behind structs) or handles (tensors), if the guess is "
                             "wrong")
    parser.add_argument("--handle", metavar="TYPE", default="",
                        help="the type of a tensor's handle, where the guess is wrong")
    parser.add_argument("--level", default="O1", choices=[f"O{i}" for i in range(6)],
                        help="where ADAPTER_LEVEL says none (O1)")
    parser.add_argument("-o", dest="output", metavar="FILE", help="the adapter; without it, standard output")
    parser.add_argument("--force", action="store_true", help="write over FILE, which may hold what you filled in")
    parser.add_argument("-I", dest="include", action="append", default=[], metavar="DIR", help="for the preprocessor")
    parser.add_argument("-D", dest="define", action="append", default=[], metavar="NAME[=VALUE]",
                        help="for the preprocessor")
    return parser.parse_intermixed_args(argv)


# ---- which ops -----------------------------------------------------------------------------------------------------

def from_functions(header, names):
    ops = []
    for name in dict.fromkeys(names):
        found = header.function(name)
        if found.inline:
            raise HeaderError(f"{found.where}: {name} is static or inline: it is no symbol, and its calls cannot be "
                              f"caught. "
                              "Give the next function around it that is called by its name, or delete static and put "
                              "its prototype in a header.")
        if found.defined:
            raise HeaderError(f"{found.where}: {name} is defined here, and the adapter, which includes this, would "
                              f"define it "
                              "once more. Put the prototypes in a header of their own (net.h), which the trainer "
                              "includes, and give that header.")
        ops.append(Op(name, found.type, found.where))
    return ops


def from_table(table, say):
    ops = []
    for each in table.members:
        if not is_function(each.type):
            continue
        if re.search(r"(^|_)(gpu|cuda)(_|$)", each.name):
            say(f"{each.where}: {each.name} is left out: libamp works on buffers in the CPU's memory here")
        elif each.type.target.variadic or not each.type.target.prototype:
            say(f"{each.where}: {each.name} is left out: a function whose arguments are not declared cannot be wrapped")
        else:
            ops.append(Op(each.name, each.type.target, each.where))
    if not ops:
        raise HeaderError(f"{table.where}: {table.name} has no function pointers. Give functions by name, without "
                          f"--table.")
    return ops


def optimizer_of(header, step, zero):
    """The struct with the members step and zero_grad: the one that is named, or the only one that has them."""
    named = [each.partition(".") for each in (step, zero) if each and "." in each]
    if named:
        return header.struct(named[0][0])
    found = {struct for struct in header.structs.values() for each in struct.members or []
             if is_function(each.type) and re.fullmatch("step|update", each.name)
             and [pointed_struct(param.type) for param in each.type.target.params][:1] == [struct]}
    return found.pop() if len(found) == 1 else None


def duties(ops, given, say):
    """The step and zero_grad: as said, else by their names."""
    for duty, pattern in (("step", STEP), ("zero_grad", ZERO)):
        name = (given[duty] or "").rpartition(".")[2]
        for op in ops:
            if op.duty == "op" and (op.name == name if name else pattern.search(op.name)):
                op.duty = duty
            if op.duty == "step" and any(floats(each.type) for each in op.type.params):
                op.duty = "update"
                text = (f"{op.where}: {op.name} takes buffers, of which a step has several: after an overflow one "
                        "of its calls would be skipped, not all. Put adapter_step_begin and adapter_step_end around "
                        "them")
                if given["step"]:
                    raise HeaderError(f"--step {given['step']}: {text}, without --step; or give a function around them "
                                      f"that "
                                      "takes no buffers.")
                say(text)
        if name and not any(op.duty == duty for op in ops):
            known = ", ".join(op.name for op in ops)
            raise HeaderError(f"--{duty.replace('_', '-')} {given[duty]}: it is none of the functions: {known}")


def include_name(path):
    name = pathlib.Path(path).name
    if re.search(r'["\\\n]', name):
        raise HeaderError(f"{path}: no #include can name a file with a quote, a backslash or a line's end in it: "
                          f"rename it.")
    return name


def output(options, text):
    path = pathlib.Path(options.output)
    if path.exists() and path.samefile(options.header):
        raise HeaderError(f"{path} is the header that is read: give the adapter another name")
    if path.exists() and not options.force:
        raise HeaderError(f"{path} is there, and may hold what you filled in: another name, or --force")
    path.write_text(text, encoding="utf-8")


def build(options, say):
    flags = [f"-I{each}" for each in options.include] + [f"-D{each}" for each in options.define]
    header = c_header.read(options.header, flags, (os.environ.get("CC") or "cc").split())
    given = {"step": options.step, "zero_grad": options.zero_grad}
    if options.table and any(getattr(options, name) for name in FRAMES):
        raise HeaderError("--start, --backward, --stop and --seed are functions that are called by name: not with "
                          "--table")
    if bool(options.table) == bool(options.functions):
        raise HeaderError("give functions, or --table STRUCT: one of them")
    if options.table:
        table, optimizer = header.struct(options.table), optimizer_of(header, options.step, options.zero_grad)
        ops = from_table(table, say)
    else:
        table, optimizer = None, None
        seed, _, seed_argument = (options.seed or "").partition(".")
        framed = {getattr(options, name): name for name in FRAMES if getattr(options, name)}
        if seed:
            framed = {**{name: duty for name, duty in framed.items() if duty != "seed"}, seed: "seed"}
        for duty, name in given.items():
            if name and "." in name:
                raise HeaderError(f"--{duty.replace('_', '-')} {name}: a struct's member is a slot with --table alone. "
                                  "Beside functions, leave it out and put adapter_step_begin and adapter_step_end "
                                  "around the call of the update.")
        ops = from_functions(header, [*options.functions, *filter(None, given.values()), *framed])
        for op in ops:
            op.duty = framed.get(op.name, "op")
            if op.duty != "op":
                op.seed = seed_argument if op.duty == "seed" else ""
                check(op, seed_argument)
        nameless = [op.name for op in ops if op.duty == "op" and any(floats(each.type) and not each.name
                                                                     for each in op.type.params)]
        if nameless:
            say(f"{', '.join(nameless)}: arguments without names: roles cannot be guessed. Copy the prototypes into "
                "a header of your own, with names, and give that")
    own = ops
    if optimizer and optimizer is not table:
        own = [Op(each.name, each.type.target, each.where) for each in optimizer.members if is_function(each.type)]
        duties(own, given, say)
        own = [op for op in own if op.duty != "op"]
        host = Host(header, Lists(LISTS), ops + own, options.host, options.handle, table)
        host.optimizer = optimizer
        say(f"{optimizer.where}: {', '.join(op.name for op in own)} of {optimizer.name} are the optimizer's slots")
        return host
    duties(own, given, say)
    if not any(op.duty == "op" for op in ops):
        raise HeaderError(f"{header.path}: no op is left: of what is given, no function computes. Give those that do, "
                          f"forward "
                          "and backward, beside the step and what frames the training.")
    host = Host(header, Lists(LISTS), ops, options.host, options.handle, table)
    if host.handle and any(op.duty in FRAMES for op in ops):
        raise HeaderError(f"{header.path}: {host.handle.name} is taken for a tensor's handle, and what runs backward "
                          f"from a "
                          "loss tensor cannot be framed: leave out --start, --backward and --stop, or say --host "
                          "buffers.")
    return host


# ---- the file ------------------------------------------------------------------------------------------------------

def main(argv=None):
    options = arguments(argv)

    def say(text):
        print(f"amp-adapt: {text}", file=sys.stderr)
    try:
        name, host = include_name(options.header), build(options, say)
        file = options.output or "adapter.c"
        prefix = re.sub(r"\W", "_", pathlib.Path(file).stem)
        folder = str(pathlib.Path(options.header).parent)
        folders = [] if folder in (".", "/usr/include") else [folder]
        flags = "".join(f"{flag}{each} " for flag, given in (("-I", folders + options.include), ("-D", options.define))
                        for each in given)
        text = write(host, name, prefix, pathlib.Path(file).name, options.level, flags)
        if options.output is None:
            print(text, end="", flush=True)
            return 0
        output(options, text)
        say(f"{options.output}: {sum(op.duty == 'op' for op in host.ops)} ops of a host with {host.kind}, "
            f"{text.count('AMP_ADAPT: ')} questions (grep -n AMP_ADAPT {options.output})")
    except HeaderError as error:
        say(str(error))
        return 1
    except RecursionError:  # of pycparser, or of a function that follows the types that it read
        say(f"{options.header} nests structs or parentheses deeper than can be followed. Copy the prototypes and "
            "structs that you need into a header of your own and give that.")
        return 1
    except OSError as error:
        say(f"{error.filename or options.output or 'standard output'}: {error.strerror}")
        return 1
    return 0
