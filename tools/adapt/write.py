# SPDX-License-Identifier: Apache-2.0
"""The adapter's text: write(host, ...) -> C. Its constant parts lie in parts/, what differs is made here and beside."""
from c_types import declared
from frame import FRAMES, frame, start_arguments, tried_with
from gemm import recognise
from hooks import describe_host, hooks, host_calls_table
from ops import describe_layers, describe_ops, entry, slot
from params import params
from parts import part
from rename import avoid
from visit import describe_structs, visit


def write(host, header, prefix, file, level, flags=""):
    """`header` as it is included; `prefix` of the functions that the program calls; `flags` of the compiler."""
    values = {"prefix": prefix, "file": file, "level": level, "header": header, "flags": flags}
    text = head(host, values) + includes(host, header) + "".join(f"{call}\n"
                                                                 for call, _ in prototypes(host, prefix)) + "\n"
    text += part("common") + ("" if host.table else symbols(host))
    text += describe_layers(host) if host.layers else describe_ops(host)
    text += describe_structs(host) + visit(host)
    text += hooks(host) + describe_host(host) if host.handle else params(host, prefix)
    return avoid(text + program(host, values), host.header.names())


# ---- before the ops ------------------------------------------------------------------------------------------------

def head(host, values):
    framed = any(op.duty in FRAMES for op in host.ops)
    return part("head", linked=" *\n * (the framework's own objects or library behind it)\n" if host.handle else "",
                calls="".join(f" *     {call.ljust(58)} {why}\n" for call, why in prototypes(host, values["prefix"])),
                shared="" if host.table else part("shared", **values),
                run=" *     ADAPTER_LEVEL=O1 ADAPTER_HEALTH=1 ./program\n" if framed else "", **values)


def includes(host, header):
    ours = ["amp.h", "amp_diagnostics.h"]
    ours += ["amp_kernels.h"] if any(map(recognise, host.ops)) else []
    ours += [] if host.handle else ["amp_raw.h"]
    ours += [] if host.table else ["amp_symbol.h"]
    return "\n".join([f'#include "{header}"', "", *(f"#include <{name}>" for name in ours), "",
                      *(f"#include <{name}.h>" for name in ("stddef", "stdio", "stdlib", "string")), "", ""])


def symbols(host):
    return part("symbols") + "".join(f"TRAMPOLINE({op.name});\n" for op in host.ops if op.duty != "update") + "\n"


def prototypes(host, prefix):
    """What the program calls, and when."""
    loss = "void *loss, void **scaled_loss" if host.handle else "void"
    calls = [(f"amp_status {prefix}_start({start_args(host)});", "when the parameters are there"),
             (f"amp_status {prefix}_begin({loss});", "before backward")]
    calls += [] if host.handle else [(f"float {prefix}_seed(void);", "what the seed of backward is multiplied with")]
    calls += [(f"amp_status {prefix}_end(void);", "after backward")]
    if not host.steps:
        calls += [(f"amp_status {prefix}_step_begin(int *may);",
                   "before the update, which is left out where *may is 0"),
                  (f"amp_status {prefix}_step_end(void);", "after it, in either case")]
    return calls + [(f"void {prefix}_health(void);", "after two iterations: what is wrong, on standard error"),
                    (f"amp_status {prefix}_stop(void);", "everything as before")]


# ---- behind them ---------------------------------------------------------------------------------------------------

def start_args(host):
    args = [f"{host.table.spelling} *{'layers, size_t n_layers' if host.layers else 'table'}"] if host.table else []
    args += [f"{host.optimizer.spelling} *owner"] if host.optimizer else []
    return ", ".join(args + [declared(kind, name) for kind, name in start_arguments(host)]) or "void"


def start_body(host):
    lines = [f"describe_host({'table' if host_calls_table(host) else ''});"] if host.handle else []
    lines += ["describe_structs();"] if host.structs else []
    if host.layers:
        lines += ["n_ops = n_steps = 0;", "for (size_t i = 0; i < n_layers; i++) describe_layer(&layers[i]);",
                  "describe_params(layers, n_layers);"]
    else:
        names = ", ".join(name for _, name in start_arguments(host))
        lines += [f"describe_ops({'table' if host.table else ''});", f"describe_params({names});"]
    if host.visited:
        lines += ['AMP_ADAPT("visit: the sizes of the fields, where they are 0");', "host = *amp_buffer_host();",
                  "host.visit = visit;"]
    lines += [f"model.host = optimizer.host = {'&host' if host.handle or host.visited else 'amp_buffer_host()'};",
              "model.ops = ops, model.n_ops = n_ops;", "model.params = params, model.n_params = n_params;"]
    if host.table and not host.layers:
        lines += ["model.flags = AMP_MODEL_WHOLE_TABLE; /* of which a model uses a part */"]
    lines += ["optimizer.params = trained, optimizer.n_params = list_trained();"]
    if not host.handle:
        lines += ["optimizer.flags = 0; /* AMP_OPTIMIZER_GRADS_STAY, if gradients hold the momentum and are not "
                  "cleared */"]
    if host.structs:
        lines += [f"{each}.structs = structs, {each}.n_structs = N_STRUCTS;" for each in ("model", "optimizer")]
    return "".join(f"    {line}\n" for line in lines) + steps(host) + part("untrained" if host.handle else "emulate")


def steps(host):
    if host.layers:
        return "    optimizer.steps = steps, optimizer.n_steps = n_steps;\n" if host.steps else ""
    text = ""
    for op in (each for each in host.ops if each.duty in ("step", "zero_grad")):
        where = f"(amp_fn *)(void *)&owner->{op.name}" if host.optimizer else slot(op, host.table)
        text += f"    static amp_op {op.duty};\n" + entry(op, op.duty, where, f'"{op.name}"', "NULL")
        text += f"    optimizer.{op.duty}s = &{op.duty}, optimizer.n_{op.duty}s = 1;\n"
    return text + ("    optimizer.self = owner;\n" if host.optimizer else "")


def carrier(host):
    """What of backward carries the loss scale."""
    for op in host.ops:
        if op.duty == "seed":
            return f"Backward starts from {op.seed} of {op.name}, which carries the loss scale: around_{op.name}."
    return part("carrier").rstrip()


def trial(host):
    """(declarations, arguments) for a start with nothing."""
    objects = {"owner": host.optimizer, "layers": host.table if host.layers else None,
               "table": None if host.layers else host.table}
    text = "".join(f"    static {struct.spelling} {name}{'[1]' if name == 'layers' else ''};\n"
                   for name, struct in objects.items() if struct)
    given = ["layers, 1"] if host.layers else ["&table"] if host.table else []
    given += ["&owner"] if host.optimizer else []
    return text, ", ".join(given + [tried_with(kind) for kind, _ in start_arguments(host)])


def program(host, values):
    objects, given = trial(host)
    begin = f"{values['prefix']}_begin({'NULL, &loss' if host.handle else ''})"
    return part("program", start_args=start_args(host), start_body=start_body(host), begin=begin,
                bracket=part("bracket_loss" if host.handle else "bracket", carrier=carrier(host)),
                steps="" if host.steps else part("steps"), frame=frame(host, values["prefix"]),
                unsaid="" if host.handle else part("unsaid"), count="" if host.handle else part("count"),
                objects=objects + ("    void *loss;\n" if host.handle else ""), given=given, **values)
