# SPDX-License-Identifier: Apache-2.0
"""BLAS' gemm, known by its arguments: extents that are filled in, and the same product in 16 bits by amp_matmul. In C,
in cblas', and in Fortran's spelling, where all arguments are pointers and matrices lie by columns."""
import textwrap

from c_types import Enum, Number, Pointer, declared, floats, is_integer

NEEDED = ("ta", "tb", "m", "n", "k", "alpha", "a", "lda", "b", "ldb", "beta", "c", "ldc")
INTEGERS = set(NEEDED) - {"alpha", "a", "b", "beta", "c"}
ROLES = {**{name: name for name in NEEDED}, "layout": "layout", "order": "layout", "transa": "ta", "transb": "tb"}
ROW_MAJOR, NO_TRANS = 101, 111  # of cblas.h


def by_reference(found):
    """Is it Fortran's? Its flags are letters."""
    return isinstance(found["m"].type, Pointer)


def _is(number, pointed):
    """A test of types: of this number, or a pointer to it."""
    return lambda type_: isinstance(type_, Pointer) and number(type_.target) if pointed else number(type_)


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
    fortran = by_reference(found)
    letters = {"ta", "tb"} if fortran else set()
    integer = _is(lambda type_: is_integer(type_) and type_ != Number("char"), fortran)
    integers = all(integer(found[role].type) for role in INTEGERS - letters)
    flags = all(_is(lambda type_: type_ == Number("char"), True)(found[role].type) for role in letters)
    factors = not fortran or (floats(found["alpha"].type) and floats(found["beta"].type))
    return found if buffers and integers and flags and factors else None


def fill_in(op):
    """Its buffers' extents."""
    found = recognise(op)
    if not found:
        return
    if by_reference(found):
        _fill_in_columns(found)
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


def _fill_in_columns(found):
    """By columns: each matrix is the transposed one by rows."""
    for role in INTEGERS:
        found[role].schema, found[role].question = declared(found[role].type, found[role].name), ""
    for role in ("alpha", "beta"):
        found[role].schema, found[role].question = f"const void *{found[role].name}", ""
    at = {role: f"*{each.name}" for role, each in found.items()}

    def turns(flag, rows, columns):
        plain = f"{at[flag]}=={ord('N')}||{at[flag]}=={ord('n')}"
        return f"{plain}?{at[columns]}:{at[rows]}, {plain}?{at[rows]}:{at[columns]}"
    for role, mark, shape in (("a", "", turns("ta", "m", "k")), ("b", "", turns("tb", "k", "n")),
                              ("c", "(a!)", f"{at['n']}, {at['m']}")):
        found[role].schema, found[role].question = f"float{mark} {found[role].name}[{shape} : {at['ld' + role]}]", ""


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
    if by_reference(found):
        at = {role: f"*{each.name}" for role, each in found.items()}
        no = {role: f"{at[role]} != 'N' && {at[role]} != 'n'" for role in ("ta", "tb")}
        return _low(op, params, given, (
            "    /* by columns: the transposed product by rows */\n"
            "    amp_matmul_args g = AMP_MATMUL_ARGS_INIT;\n"
            f"    g.transpose_a = {no['tb']}, g.transpose_b = {no['ta']};\n"
            f"    g.m = {at['n']}, g.n = {at['m']}, g.k = {at['k']};\n"
            f"    g.alpha = {at['alpha']}, g.beta = {at['beta']};\n"
            f"    g.a = {name['b']}, g.ld_a = {at['ldb']}, g.a_dtype = low;\n"
            f"    g.b = {name['a']}, g.ld_b = {at['lda']}, g.b_dtype = low;\n"
            f"    g.c = g.d = {name['c']}, g.ld_c = g.ld_d = {at['ldc']}, g.c_dtype = g.d_dtype = AMP_FLOAT32;\n"))
    flag = f" != {NO_TRANS}" if "layout" in found else " != 0"
    column = (f"    if ({name['layout']} != {ROW_MAJOR}) { '{' } /* by columns: the transposed product by rows */\n"
              f"        {op.name}_low(low, {turned});\n        return;\n    {'}'}\n") if "layout" in found else ""
    return _low(op, params, given, column + (
        "    amp_matmul_args g = AMP_MATMUL_ARGS_INIT;\n"
        f"    g.transpose_a = {name['ta']}{flag}, g.transpose_b = {name['tb']}{flag};\n"
        f"    g.m = {name['m']}, g.n = {name['n']}, g.k = {name['k']};\n"
        f"    g.alpha = {name['alpha']}, g.beta = {name['beta']};\n"
        f"    g.a = {name['a']}, g.ld_a = {name['lda']}, g.a_dtype = low;\n"
        f"    g.b = {name['b']}, g.ld_b = {name['ldb']}, g.b_dtype = low;\n"
        f"    g.c = g.d = {name['c']}, g.ld_c = g.ld_d = {name['ldc']}, g.c_dtype = g.d_dtype = AMP_FLOAT32;\n"))


def _low(op, params, given, body):
    return (
        "/* The product in 16 bits: A and B come as such copies, C is the program's own FP32 buffer. */\n"
        f"static void {op.name}_low(amp_dtype low,{PAD}{params}) {{\n{body}"
        "    if (amp_matmul(&g) != AMP_OK) abort(); /* out of memory */\n}\n\n"
        + "".join(f"static void {op.name}_{low}({PAD.lstrip(' ')}{params}) "
                  f"{{\n    {op.name}_low({dtype}, {given});\n}}\n\n"
                  for low, dtype in (("fp16", "AMP_FLOAT16"), ("bf16", "AMP_BFLOAT16"))))
