#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/adapt/c_header.py, which reads C headers: test_header.py SOURCE. Prints TAP."""
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "tools" / "adapt"), str(HERE.parent / "packaging")]
from support import Tap, compiler, expect, scratch  # noqa: E402  pylint: disable=wrong-import-position

import c_header  # noqa: E402  pylint: disable=wrong-import-position
from c_types import (  # noqa: E402  pylint: disable=wrong-import-position
    Array, Enum, Number, Pointer, Struct, floats, is_function)


def refused(what, *words):
    try:
        what()
    except c_header.HeaderError as error:
        for word in words:
            expect(word in str(error), f"no {word!r} in: {error}")
        return
    expect(False, f"it was taken; wanted: {words}")


def read(text, folder, name="host.h", flags=()):
    (folder / name).write_text(text, encoding="utf-8")
    return c_header.read(folder / name, flags, compiler())


def main():
    tap = Tap()
    if c_header.c_parser is None:
        tap.skip_all("there is no pycparser (Debian: python3-pycparser)")
    header = c_header.read(HERE / "traps.h", (), compiler())

    with tap.test("attributes, asm, GNU expressions and bodies are no obstacle"):
        gemm = header.function("nn_gemm").type
        expect([each.name for each in gemm.params][:3] == ["TA", "TB", "M"] and len(gemm.params) == 13, gemm)
        expect(header.function("nn_half").inline and not header.function("nn_gemm").inline, "inline")
    with tap.test("typedefs are followed, those of the C library stay"):
        dense = header.function("nn_dense_forward").type
        expect(floats(dense.params[0].type) and not dense.params[0].type.to_const, dense.params[0])
        expect(dense.params[1].type.to_const, dense.params[1])
        expect(dense.params[4].type == Number("int64_t"), dense.params[4])
    with tap.test("extents in a prototype are read"):
        params = header.function("nn_crossentropy_backward").type.params
        expect(params[2].type == Array(Array(Number("float"), "v"), "n"), params[2])
        expect(header.function("nn_smooth").type.params[0].type == Array(Number("float"), "16"), "window")
    with tap.test("structs: tables, bit-fields, unions, one that knows itself"):
        layer = header.struct("layer")
        kinds = {each.name: each for each in layer.members}
        expect(isinstance(kinds["type"].type, Enum) and kinds["type"].type.names[1] == "CONNECTED", "enum")
        expect(is_function(kinds["forward"].type), "function")
        expect(kinds["frozen"].bits and kinds["extra"].type.union and kinds["next"].type == Pointer(layer), "members")
        expect(layer.spelling == "struct layer" and header.struct("update_args").spelling == "update_args", "spelling")
        expect(isinstance(kinds["forward"].type.target.params[0].type, Struct), "by value")
    with tap.test("what is no function says what it is"):
        refused(lambda: header.function("nn_gemm_fast"), "nn_gemm_fast is a macro", "Say nn_gemm")
        refused(lambda: header.function("nn_square"), "nn_square is a macro", "Say the function that it calls")
        refused(lambda: header.function("nn_dense_fwd"), "declares no function nn_dense_fwd", "nn_dense_forward")
        refused(lambda: header.struct("layr"), "declares no struct layr", "layer")
        refused(lambda: header.struct("bits"), "is a union")
    with scratch() as folder:
        with tap.test("a struct that is only declared, C++, a header that does not compile, none at all"):
            refused(lambda: read("struct a; void f(struct a *);\n", folder).struct("a"), "not its members")
            refused(lambda: read("#include <vector>\nnamespace nn { int f(); }\n", folder), "is C++", "amp.hpp")
            refused(lambda: read("template <class T> T f(T);\n", folder), "is C++")
            refused(lambda: read("#include \"absent.h\"\n", folder), "give what it needs with -I and -D", "absent.h")
            refused(lambda: read("int f(int x;\n", folder), "pycparser cannot read", "host.h:1")
            refused(lambda: c_header.read(folder / "none.h"), "none.h: No such file")
        with tap.test("-I and -D are passed on, lines are the header's"):
            (folder / "inc").mkdir()
            (folder / "inc" / "type.h").write_text("typedef REAL real;\n", encoding="utf-8")
            given = read("#include <type.h>\n\nvoid f(const real *x);\n", folder,
                         flags=[f"-I{folder}/inc", "-DREAL=double"])
            expect(given.function("f").type.params[0].type == Pointer(Number("double"), True), given.function("f"))
            expect(given.function("f").where.endswith("host.h:3"), given.function("f").where)
        with tap.test("C for C++ programs is C"):
            text = ("#ifdef __cplusplus\nnamespace n {}\nextern \"C\" {\n#endif\n"
                    "long int f(unsigned long int a, short int);\n#ifdef __cplusplus\n}\n#endif\n")
            kind = read(text, folder).function("f").type
            expect([kind.returns, *[each.type for each in kind.params]]
                   == [Number("long"), Number("unsigned long"), Number("short")], kind)
    tap.done()


if __name__ == "__main__":
    main()
