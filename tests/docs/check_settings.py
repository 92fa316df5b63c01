#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The environment variables of libamp: one list, which makes docs/reference/settings.md and the ENVIRONMENT of
libamp(7).

check_settings.py ROOT           prints TAP: are both made of the list, and does the list have what the code reads?
check_settings.py ROOT --write   writes both
"""
import collections
import pathlib
import re
import sys

Setting = collections.namedtuple("Setting", "name type default meaning")

LIBRARY = [
    Setting("AMP_LOG", "`off`, `error`, `warn`, `info` or `trace`", "`warn`",
            "messages on standard error, for a framework without the hook `event`"),
    Setting("AMP_VERIFY", "switch", "off",
            "compares each wrapped call with its schema, and 16-bit implementations with the op's FP32 function; for "
            "the first run of an adapter, a few times slower"),
    Setting("AMP_TRACE", "file name", "none", "writes each decision, warning and finding to this file, as JSON Lines"),
    Setting("AMP_TRACE_BYTES", "bytes", "64 MiB", "the largest size of that file"),
    Setting("AMP_OBSERVE", "switch, or settings separated by commas: `every=N`, `first=N`, `after_skip=N`, `sample=N`, "
            "`what=inputs+outputs+weights+scaled+gradients+masters+updates`, `names=conv*+fc*`", "off",
            "records the exponents of tensors for the trace, in one iteration of 200 unless `every` says otherwise"),
    Setting("AMP_NUM_THREADS", "integer from 0", "1",
            "threads that work on one call, the calling thread included; 0: one for each processor"),
    Setting("AMP_CPU_MASK", "names such as `sse2,avx2`, `none`, or a number", "all that the processor has",
            "instruction sets that kernels may use"),
    Setting("AMP_MATMUL_BACKEND", "`builtin`, `onednn` or `auto`", "`auto`",
            "code that computes matrix products on CPUs"),
    Setting("AMP_BACKEND_PATH", "absolute folders, separated by colons", "none",
            "folders searched for `libamp_onednn.so` and `libamp_cuda.so` before the folder of libamp itself"),
    Setting("AMP_CUBLASLT", "absolute file name", "searched for", "the library file of cuBLASLt"),
    Setting("AMP_NCCL", "absolute file name", "searched for", "the library file of NCCL"),
]
DARKNET = [
    Setting("AMP_LEVEL", "`O0` to `O5`", "none: darknet runs without libamp", "the level"),
    Setting("AMP_LOSS_SCALE", "`dynamic` or a number above 0", "the level's", "the loss scale"),
    Setting("AMP_INIT_SCALE", "a number up to 2^24", "65536", "the first loss scale, where it is dynamic"),
    Setting("AMP_CHECK_FINITE", "switch", "off", "skips steps with infinite or NaN gradients at O0, O3, O4 and O5 too"),
    Setting("AMP_FP32_MATMUL", "switch", "off",
            "at O0 too, FP32 products by `amp_matmul`: faster, sums in another order; always on from O1"),
    Setting("AMP_GATE", "switch", "on",
            "products that would be slower in 16 bits run in FP32; always off at O2, O3 and O5"),
]
BLAS = [
    Setting("AMP_LEVEL", "`O4`", "none: products are counted", "the callers named below multiply in bfloat16"),
    Setting("AMP_BLAS_CALLERS", "names or patterns, separated by commas", "none: products are counted",
            "objects, such as `libdlib.so.19.1`, or call sites in them"),
    Setting("AMP_GATE", "switch", "on", "products that would be slower in bfloat16 run in FP32"),
]
PYTHON = [
    Setting("LIBAMP_BF16", "switch", "off",
            "O1 of a script means O4, O2 means O5, and O3 is in bfloat16; `python -m libamp.run --bf16`"),
    Setting("LIBAMP_TORCH_OPS", "switch", "off",
            "casts, masters, scaler and fused optimizers use PyTorch's operators on every device; each "
            "`amp.initialize` reads it"),
]
SECTIONS = [
    ("The library", LIBRARY, "The C library reads them, in programs and in Python."),
    ("darknet", DARKNET, "`libamp_darknet.so` reads them ([darknet.md](../start/darknet.md))."),
    ("BLAS", BLAS, "`libamp_blas.so` reads them ([blas.md](../start/blas.md))."),
    ("Python", PYTHON, "The Python package reads them."),
]
# Read by parts of libamp for one another.
INTERNAL = {
    "LIBAMP_APEX", "LIBAMP_CHECK", "LIBAMP_CPU", "LIBAMP_DOCTOR", "LIBAMP_STARTUP_WARNED", "LIBAMP_SURVEY",
    "LIBAMP_SWITCH",
}
NOTES = [
    "A switch is on for `1`, `true`, `yes` or `on`, and off for `0`, `false`, `no`, `off` or nothing, in any case.",
    "Programs that gain privileges when they start (setuid) ignore the variables that name files.",
    "An invalid value is reported when a training begins, with the allowed ones (AMP-M80).",
]
HEAD = """# Settings: environment variables

`tests/docs/check_settings.py . --write` makes this page and `man 7 libamp` from one list.

"""


def page():
    text = HEAD + "\n".join(NOTES) + "\n"
    for title, settings, words in SECTIONS:
        text += f"\n## {title}\n\n{words}\n\n| name | type | default | meaning |\n| --- | --- | --- | --- |\n"
        text += "".join(f"| `{s.name}` | {s.type} | {s.default} | {s.meaning} |\n" for s in settings)
    return text


def manual():
    """The lines of libamp(7) between .SH ENVIRONMENT and .SH FILES."""
    def plain(text):
        return re.sub(r"`([^`]*)`", r"\\fB\1\\fR", text).replace("-", r"\-")

    lines = []
    for setting in LIBRARY:
        meaning = f"{setting.meaning[0].upper()}{setting.meaning[1:]}."
        lines += [".TP", f".B {setting.name}", plain(meaning)]
        lines += [f"Value: {plain(setting.type)}.", f"Default: {plain(setting.default)}."]
    return "\n".join([*lines, ".PP", *map(plain, NOTES)]) + "\n"


def made(root):
    """(path, its text as the list makes it)"""
    yield root / "docs/reference/settings.md", page()
    path = root / "docs/man/libamp.7.in"
    before, rest = path.read_text(encoding="utf-8").split(".SH ENVIRONMENT\n")
    yield path, f"{before}.SH ENVIRONMENT\n{manual()}.SH FILES\n{rest.split('.SH FILES' + chr(10))[1]}"


READS = re.compile(r"(?:getenv|environ(?:\.get)?|switch|read_\w+|number|VARIABLE|search = \{)"
                   r'\W{0,8}"((?:LIB)?AMP_[A-Z0-9_]+)"')


def read_by(root, *places):
    """What C and Python take from the environment: names in quotes beside a function that reads it."""
    found = set()
    for place in places:
        for path in (root / place).rglob("*"):
            if path.suffix in {".c", ".h", ".hpp", ".py", ".inc"}:
                found |= set(READS.findall(path.read_text(encoding="utf-8")))
    return found


def complaints(root):
    yield "pages are made of the list: check_settings.py . --write", [
        str(path) for path, text in made(root) if path.read_text(encoding="utf-8") != text]
    listed = {setting.name for _, settings, _ in SECTIONS for setting in settings}
    code = read_by(root, "src", "adapters", "bindings/python/libamp", "include")
    yield "the code's variables were found", [] if len(code) > 12 else sorted(code)
    yield "the list has what the code reads", sorted(code - listed - INTERNAL)
    everything = "".join(path.read_text(encoding="utf-8") for place in ("src", "adapters", "bindings/python/libamp")
                         for path in (root / place).rglob("*") if path.suffix in {".c", ".h", ".py"})
    yield "and nothing else", sorted(name for name in listed if f'"{name}"' not in everything)


def main():
    root = pathlib.Path(sys.argv[1])
    if sys.argv[2:] == ["--write"]:
        for path, text in list(made(root)):
            path.write_text(text, encoding="utf-8")
        return
    number = 0
    for number, (what, faults) in enumerate(complaints(root), 1):
        print(f"{'not ok' if faults else 'ok'} {number} - {what}")
        for fault in faults:
            print(f"# {fault}")
    print(f"1..{number}")


if __name__ == "__main__":
    main()
