#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""amp-adapt on headers: test_adapt.py SOURCE LIBAMP LIBMINITAPE CC... Prints TAP.

What it writes compiles without a warning, can be initialized at every level, and says by name what is missing: by
libamp's findings, and by those of its own questions that no finding knows.
"""
import contextlib
import io
import os
import pathlib
import re
import sys

from adapt import HERE, Place, Tap, expect, run, scratch, skip_unless_supported

sys.path.insert(0, str(HERE.parents[1] / "tools" / "adapt"))
import cli  # noqa: E402  pylint: disable=wrong-import-position

FUNCTIONS = ["nn_dense_forward", "nn_dense_backward", "nn_softmax", "nn_gemm", "nn_crossentropy_backward", "nn_smooth",
             "nn_apply", "nn_step"]
NO_PARAMS = r"AMP-M08 .*AMP_ADAPT: describe_params"
DARKNET = os.environ.get("AMP_TEST_DARKNET", "/usr/lib/darknet/include/darknet.h")
# What is refused, and what is said of it.
REFUSED = [
    ("traps.h nn_gem", "declares no function nn_gem.", "nn_gemm"),
    ("traps.h nn_log", "traps.h:", "nn_log takes any number of arguments"),
    ("traps.h nn_reset", "nn_reset has no prototype", "write (void)"),
    ("traps.h nn_gemm_fast", "nn_gemm_fast is a macro", "Say nn_gemm"),
    ("traps.h nn_half", "nn_half is static or inline", "the next function around it", "delete static"),
    ("one.c linear_forward", "one.c:1: linear_forward is defined here", "prototypes in a header of their own (net.h)"),
    ("traps.h nn_softmax --step nn_step", "--step nn_step", "nn_step takes buffers", "adapter_step_begin"),
    ("names.h walk --step walk", "names.h: no op is left"),
    ("traps.h nn_step", "traps.h: no op is left"),
    ("names.h linear --force -o names.h", "names.h is the header that is read"),
    ('a"b.h linear', 'a"b.h: no #include', "rename it"),
    ("names.h linear --force -o /dev/full", "/dev/full: No space left"),
    ("traps.h nn_bits", "argument 1 (b) is bits by value", "it is a union"),
    ("traps.h nn_nibbles", "argument 1 (n) is nibbles by value", "has the bit-field low"),
    ("nameless.h scale", "argument 2 (s) is (no name) by value", "it has no name"),
    ("traps.h nn_rotate", "nn_rotate", "schemas have no such type"),
    ("traps.h --table layr", "declares no struct layr", "layer"),
    ("traps.h --table nn_ops", "nn_ops is a variable"),
    ("traps.h nn_train --start nn_train", "nn_train takes a function pointer"),
    ("traps.h nn_gemm --seed nn_softmax.weight", "nn_softmax has no argument weight that is a float"),
    ("traps.h nn_gemm --step layer.update", "a slot with --table alone", "adapter_step_begin"),
    ("traps.h nn_gemm --step nn_walk", "declares no function nn_walk"),
    ("traps.h --table layer --start nn_train", "not with --table"),
    ("traps.h --table affine", "affine has no function pointers"),
    ("traps.h --table layer nn_gemm", "give functions, or --table STRUCT"),
    ("traps.h", "give functions, or --table STRUCT"),
    ("traps.h nn_gemm --handle tensor", "--handle tensor: no struct is known by that name"),
    ("traps.h nn_gemm --host handles", "no type is seen to be a tensor's handle"),
    ("cxx.hpp f", "is C++", "amp.hpp"),
    ("none.h f", "none.h: No such file"),
    ("traps.h nn_gemm -o there.c", "there.c is there, and may hold what you filled in"),
]


def tried(place, name, *more, levels=("O1",)):
    """Compiles what was written, as it comes, and gives what it says when it is tried."""
    place.compile(name, "-fsyntax-only", f"{name}.c", *more)
    place.compile(name, "-DADAPTER_TRY", f"{name}.c", *more)
    return "".join(place.run(name, ADAPTER_LEVEL=level) for level in levels)


def finds(said, *words):
    for word in words:
        expect(re.search(word, said), f"no {word!r} in:\n{said}")


def functions(place):
    place.adapt("traps.h", *FUNCTIONS, "-o", "raw.c")
    said = tried(place, "raw", levels=("O1", "O5", "O0"))
    finds(said, "AMP-M11 op nn_dense_forward is of class lower", "AMP-M11 op nn_dense_backward", NO_PARAMS,
          r"AMP-M12 .*nn_softmax", "AMP_ADAPT raw.c: nn_dense_forward: 4 pointers", r"AMP_ADAPT raw.c:\d+: visit",
          "level O5", "level O0")
    expect("AMP-M11 op nn_gemm" not in said, f"gemm is known by its arguments:\n{said}")
    text = place.read("raw.c")
    finds(text, r'"float \*weight, " +/\* AMP_ADAPT: float weight\[\.\.\.\] \*/', r"AMP_ADAPT: float\(a!\) dweight\[",
          r"AMP_ADAPT: float\(seed\) dlosses\[", r"float A\[TA\?K:M, TA\?M:K : lda\]",
          r'backward_of = "nn_dense_forward"', r"offsetof\(struct layer, nweights\)",
          r'members = "float scale, float shift, int n"', r"AMP_LEAVE")
    expect("TRAMPOLINE(nn_step)" not in text, "an update of one buffer is no step slot")
    place.write("bare.h", "void linear_forward(float *, const float *x, int n);\nvoid relu(float *x, int);\n")
    finds(place.adapt("bare.h", "linear_forward", "relu", "-o", "bare.c"), "linear_forward: arguments without")


def layers(place):
    said = place.adapt("traps.h", "--table", "layer", "-o", "layers.c")
    finds(said, "forward_gpu is left out")
    finds(tried(place, "layers", levels=("O1", "O2")), NO_PARAMS, r"AMP_ADAPT layers.c:\d+: visit")
    finds(place.read("layers.c"), r'\[CONNECTED\] = \{ "linear", AMP_BY_LIST \}', r'\[COST\] = \{ "cost", AMP_LEAVE \}',
          r"FIELD\(l->weights, 0, READ, READ\); /\* l->nweights\? \*/", r"FIELD\(n->workspace, 0, SCRATCH, SCRATCH\)",
          r"param\(numbered\(i, \"biases\"\), x->biases, x->bias_updates, 0 /\* x->nbiases\? \*/",
          r"steps\[n_steps\+\+\]")


def pairs(place):
    """duet, a framework in the manner of darknet, with the answers of duet.diff: at O0 it is as it was."""
    duet, common = place.source / "tests" / "hosts" / "pairs", place.source / "tests" / "hosts" / "common"
    place.adapt(duet / "duet.h", "--table", "layer", "-o", "pairs.c")
    finds(place.read("pairs.c"), rf"cc -DADAPTER_TRY pairs\.c -I{duet} ")
    place.answered("pairs.c", (HERE / "duet.diff").read_text(encoding="utf-8"))
    place.compile("pairs", "-ffp-contract=off", "pairs.c", HERE / "duet_main.c", f"-I{duet}", f"-I{common}",
                  common / "math.c", *(duet / f"{name}.c" for name in ("duet", "layers", "blas")), "-pthread")
    alone, costs = place.run("pairs"), []
    for level, low in (("O0", 0), ("O1", 4), ("O2", 8), ("O4", 4)):
        said = place.run("pairs", ADAPTER_LEVEL=level, AMP_VERIFY="1")
        finds(said, "\nsound\n", f"{low} ran in (fp|bf)16", "gradients seen in 6, missing in 0")
        expect("AMP_ADAPT" not in said and (level != "O0" or said.startswith(alone)), said)
        costs.append(float(re.search(r"cost (\S+)", said).group(1)))
    near_but_not_the_same(costs)


def near_but_not_the_same(values):
    """The first is FP32's. 16 bits round by 2^-9 at most; a wrong scale or sum is a factor."""
    expect(values[0] not in values[1:] and all(abs(each / values[0] - 1) < 0.05 for each in values[1:]), f"{values}")


def handles(place, minitape):
    place.adapt(place.source / "demo" / "host" / "minitape.h", "--table", "mt_ops", "-o", "tape.c")
    flags = [f"-I{place.source}/demo/host", minitape]
    # unanswered, it scales nothing that nobody unscales
    finds(tried(place, "tape", *flags), "loss scale static 1", r"AMP_ADAPT tape.c:\d+: the hook swap_data",
          r"AMP_ADAPT tape.c:\d+: describe_params")
    # the adapter that was written by hand says the same of the table
    by_hand, written = [re.sub(r'"\s*\n\s*"', "", text) for text in (
        (place.source / "demo" / "adapter.c").read_text(encoding="utf-8"), place.read("tape.c"))]
    for name in ("conv2d", "relu", "linear", "max_pool2d", "log_softmax", "cat", "scale"):
        wanted = re.search(rf'"{name}(\([^"]*\) -> \w+)"', by_hand).group(1).replace("int32", "int")
        expect(f'"{name}{wanted}"' in written, f"{name}: not {wanted}")


def tape(place, minitape):
    """The same adapter with its two parameters told, in a training."""
    text = place.read("tape.c")
    open_params = re.search(r'    AMP_ADAPT\("describe_params: .*?\n', text).group()
    place.write("tape.c", text.replace(open_params, """    extern struct mt_tensor *weight, *bias;
    param("weight", weight, 1, AMP_MODULE_OTHER);
    param("bias", bias, 1, AMP_MODULE_OTHER);
"""))
    place.compile("tape", "tape.c", HERE / "tape_main.c", f"-I{place.source}/demo/host", minitape)
    losses = []
    for level, low in (("O0", 0), ("O1", 1), ("O4", 1)):
        said = place.run("tape", ADAPTER_LEVEL=level)
        finds(said, "\nsound\n", f"{low} ran in (fp|bf)16", "gradients seen in 2, missing in 0", "60 steps")
        losses.append(float(re.search(r"loss (\S+),", said).group(1)))
    near_but_not_the_same(losses)


def blas(place):
    header = run(*place.compiler, "-E", "-x", "c", "-include", "cblas.h", "/dev/null")
    path = re.search(r'^# 1 "([^"]*cblas[^"]*\.h)"', header, re.MULTILINE).group(1)
    place.adapt(path, "cblas_sgemm", "cblas_sgemv", "cblas_saxpy", "-o", "blas.c")
    said = tried(place, "blas", f"-I{pathlib.Path(path).parent}")
    finds(said, "AMP-M11 op cblas_sgemv", r"AMP_ADAPT: describe_params", "AMP_ADAPT blas.c: cblas_saxpy: 2 pointers")
    expect("AMP-M11 op cblas_sgemm" not in said, said)


def gemm(place):
    """All spellings, in every order and transposition, run in 16 bits and are what they are in FP32."""
    for name in ("gemm.h", "gemm.c", "gemm_main.c"):
        place.write(name, (HERE / name).read_text(encoding="utf-8"))
    place.adapt("gemm.h", "cblas_sgemm", "nn_gemm", "sgemm_", "-o", "product.c")
    asked = re.search(r"op\(\"sgemm_\".*?;", place.read("product.c"), re.DOTALL)[0]
    expect("AMP_ADAPT" not in asked, asked)
    run(*place.compiler, "-O1", "-fPIC", "-fsemantic-interposition", "-shared", "-o", "libgemm.so", "gemm.c",
        cwd=place.folder)
    place.compile("gemm", "gemm_main.c", "product.c", "./libgemm.so")
    wanted = place.run("gemm")
    expect(len(set(wanted.splitlines())) == 8, f"it shows too little:\n{wanted}")
    for level, low in (("O1", "fp16"), ("O4", "bf16")):
        said = place.run("gemm", "adapted", ADAPTER_LEVEL=level)
        finds(said, f"3 ran in {low} at their last call; 16 calls")
        expect(wanted in said, f"{level} has another product:\n{said}")


def darknet(place):
    place.adapt(DARKNET, "--table", "layer", "-o", "darknet.c")
    said = tried(place, "darknet", f"-I{pathlib.Path(DARKNET).parent}", levels=("O1", "O5"))
    finds(said, NO_PARAMS, r"AMP_ADAPT darknet.c:\d+: visit")
    finds(place.read("darknet.c"), r'\[CONVOLUTIONAL\] = \{ "conv2d"', r"FIELD\(l->weight_updates, 0, KEEP, UPDATE\)")


def refused(arguments):
    """What the tool says, in this process."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        expect(cli.main(arguments) == 1, f"{arguments} was taken")
    return said.getvalue()


def names(place):
    place.write("names.h",
                "typedef float op;\nvoid field(op *x, int n);\nextern int param, weights;\nenum { count, visit };\n"
                "struct fields { float *ops; int n; };\nvoid linear(op *host, struct fields *m, int n);\n"
                "void walk(int n);\n")
    place.adapt("names.h", "linear", "field", "-o", "names.c")
    finds(tried(place, "names"), "AMP_ADAPT names.c: linear: 1 pointers")


def uses(place):
    """Which of the buffers are read and written."""
    place.write("uses.h", "void relu_forward(float *x, int n);\nvoid add_inplace(float *x, float *b, int n);\n"
                "void product(float *a, float *b, float beta, float *c);\nvoid copy(float *out, const float *x, "
                "int n);\nvoid tanh_forward(float *y, int n);\nvoid scale(float *dX, const float *mean);\n"
                "int top(float *z, int n);\n")
    place.adapt("uses.h", "relu_forward", "add_inplace", "product", "copy", "tanh_forward", "scale", "top", "-o",
                "uses.c")
    asked = re.findall(r"AMP_ADAPT: float((?:\(.*?\))? \w+\[.*?\].*?) \*/", place.read("uses.c"))
    expect(asked == ["(a!) x[n] ?", "(a!) x[n] ?", " b[n] ?", " a[...] ?", " b[...] ?", "(a!) c[...] ?",
                     "(out a!) out[n] ?", " x[n]", "(a!) y[n] ?", "(a!) dX[...] ?", "(keep) mean[...] ?", " z[n] ?"],
           asked)


def written(place):
    """A function that returns what it makes writes into no argument, whatever its name is."""
    place.write("handles.h", "typedef struct tensor *tn;\ntn cross_entropy(tn logits, const int *y);\n"
                "float mse(tn output, tn x);\nvoid add(tn out, tn a, tn b);\n")
    place.adapt("handles.h", "cross_entropy", "mse", "add", "-o", "handles.c")
    text = place.read("handles.c")
    expect(all(each in text for each in ('"Tensor logits, ', '"Tensor output, ', '"Tensor(out a!) out, ')), text)


BRACKETS = """#include <amp.h>
amp_status uses_start(void);
amp_status uses_begin(void);
amp_status uses_end(void);
amp_status uses_stop(void);
int main(void) {
    if (uses_start()) return 2;
    return uses_begin() || !uses_begin() || uses_end() || uses_begin() || uses_end() || uses_stop();
}
"""


def brackets(place):
    """A begin too many is refused, and the bracket stays open; a scale that is none ends the start."""
    place.write("brackets.c", BRACKETS)
    place.compile("brackets", "brackets.c", "uses.c")
    place.run("brackets")
    for scale in ("abc", "0", "-1", "", "8x"):
        finds(place.run("brackets", status=2, ADAPTER_SCALE=scale),
              f"ADAPTER_SCALE={scale}: a static loss scale is a number")


def installed(tap, header, package, is_there, check):
    if is_there:
        with tap.test(f"{header}, as it is installed"):
            check()
        return
    tap.number += 1
    print(f"ok {tap.number} - {header} # SKIP it is not installed (Debian: {package})")


def main():
    source, library, minitape, compiler = *(pathlib.Path(each).resolve() for each in sys.argv[1:4]), sys.argv[4:]
    tap = Tap()
    skip_unless_supported(tap)
    with scratch() as folder:
        os.environ["CC"] = " ".join(compiler)
        os.chdir(folder)
        place = Place(folder, source, library, compiler)
        place.write("traps.h", (HERE / "traps.h").read_text(encoding="utf-8"))
        place.write("cxx.hpp", "namespace n { int f(); }\n")
        place.write("there.c", "")
        place.write("nameless.h", "void scale(float *y, struct { int n; } s);\n")
        place.write("one.c", "void linear_forward(float *y, const float *x, int n) { y[0] = x[n - 1]; }\n")
        with tap.test("functions over float arrays: findings and questions name each that is missing"):
            functions(place)
        with tap.test("layers that hold their functions, structs by value"):
            layers(place)
        with tap.test("and train, when sizes, roles and parameters are told"):
            pairs(place)
        with tap.test("a table of ops on tensors: the hooks that the header shows are written"):
            handles(place, minitape)
        with tap.test("and train, when the parameters are told"):
            tape(place, minitape)
        with tap.test("a matrix product is known by its arguments, and runs in 16 bits"):
            gemm(place)
        with tap.test("a header that has taken the adapter's own names"):
            names(place)
        with tap.test("buffers that are changed in place are offered as such"):
            uses(place)
            written(place)
        with tap.test("a bracket outlives a begin too many, and a wrong scale is refused"):
            brackets(place)
        installed(tap, "cblas.h", "libblas-dev", place.knows("cblas.h"), lambda: blas(place))
        installed(tap, DARKNET, "darknet", pathlib.Path(DARKNET).exists(), lambda: darknet(place))
        with tap.test("what cannot be adapted is refused: what, where, what to do"):
            for arguments, *words in REFUSED:
                said = refused(arguments.split())
                finds(said, *map(re.escape, words))
            expect(place.read("there.c") == "", "there.c was written over")
            place.write("deep.h", "struct { " * 5000 + "int a; " + "} x; " * 4999 + "} top;\nvoid f(float *x);\n")
            place.write("chain.h", "struct s0 { int a; };\n" + "".join(
                f"struct s{n} {{ struct s{n - 1} a; }};\n" for n in range(1, 2000)) + "void f(struct s1999 s);\n")
            for header in ("deep.h", "chain.h"):  # pycparser follows the first, amp-adapt alone the second
                finds(refused([header, "f"]), f"{header} nests structs or parentheses deeper than can be followed")
        with tap.test("--help begins with examples; output without -o is C"):
            finds(place.adapt("--help"), r"amp-adapt net\.h dense_forward", r"--table layer")
            finds(place.adapt("traps.h", "nn_softmax"), r"^/\*\n \* libamp's adapter for traps\.h")
    tap.done()


if __name__ == "__main__":
    main()
