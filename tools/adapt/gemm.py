# SPDX-License-Identifier: Apache-2.0
"""BLAS' gemm, known by its arguments: extents that are filled in, and the same product in 16 bits by amp_matmul."""
import textwrap

from c_types import Enum, Number, Pointer, declared, floats, is_integer

NEEDED = ("ta", "tb", "m", "n", "k", "alpha", "a", "lda", "b", "ldb", "beta", "c", "ldc")
INTEGERS = set(NEEDED) - {"alpha", "a", "b", "beta", "c"}
ROLES = {**{name: name for name in NEEDED}, "layout": "layout", "order": "layout", "transa": "ta", "transb": "tb"}
ROW_MAJOR, NO_TRANS = 101, 111  # of cblas.h


def recognise(op):
    """role -> argument of a float gemm, or None. Flags are cblas' enums, or integers that are 0 for no."""
    found = {}
    for each in op.arguments:
        role = ROLES.get(each.name.rstrip("_").lower())
        if role is None or role in found:
            return None
        found[role] = each
    if not set(NEEDED) <= set(found) or (("layout" in found) != isinstance(found["ta"].type, Enum)):
        return None
    buffers = all(floats(found[role].type) and isinstance(found[role].type, Pointer)
                  and found[role].type.target == Number("float") for role in "abc")
    integers = all(is_integer(found[role].type) and found[role].type != Number("char") for role in INTEGERS)
    return found if buffers and integers else None


def fill_in(op):
    """Its buffers' extents."""
    found = recognise(op)
    if not found:
        return
    name = {role: each.name for role, each in found.items()}
    row = f"{name['layout']}=={ROW_MAJOR}" if "layout" in found else ""
    ta, tb = (f"{name[role]}!={NO_TRANS}" if row else name[role] for role in ("ta", "tb"))
    m, n, k = name["m"], name["n"], name["k"]

    def extents(rows, columns, transposed, stride):
        turned = f"({row})==({transposed})" if row and transposed else row.replace("==", "!=") or transposed
        shape = f"{turned}?{columns}:{rows}, {turned}?{rows}:{columns}" if turned else f"{rows}, {columns}"
        return f"[{shape} : {name[stride]}]"
    for role, mark, shape in (("a", "", extents(m, k, ta, "lda")), ("b", "", extents(k, n, tb, "ldb")),
                              ("c", "(a!)", extents(m, n, "", "ldc"))):
        found[role].schema, found[role].question = f"float{mark} {name[role]}{shape}", ""


PAD = "\n        "


def _wrapped(words):
    return PAD.join(textwrap.wrap(", ".join(words), 110))


def implementation(op):
    """NAME_fp16 and NAME_bf16 in C."""
    found = recognise(op)
    if not found:
        return ""
    name = {role: each.name for role, each in found.items()}
    params = _wrapped(f"const void *{each.name}" if each in (found["a"], found["b"]) else declared(each.type, each.name)
                      for each in op.arguments)
    given = ", ".join(each.name for each in op.arguments)
    swapped = {"layout": str(ROW_MAJOR), "ta": name["tb"], "tb": name["ta"], "m": name["n"], "n": name["m"],
               "a": name["b"], "lda": name["ldb"], "b": name["a"], "ldb": name["lda"]}
    roles = {each.name: role for role, each in found.items()}
    turned = ", ".join(swapped.get(roles[each.name], each.name) for each in op.arguments)
    flag = f" != {NO_TRANS}" if "layout" in found else " != 0"
    column = (f"    if ({name['layout']} != {ROW_MAJOR}) { '{' } /* by columns: the transposed product by rows */\n"
              f"        {op.name}_low(low, {turned});\n        return;\n    {'}'}\n") if "layout" in found else ""
    return (
        "/* The product in 16 bits: A and B come as such copies, C is the program's own FP32 buffer. */\n"
        f"static void {op.name}_low(amp_dtype low,{PAD}{params}) {{\n{column}"
        "    amp_matmul_args g = AMP_MATMUL_ARGS_INIT;\n"
        f"    g.transpose_a = {name['ta']}{flag}, g.transpose_b = {name['tb']}{flag};\n"
        f"    g.m = {name['m']}, g.n = {name['n']}, g.k = {name['k']};\n"
        f"    g.alpha = {name['alpha']}, g.beta = {name['beta']};\n"
        f"    g.a = {name['a']}, g.ld_a = {name['lda']}, g.a_dtype = low;\n"
        f"    g.b = {name['b']}, g.ld_b = {name['ldb']}, g.b_dtype = low;\n"
        f"    g.c = g.d = {name['c']}, g.ld_c = g.ld_d = {name['ldc']}, g.c_dtype = g.d_dtype = AMP_FLOAT32;\n"
        "    if (amp_matmul(&g) != AMP_OK) abort(); /* out of memory */\n}\n\n"
        + "".join(f"static void {op.name}_{low}({PAD.lstrip(' ')}{params}) "
                  f"{{\n    {op.name}_low({dtype}, {given});\n}}\n\n"
                  for low, dtype in (("fp16", "AMP_FLOAT16"), ("bf16", "AMP_BFLOAT16"))))
