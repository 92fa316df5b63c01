# SPDX-License-Identifier: Apache-2.0
"""The adapter's text: write(host, options) -> C. Its constant parts lie in parts/, what differs is made here."""
import pathlib
import textwrap

from c_types import Struct, declared
from frame import FRAMES, frame, start_arguments, tried_with
from gemm import recognise
from hooks import describe_host, hooks, host_calls_table
from host import KEPT
from ops import comment, describe_layers, describe_ops, entry, slot
from rename import avoid
from structs import float_members, integer_members, large, members

PARTS = pathlib.Path(__file__).resolve().parent / "parts"


def part(name, **values):
    text = (PARTS / f"{name}.c.in").read_text(encoding="utf-8")
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text


# ---- structs and the hook visit ------------------------------------------------------------------------------------

def needs_offsets(host, struct):
    """May an extent name its members? Where an op takes raw floats beside it."""
    return any(op.takes_floats and any(each.type is struct or getattr(each.type, "target", None) is struct for each in op.arguments)
               for op in host.ops)


def describe_structs(host):
    if not host.structs:
        return ""
    text = ("/* ---- Structs: in which registers they travel, from the compiler's own sizes ------------------------------------- */\n\n"
            f"enum {{ N_STRUCTS = {len(host.structs)} }};\nstatic amp_struct structs[N_STRUCTS];\n\n"
            "static void describe_structs(void) {\n"
            "    for (int i = 0; i < N_STRUCTS; i++) structs[i] = (amp_struct)AMP_STRUCT_INIT;\n")
    for i, struct in enumerate(host.structs):
        text += f'    structs[{i}].name = "{struct.name}";\n'
        if struct.members is None:
            continue
        text += (f"    structs[{i}].size = sizeof({struct.spelling});\n"
                 f"    structs[{i}].alignment = (uint32_t)_Alignof({struct.spelling});\n")
        if not large(struct):
            words = '"\n                         "'.join(textwrap.wrap(members(struct), 88, drop_whitespace=False))
            text += f'    structs[{i}].members = "{words}";\n'
        elif needs_offsets(host, struct) and integer_members(struct):
            text += offsets(i, struct)
    return text + "}\n\n"


def offsets(i, struct):
    """The members that extents may name."""
    named = integer_members(struct)
    rows = ", ".join(f"@%zu {each.type.name} {each.name}" for each in named)
    where = "\n             ".join(textwrap.wrap(", ".join(f"offsetof({struct.spelling}, {each.name})" for each in named), 100))
    rows = '"\n             "'.join(textwrap.wrap(rows, 80, drop_whitespace=False))
    return (f"    static char members{i}[{len(rows) + 20 * len(named)}]; /* extents may name these: {struct.name[0]}->{named[0].name} */\n"
            f'    snprintf(members{i}, sizeof members{i}, "{rows}",\n             {where});\n'
            f"    structs[{i}].members = members{i};\n")


def visit(host):
    structs = host.visited
    if not structs:
        return ""
    text = part("visit")
    for struct in structs:
        text += f"static void visit_{struct.name}(struct adapt_fields *f, {struct.spelling} *x) {{\n"
        weights = {gradient: name for name, gradient, _ in trained_pairs(struct)}  # which are of one size
        text += "".join(f"    FIELD(x->{each.name}, 0, {roles(each.name)});{hint(struct, weights.get(each.name, each.name))}\n"
                        for each in float_members(struct))
        text += "}\n\n"
    text += ("static amp_status visit(void *self, const char *op, void *const *args, amp_emit emit, void *emit_self) {\n"
             "    struct adapt_fields f = { emit, emit_self, strstr(op, \"backward\") != NULL, AMP_OK };\n    (void)self;\n")
    return text + visits(host) + "    return f.status;\n}\n\n"


def visits(host):
    """Which op has which struct at which argument."""
    text = ""
    for op in host.ops:
        calls = "".join(
            f"        visit_{each.struct.name}(&f, {'' if isinstance(each.type, Struct) else '*'}({each.struct.spelling} *"
            f"{'' if isinstance(each.type, Struct) else '*'})args[{i}]);\n"
            for i, each in enumerate(op.arguments) if each.struct)
        if calls and op.duty == "op":
            test = f'!strncmp(op, "{op.name}:", {len(op.name) + 1})' if host.layers else f'!strcmp(op, "{op.name}")'
            text += f"    if ({test}) {{\n{calls}    }}\n"
    return text


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


def hint(struct, member):
    """An integer member that sounds like its size."""
    name = singular(member)
    near = [each.name for each in integer_members(struct)
            if each.name.lower() in {f"n{name}s", f"n_{name}s", f"{name}_size", f"{name}s_size", f"num_{name}s", f"n{name}", f"n_{name}",
                                     f"n_{member}", f"{name}s", f"{name}_n", f"n{member}", f"{member}_size"}]
    return f" /* x->{near[0]}? */" if near else ""


# ---- parameters ----------------------------------------------------------------------------------------------------

EXAMPLE = """    /* AMP_ADAPT: a line for each weight that the update changes, in the place of no_params_yet. A slice of a larger
     * block is fine. One that is forgotten keeps gradients that are as many times too large as the loss scale.
     *     param("fc1.weight", net->w1, net->dw1, 128 * 784, AMP_MODULE_OTHER);
     *     param("norm.gamma", net->gamma, net->dgamma, 128, AMP_MODULE_BATCH_NORM); */
    no_params_yet();
"""


LAYERS = """    for (size_t i = 0; i < n_layers; i++) {
        const @type@ *x = &layers[i];
        /* AMP_ADAPT: these look like weights and their gradients. In the place of each 0: how many floats. What is
         * batch norm's gets AMP_MODULE_BATCH_NORM. */
@lines@    }
"""
NUMBERED = """/* The name of a layer's parameter in messages and checkpoints: "3.weights". */
__attribute__((unused)) static const char *numbered(size_t layer, const char *what) {
    static char all[1024][48];
    static size_t next;
    char *name = all[next++ % 1024];
    snprintf(name, sizeof *all, "%zu.%s", layer, what);
    return name;
}

"""


def singular(name):
    return name[:-2] if name.endswith("ses") else name[:-1] if name.endswith("s") else name


def trained_pairs(struct):
    """Pairs in a layer that look like a weight and its gradient: weights and weight_updates."""
    names = [each.name for each in float_members(struct)]
    found = []
    for name in names:
        single = singular(name)
        for gradient in (f"{single}_updates", f"{single}_update", f"{single}_grad", f"{name}_grad", f"{name}_grads", f"d{name}",
                         f"{name}_updates", f"grad_{name}"):
            if gradient in names and not name.endswith("_cpu"):
                found.append((name, gradient, hint(struct, name)))
                break
    return found


def params(host, prefix):
    if not host.layers:
        unused = ", ".join(f"(void){name}" for _, name in start_arguments(host))
        unused = f"    {unused};\n" if unused else ""
        return part("params", prefix=prefix, params_args=", ".join(framed(host)) or "void",
                    params_body=f"    n_params = 0, undescribed = 0;\n{unused}{EXAMPLE}")
    layer = host.table
    lines = "".join(f'        param(numbered(i, "{name}"), x->{name}, x->{gradient}, 0{size}, AMP_MODULE_OTHER);\n'
                    for name, gradient, size in trained_pairs(layer))
    body = "    n_params = 0, undescribed = 0;\n" + (LAYERS.replace("@lines@", lines).replace("@type@", layer.spelling) if lines else "    (void)layers, (void)n_layers;\n") + EXAMPLE
    return NUMBERED + part("params", prefix=prefix, params_args=f"{layer.spelling} *layers, size_t n_layers", params_body=body)


# ---- the whole -----------------------------------------------------------------------------------------------------

def includes(host, header):
    local = ["amp.h", "amp_diagnostics.h"] + (["amp_kernels.h"] if any(map(recognise, host.ops)) else []) + ([] if host.kind == "handles" else ["amp_raw.h"]) + ([] if host.table else ["amp_symbol.h"])
    system = ["stddef.h", "stdio.h", "stdlib.h", "string.h"]
    return (f'#include "{header}"\n\n' + "".join(f"#include <{name}>\n" for name in local) + "\n"
            + "".join(f"#include <{name}>\n" for name in system) + "\n")


def symbols(host):
    return part("symbols") + "".join(f"TRAMPOLINE({op.name});\n" for op in host.ops if op.duty != "update") + "\n"


def prototypes(host, prefix):
    """What the program calls, in the head and as declarations."""
    handles = host.kind == "handles"
    lines = [(f"amp_status {prefix}_start({start_args(host)});", "when the parameters are there"),
             (f"amp_status {prefix}_begin({'void *loss, void **scaled_loss' if handles else 'void'});", "before backward")]
    lines += [] if handles else [(f"float {prefix}_seed(void);", "what the seed of backward is multiplied with")]
    lines += [(f"amp_status {prefix}_end(void);", "after backward")]
    if not host.steps:
        lines += [(f"amp_status {prefix}_step_begin(int *may);", "before the update, which is left out where *may is 0"),
                  (f"amp_status {prefix}_step_end(void);", "after it, in either case")]
    return lines + [(f"void {prefix}_health(void);", "after two iterations: what is wrong, on standard error"),
                    (f"amp_status {prefix}_stop(void);", "everything as before")]


def carrier(host):
    seed = [op for op in host.ops if op.duty == "seed"]
    if seed:
        return f"Backward starts from {seed[0].seed} of {seed[0].name}, which carries the loss scale: around_{seed[0].name}."
    return ("What backward starts from carries the loss scale: exactly one of\n"
            " *   - AMP_ADAPT: multiply the constant that it starts from by @prefix@_seed(), after @prefix@_begin;\n"
            " *   - or mark it where an op reads it: \"float(seed) dloss[n]\" in its schema, or AMP_ROLE_SEED in visit, with the\n"
            " *     flag AMP_OP_SEEDS.")


def handles_call(host):
    """Must the adapter be linked with the framework?"""
    return host.kind == "handles"


def start_args(host):
    args = []
    if host.layers:
        args.append(f"{host.table.spelling} *layers, size_t n_layers")
    elif host.table:
        args.append(f"{host.table.spelling} *table")
    if host.optimizer:
        args.append(f"{host.optimizer.spelling} *owner")
    return ", ".join(args + framed(host)) or "void"


def framed_at_all(host):
    return any(op.duty in FRAMES for op in host.ops)


def framed(host):
    """What a function of the program's frame knows when the parameters are there."""
    return [declared(kind, name) for kind, name in start_arguments(host)]


def start_body(host):
    table = "table" if host.table else ""
    text = f"    describe_host({table if host_calls_table(host) else ''});\n" if host.kind == "handles" else ""
    text += "    describe_structs();\n" if host.structs else ""
    if host.layers:
        text += ("    n_ops = n_steps = 0;\n    for (size_t i = 0; i < n_layers; i++) describe_layer(&layers[i]);\n"
                 "    describe_params(layers, n_layers);\n")
    else:
        names = ", ".join(name for _, name in start_arguments(host))
        text += f"    describe_ops({table});\n    describe_params({names});\n"
    if host.visited:
        text += ('    AMP_ADAPT("visit: the sizes of the fields, where they are 0");\n'
                 "    host = *amp_buffer_host();\n    host.visit = visit;\n")
    own = host.kind == "handles" or host.visited
    text += f"    model.host = optimizer.host = {'&host' if own else 'amp_buffer_host()'};\n"
    text += "    model.ops = ops, model.n_ops = n_ops;\n    model.params = params, model.n_params = n_params;\n"
    if host.table and not host.layers:
        text += "    model.flags = AMP_MODEL_WHOLE_TABLE; /* of which a model uses a part */\n"
    text += "    optimizer.params = trained, optimizer.n_params = list_trained();\n"
    if host.structs:
        text += ("    model.structs = structs, model.n_structs = N_STRUCTS;\n"
                 "    optimizer.structs = structs, optimizer.n_structs = N_STRUCTS;\n")
    text += steps(host)
    if host.kind == "buffers":
        text += ("    if (undescribed) config.loss_scale = 1.0f;\n"
                 "    /* Your functions know FP32 alone: their values are rounded as 16 bits would be. Off, once an op has an fp16\n"
                 "     * or bf16 of its own (amp_gate.h; amp_matmul of amp_kernels.h), to run that. */\n"
                 "    config.emulate = config.level == AMP_O0 ? AMP_OFF : AMP_ON;\n")
    return text


def steps(host):
    if host.layers:
        return "    optimizer.steps = steps, optimizer.n_steps = n_steps;\n" if host.steps else ""
    text = ""
    for duty, array in (("step", "steps"), ("zero_grad", "zero_grads")):
        for op in (each for each in host.ops if each.duty == duty):
            where = f"(amp_fn *)(void *)&owner->{op.name}" if host.optimizer else slot(op, host.table)
            text += f"    static amp_op {duty};\n" + entry(op, duty, where, f'"{op.name}"', "NULL")
            text += f"    optimizer.{array} = &{duty}, optimizer.n_{array} = 1;\n"
    return text + ("    optimizer.self = owner;\n" if host.optimizer else "")


def write(host, header, prefix, file, level, flags=""):
    calls = prototypes(host, prefix)
    values = {"prefix": prefix, "file": file, "level": level, "header": header}
    linked = " *\n * (the framework's own objects or library behind it)\n" if handles_call(host) else ""
    shared = "" if host.table else part("shared", run=" *     ADAPTER_LEVEL=O1 ADAPTER_HEALTH=1 ./program\n" if framed_at_all(host) else "", **values)
    head = part("head", flags=flags, linked=linked, shared=shared, calls="".join(f" *     {call.ljust(58)} {why}\n" for call, why in calls), **values)
    text = head + includes(host, header) + "".join(f"{call}\n" for call, _ in calls) + "\n" + part("common")
    text += "" if host.table else symbols(host)
    text += describe_layers(host) if host.layers else describe_ops(host)
    text += describe_structs(host) + visit(host)
    handles = host.kind == "handles"
    text += hooks(host) + describe_host(host) if handles else ("static amp_host host;\n\n" if host.visited else "") + params(host, prefix)
    owner = f"    static {host.optimizer.spelling} owner;\n" if host.optimizer else ""
    if host.layers:
        owner += f"    static {host.table.spelling} layers[1];\n"
        given = "layers, 1"
    elif host.table:
        owner += f"    static {host.table.spelling} table;\n"
        given = "&table"
    else:
        given = ", ".join(tried_with(kind) for kind, _ in start_arguments(host))
    given += (", " if given and host.optimizer else "") + ("&owner" if host.optimizer else "")
    if handles:
        owner += "    void *loss;\n"
    start = f"    amp_status status = {prefix}_start({given});\n"
    text += part(
        "program", frame=frame(host, prefix), start_args=start_args(host), start_body=start_body(host), bracket=part("bracket_loss" if handles else "bracket", carrier=carrier(host).replace("@prefix@", prefix), prefix=prefix),
        steps="" if host.steps else part("steps", prefix=prefix), unsaid="" if handles else part("unsaid"), count="" if handles else part("count"),
        begin=f"{prefix}_begin({'NULL, &loss' if handles else ''})", **{"try": owner + start}, **values)
    return avoid(text, host.header.names())
