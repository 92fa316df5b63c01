# SPDX-License-Identifier: Apache-2.0
"""The hooks of hosts with tensor handles: hooks(host) -> C. What the handle's members and the header's functions make
plain is written; the rest fails when it is called, says what it has to do, and is named by adapter_health."""
import re

from c_types import Array, Enum, Number, Pointer, floats, is_integer, pointed_struct
from parts import comment, part

FLOATS = {"AMP_FLOAT32": r"(F|FP|FLOAT)(32)?$", "AMP_FLOAT16": r"((F|FP|FLOAT)16|HALF)$",
          "AMP_BFLOAT16": r"(BF|BFLOAT)16$"}
REQUIRED = ("view", "dtype", "cast", "release", "grad", "swap_data")
SIGNATURES = {
    "view": "static amp_status view(void *self, void *tensor, amp_tensor_view *out)",
    "dtype": "static amp_dtype dtype(void *self, void *tensor)",
    "cast": "static amp_status cast(void *self, void *tensor, amp_dtype to, void **out)",
    "release": "static void release(void *self, void *tensor)",
    "id": "static uint64_t id(void *self, void *tensor)",
    "version": "static uint64_t version(void *self, void *tensor)",
    "grad": "static amp_status grad(void *self, void *tensor, void **out)",
    "set_grad": "static amp_status set_grad(void *self, void *tensor, void *gradient)",
    "swap_data": "static amp_status swap_data(void *self, void *tensor, amp_storage *storage)",
    "scale": "static amp_status scale(void *self, void *loss, float factor, void **out)",
}
# What a hook must do, where nothing shows how the host does it; what libamp goes without, where it is left out.
DUTIES = {
    "view": "fill in out->data, out->device.type (1: CPU), out->ndim, out->shape (int64_t, valid until the next view), "
            "out->strides if it is not compact, out->dtype (code 2 float, 4 bfloat, 0 int; bits; lanes 1).",
    "dtype": "AMP_FLOAT32, AMP_FLOAT16, AMP_BFLOAT16, or AMP_DTYPE_OTHER for integers.",
    "cast": "*out = a copy in the type `to`, recorded on the tape, so that backward gives the gradient in the source's "
            "type.",
    "release": "give up one reference to a tensor that cast, scale or grad had handed over.",
    "grad": "*out = the parameter's gradient, NULL if it has none. No reference is taken.",
    "swap_data": "put storage->data, of type storage->dtype, under the tensor, and what was there into *storage (O2, "
                 "O3 and O5 alone: at O1 and O4 it is not called).",
    "id": "without id another handle on a parameter's storage is not known as that.",
    "version": "without version casts of weights are kept within a scope alone.",
    "set_grad": "without set_grad gradients are buffers that stay.",
    "scale": "without scale multiply the seed of backward by amp_seed_factor(&scaled).",
}


def hooks(host):
    text = part("hooks")
    found = _found(host)
    if "dtype" in found or "cast" in found:
        text += _types(host)
    for name, signature in SIGNATURES.items():
        if name in found:
            text += signature + " {\n" + found[name] + "}\n\n"
        elif name in REQUIRED:
            text += comment(f"AMP_ADAPT: {DUTIES[name]}", "")
            text += signature + " {\n" + _unused(signature) + _failure(name) + "}\n\n"
        else:
            text += comment(f"AMP_ADAPT? {DUTIES[name]}", "") + "\n"
    return text + part("params_handles", type=host.handle.spelling)


def describe_host(host):
    found, table = _found(host), host_calls_table(host)
    text = f"static void describe_host({host.table.spelling + ' *table' if table else 'void'}) {{\n"
    text += "    host = (amp_host)AMP_HOST_INIT;\n"
    text += "    host.self = table;\n" if table else ""
    text += comment("AMP_ADAPT? host.flags = AMP_HOST_TAPE_RETAINS_INPUTS, if the tape holds references to what ops "
                    "received.")
    for name in SIGNATURES:
        if name in found or name in REQUIRED:
            text += f"    host.{name} = {name};\n"
        if name in REQUIRED and name not in found:
            text += f'    AMP_ADAPT("the hook {name}");\n'
    return text + "}\n\n"


def host_calls_table(host):
    """Does a hook call a function of the table?"""
    return host.table is not None and any("*)self)->" in body for body in _found(host).values())


def _unused(signature):
    names = re.findall(r"(\w+)[,)]", signature)
    return "    " + ", ".join(f"(void){name}" for name in names) + ";\n"


def _failure(name):
    if name == "dtype":
        return "    return AMP_FLOAT32;\n"
    return "" if name == "release" else "    return AMP_ERR_HOST_FAILED;\n"


# ---- what the header makes plain -----------------------------------------------------------------------------------

def _member(struct, names, fits):
    return next((each for each in struct.members or [] if re.fullmatch(names, each.name) and fits(each.type)), None)


def dtype_member(host):
    return _member(host.handle, r"d?type|kind|precision", _is_element_type)


def _is_element_type(kind):
    return isinstance(kind, Enum) and bool(_enumerator(kind, "AMP_FLOAT32"))


def _enumerator(kind, dtype):
    return next((name for name in kind.names if re.search("(^|_)" + FLOATS[dtype], name)), None)


def _type_of(host):
    """The host's enum of element types: the handle's member's, or one whose names say it."""
    member = dtype_member(host)
    if member:
        return member.type
    return next((each for each in host.header.enums.values()
                 if _is_element_type(each) and _enumerator(each, "AMP_FLOAT16")), None)


def _types(host):
    kind = _type_of(host)
    pairs = [(_enumerator(kind, dtype), dtype) for dtype in FLOATS]
    back = "".join(f"    if (dtype == {dtype}) return {name};\n" for name, dtype in pairs[1:] if name)
    cases = "".join(f"    case {name}: return {dtype};\n" for name, dtype in pairs if name)
    return part("types", type=kind.spelling, back=back or "    (void)dtype;\n", float32=pairs[0][0], cases=cases)


def _found(host):
    """name -> body of the hooks that the header shows how to write."""
    handle, made = host.handle, {}
    mine = f"{handle.spelling} *x = tensor;\n    (void)self;\n"
    kind = dtype_member(host)
    if kind:
        made["dtype"] = f"    const {mine}    return from_host(x->{kind.name});\n"
    for hook, names in (("id", "id|uid"), ("version", "_?version")):
        member = _member(handle, names, is_integer)
        if member:
            made[hook] = f"    const {mine}    return (uint64_t)x->{member.name};\n"
    grad = _member(handle, "grad|gradient", lambda each: pointed_struct(each) is handle)
    if grad:
        made["grad"] = f"    const {mine}    *out = x->{grad.name};\n    return AMP_OK;\n"
        made["set_grad"] = (f"    {mine}    x->{grad.name} = gradient; /* moves: neither retained nor released here "
                            f"*/\n"
                            "    return AMP_OK;\n")
    _calls(host, made)
    _elements(host, made, kind)
    return made


def _calls(host, made):
    """The hooks that call a function of the host's, through its table where it stands there."""
    handle = host.handle
    release = _function(host, r"release|unref|decref", [handle]) or _function(host, r"free|delete|destroy", [handle])
    if release:
        made["release"] = f"    (void)self;\n    {release[0]}(tensor);\n"
    if _type_of(host):
        cast = _function(host, r"cast|convert|to", [handle, _type_of(host)], handle)
        if cast:
            made["cast"] = _call(host, cast, "tensor, to_host(to)")
    scale = _function(host, r"scale|mul_scalar|muls", [handle, Number("float")], handle)
    if scale:
        made["scale"] = _call(host, scale, "loss, factor")
    _accessors(host, made)


def _accessors(host, made):
    """Of handles whose members nobody sees: functions that tell of one."""
    handle, kind = host.handle, _type_of(host)
    dtype = kind and _function(host, r"d?type(_of)?|kind", [handle], kind)
    if dtype:
        made.setdefault("dtype", f"    (void)self;\n    return from_host({dtype[0]}(tensor));\n")
    grad = _function(host, r"(get_)?grad(ient)?", [handle], handle)
    if grad:
        made.setdefault("grad", f"    (void)self;\n    *out = {grad[0]}(tensor);\n    return AMP_OK;\n")


def _call(host, function, arguments):
    name, member = function
    through = f"(({host.table.spelling} *)self)->" if member else ""
    unused = "" if member else "    (void)self;\n"
    return f"{unused}    *out = {through}{name}({arguments});\n    return *out ? AMP_OK : AMP_ERR_HOST_FAILED;\n"


def _function(host, names, params, returns=None):
    """(name, is it a member of the table) of the function that is called so and takes that."""
    def fits(kind):
        given = [pointed_struct(each.type) or each.type for each in kind.params]
        result = pointed_struct(kind.returns) or kind.returns
        return given == params and not kind.variadic and (returns is None or result is returns)
    candidates = [(op.name, True) for op in host.ops if host.table and fits(op.type)]
    candidates += [(name, False) for name, each in host.header.functions.items() if fits(each.type) and not each.inline]
    return next((each for each in candidates if re.search(rf"(^|_)({names})_?$", each[0])), None)


def _elements(host, made, kind):
    """view, where the shape is an array of the handle's and the data a member of it or of its storage."""
    handle = host.handle
    data, through = _member(handle, "data|values|ptr", lambda each: isinstance(each, Pointer)), ""
    if not data:
        for each in handle.members or []:
            inner = pointed_struct(each.type)
            found = inner and inner is not handle and _member(inner, "data|values|ptr",
                                                              lambda one: isinstance(one, Pointer))
            if found:
                data, through = found, f"{each.name}->"
    ndim = _member(handle, "n_?dims?|rank|dims_count", is_integer)
    shape = _member(handle, "shape|dims?|sizes?|ne", lambda each: isinstance(each, (Array, Pointer)) and is_integer(
        each.element if isinstance(each, Array) else each.target))
    if not (data and ndim and shape and (kind or floats(data.type))):
        return
    bits = (f"    const amp_dtype type = from_host(x->{kind.name});\n"
            "    out->dtype.code = type == AMP_BFLOAT16 ? 4 : type == AMP_DTYPE_OTHER ? 0 : 2;\n"
            "    out->dtype.bits = type == AMP_FLOAT16 || type == AMP_BFLOAT16 ? 16 : 32;\n"
            if kind else "    out->dtype.code = 2;\n    out->dtype.bits = 32;\n")
    made["view"] = (
        f"    static _Thread_local int64_t shape[8];\n    const {handle.spelling} *x = tensor;\n    (void)self;\n"
        f"    if (x->{ndim.name} > 8) return AMP_ERR_HOST_FAILED;\n"
        f"    for (int i = 0; i < (int)x->{ndim.name}; i++) shape[i] = (int64_t)x->{shape.name}[i];\n"
        f"    out->data = x->{through}{data.name};\n    out->device.type = 1; /* CPU */\n"
        f"    out->ndim = (int32_t)x->{ndim.name};\n"
        f"{bits}    out->dtype.lanes = 1;\n    out->shape = shape; /* compact, row-major */\n    return AMP_OK;\n")
