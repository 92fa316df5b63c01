#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The rules of the house that a machine can keep: check_layers.py ROOT

Who may include whom, which calls src/ never makes, what public headers and examples may see, SPDX lines, file sizes.
The tables below are the rules; docs: CONTRIBUTING.md. test_check_layers.py plants a violation of each.
"""
import ast
import os
import pathlib
import re
import sys

import structs

# Row of each room of src/; "" is initialize.c and scale_loss.c. A room may include rooms of lower rows and itself.
ROWS = {
    "common": 0,
    "system": 1,
    "kernels": 2, "host": 2, "scaler": 2,
    "nccl": 3, "schema": 3, "optim": 3, "opt_levels": 3,
    "intercept": 4, "master": 4,
    "context": 5,
    "call": 6, "raw": 6, "observe": 6,
    "bracket": 7, "survey": 7,
    "state": 8,
    "api": 9, "": 10,
}
# But for these. rules.h is arithmetic that a device runs too; a context has a cache; a call's buffers are handled by
# raw/ with the means of call/, in files that do not include each other in a circle. Instruments, observe/ among them,
# see calls through context/probe.h alone.
ALLOWED = {
    ("kernels", "scaler/rules.h"), ("context", "call/cache.h"), ("raw", "call/call.h"), ("call", "raw/raw.h"),
}
# Headers that few .c files of src/ see, directly or through other headers. Lower the number when it falls; a file that
# needs part of a context takes that part (context/parts.h).
SEEN_BY = {"src/context/context.h": 19}
# Files directly in src/: all others have a room.
LOOSE = {"initialize.c", "scale_loss.c", "libamp.map", "meson.build"}

# What the core does without (CONTRIBUTING.md): an extra and its files. Files of the core include and import none of
# them, and an extra sees the core through public headers alone.
APEX, PY_TESTS = "bindings/python/libamp/apex/", "bindings/python/tests/"
AMP = "bindings/python/libamp/torch/amp/"
EXTRAS = {
    "activations": (AMP + "activations.py", AMP + "packed.py", AMP + "sensitivity.py", PY_TESTS + "test_activations",
                    "bench/python/activations", "bench/python/memory.py"),
    "adapt": ("tools/adapt/", "examples/adapt/", "tests/adapt/"),
    "apex_layers": (*(APEX + name for name in ("RNN/", "_autocast_utils.py", "contrib/", "fused_dense/",
                                               "fused_layer_norm_cuda.py", "mlp/", "normalization/",
                                               "xentropy_cuda.py")),
                    *(PY_TESTS + name for name in ("sharded", "test_apex_attention.py", "test_apex_layers.py",
                                                   "test_apex_losses.py", "test_apex_rnn.py",
                                                   "test_distributed_optimizers.py", "test_normalization.py",
                                                   "test_optimizers_arguments.py"))),
    "darknet": ("adapters/darknet/", "tests/darknet/"),
    "fortran": ("bindings/fortran/",),
    "ggml": ("adapters/ggml/", "examples/ggml/", "tests/ggml/"),
    "libtorch": ("bindings/libtorch/", "examples/libtorch/", "tests/libtorch/"),
    "mlx": ("bindings/python/libamp/mlx/", PY_TESTS + "mlxnet.py", PY_TESTS + "test_mlx"),
    "mpi": ("include/amp_mpi", "demo/mpi/", "examples/mpi/", "tests/mpi/", "tests/hosts/ranks/", "bench/ranks/"),
    "nccl": ("include/amp_nccl.h", "src/nccl/", "src/kernels/cuda/nccl", "tests/cuda/fake_nccl",
             "tests/cuda/test_nccl.c", "tests/cuda/test_average.c", "tests/cuda/test_ranks.c", "tests/cuda/ranks"),
    "report": ("bindings/python/libamp/_report/", "bindings/python/libamp/report.py",
               PY_TESTS + "test_report.py", PY_TESTS + "test_verdict.py", PY_TESTS + "test_notebooks.py"),
    "rust": ("bindings/rust/",),
    "survey": ("src/survey/", "tests/observe/test_survey.c"),
}
# But for these: the header and the module that have all, and the plugin's table, which names what it was built with.
# nccl is a part of the library and of the plugin, and survey of the library: they see the rows below their own.
MEETS = {("include/amp_all.h", "nccl"), ("src/kernels/cuda/plugin.c", "nccl"), (AMP + "__init__.py", "activations")}
WITHIN = {"nccl", "survey"}

# Headers of others: (pattern, what in src/ may include them).
FOREIGN = [
    (re.compile(r"^ffi(target)?\.h$"), ("src/intercept/", "src/schema/structs.h")),
    (re.compile(r"^(cuda|cublas|cudnn|curand|nccl|nvrtc|nvToolsExt|cooperative_groups)"), "src/kernels/cuda/"),
    (re.compile(r"^(dnnl|oneapi/)"), "src/kernels/onednn/"),
    (re.compile(r"^jansson"), "src/state/"),
    # the operating system's, beside POSIX threads; each plugin has one such file
    (re.compile(r"^(dirent|dlfcn|elf|execinfo|fcntl|link|locale|poll|sched|signal|time|ucontext|unistd)\.h$"
                r"|^(asm|bits|gnu|linux|sys)/"),
     ("src/system/", "src/kernels/cuda/library.c", "src/kernels/onednn/threads.c")),
]
# Calls of FORBIDDEN_CALLS that one file may make: (name, file).
EXCEPTIONS = {
    ("pthread_atfork", "src/system/fork.c"),  # a mutex that a child inherits locked is never unlocked
    ("strerror_r", "src/common/error.c"),  # for both of its kinds
}

# A call's arguments are decoded once: call/bind.c reads a schema's n_args, and so do the two quick ways (types, cache).
# Whatever else works on a call takes struct amp__bound. Every mention counts, so that no iterator hides a loop.
BOUND = ("src/call/", "src/raw/", "src/observe/")
MAX_DECODERS = 3
DECODER = re.compile(r"\bn_args\b")

# Where no files include or import each other in a circle; x.c and x.h are one, and imports inside of functions count.
NO_CIRCLES = ("src/", "bindings/", "bench/")

PUBLIC_INCLUDES = {"stddef.h", "stdint.h"}
# Headers of functions that the host's compiler makes: beside that, what these use.
HEADER_ONLY = {"include/amp_mpi": {"mpi.h", "limits.h", "stdarg.h", "stdio.h", "stdlib.h", "string.h"}}
GENERATED = {"config.h"}

# A library lives in somebody else's process: it does not print, end it, read its clock or take its signals.
FORBIDDEN_CALLS = {
    "prints": "printf vprintf fprintf vfprintf dprintf puts putchar perror psignal",
    "ends the process": "exit _exit _Exit quick_exit abort __assert_fail __builtin_trap __builtin_abort",
    "installs a handler": "signal sigaction atexit on_exit at_quick_exit pthread_atfork",
    "changes the locale": "setlocale uselocale",
    "asks one C library": "strerror strerror_r qsort_r",
    "reads a clock": "time clock clock_gettime gettimeofday timespec_get localtime gmtime",
}
CALL = re.compile(
    r"(?<![\w.])(?<!->)(" + "|".join(name for names in FORBIDDEN_CALLS.values() for name in names.split()) + r")\s*\("
)
WHY = {name: why for why, names in FORBIDDEN_CALLS.items() for name in names.split()}
STREAM = re.compile(r"\b(stdout|stderr)\b")
ASSERT = re.compile(r"(?<!\w)assert\s*\(")
SIDE_EFFECT = re.compile(r"\+\+|--|(?<![=!<>])=(?!=)|<<=|>>=")

MAX_LINES = 500
MAX_COLUMNS = 120
# Where no line of C is longer. No line of a script is, nor any of the other code in bindings/ and bench/.
NARROW = ("src/", "include/", "demo/", "examples/", "bindings/", "bench/", "tests/", "adapters/")
WIDE_FILES = (  # but for tables with a case on each line, and for what guides quote
    "tests/intercept/test_grammar.c", "src/call/gate_table.inc", "tests/hosts/", "tests/badinput/test_messages.c",
)
LONG_FILES = {}  # path: reason

C_SUFFIXES = {".c", ".h", ".inc", ".cu", ".cuh", ".cpp", ".cc", ".hpp"}
SCRIPT_SUFFIXES = {".py", ".sh"}
CODE_SUFFIXES = C_SUFFIXES | SCRIPT_SUFFIXES | {".S"}
MESON_FILES = {"meson.build", "meson_options.txt"}
SKIPPED_FOLDERS = {".git", "build", "subprojects", "__pycache__", "shared"}

# A page that a comment or a message sends its reader to.
PAPER = re.compile(r"(?<![\w*{}-])(?:[\w.-]+/)*([a-z][\w-]*\.md)\b")

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', re.MULTILINE)
COMMENT_OR_LITERAL = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)


def blank(match, keep_literals):
    """Comments, and for code also literals, become blanks; lines stay where they were."""
    text = match.group(0)
    if text[0] in "\"'":
        return text if keep_literals else text[0] + " " * (len(text) - 2) + text[0]
    return re.sub(r"[^\n]", " ", text)


def argument(code, start):
    """The text between the parenthesis that opens before `start` and its partner."""
    depth = 1
    for end in range(start, len(code)):
        depth += {"(": 1, ")": -1}.get(code[end], 0)
        if depth == 0:
            return code[start:end]
    return code[start:]


def extra_of(path):
    return next((extra for extra, files in EXTRAS.items() if path.startswith(files)), None)


class Lint:
    def __init__(self, root, long_files=None):
        self.root = pathlib.Path(root).resolve()
        self.long_files = LONG_FILES if long_files is None else long_files
        self.found = []  # (rule, path, line, message)
        self.decoders = []  # (path, line) of DECODER in BOUND
        self.includes = {}  # file of src/ -> files of src/ that it includes
        self.needs = {}  # of NO_CIRCLES, without suffix -> what it includes or imports
        self.papers = {pathlib.PurePath(path).name for path in self.files() if path.endswith(".md")}
        self.structures = {}  # defined in headers of src/: name -> members
        self.defined_at = {}  # name -> (path, line)
        self.checked = 0

    def report(self, rule, path, line, message):
        self.found.append((rule, path, line, message))

    def files(self):
        for folder, names, files in os.walk(self.root):
            names[:] = sorted(
                name for name in names
                if name not in SKIPPED_FOLDERS and not os.path.exists(os.path.join(folder, name, "meson-private"))
            )
            for name in sorted(files):
                yield (pathlib.Path(folder) / name).relative_to(self.root).as_posix()

    def run(self):
        sources = 0
        for path in self.files():
            suffix, name = pathlib.PurePath(path).suffix, pathlib.PurePath(path).name
            script = suffix == "" and (self.root / path).open("rb").read(2) == b"#!"
            if suffix not in CODE_SUFFIXES and name not in MESON_FILES and not script:
                continue
            text = (self.root / path).read_text(encoding="utf-8", errors="replace")
            self.checked += 1
            self.check_spdx(path, text)
            self.check_length(path, text)
            self.check_cited(path, text)
            self.check_loose(path)
            if suffix in C_SUFFIXES:
                self.check_c(path, text)
                sources += path.startswith("src/")
            if suffix == ".py" and path.startswith(NO_CIRCLES):
                self.note_imports(path, text)
        self.check_circles()
        self.check_seen()
        self.check_decoders()
        self.check_long_files()
        self.check_structures()
        if sources == 0:
            self.report("nothing", "src", 0, f"no source was found under {self.root}: a lint of nothing proves nothing")
        return self.found

    # ---- any file

    def check_spdx(self, path, text):
        head = "\n".join(text.splitlines()[:5])
        if "SPDX-License-Identifier: Apache-2.0" not in head:
            self.report("spdx", path, 1, "no line 'SPDX-License-Identifier: Apache-2.0' at its head")

    def check_length(self, path, text):
        lines = text.count("\n")
        if lines > MAX_LINES and path not in self.long_files:
            self.report("length", path, lines, f"{lines} lines: split it, or add it to LONG_FILES with a reason")
        suffix = pathlib.PurePath(path).suffix
        narrow = suffix in SCRIPT_SUFFIXES or text.startswith("#!") or path.startswith(("bindings/", "bench/"))
        if suffix in C_SUFFIXES:
            narrow = path.startswith(NARROW) and not path.startswith(WIDE_FILES)
        for number, line in enumerate(text.splitlines() if narrow else (), 1):
            if len(line) > MAX_COLUMNS:
                self.report("width", path, number, f"{len(line)} columns, {MAX_COLUMNS} at most")

    def check_cited(self, path, text):
        for match in PAPER.finditer(text) if not path.startswith("tests/lint/") else ():
            if match.group(1) not in self.papers:
                line = text.count("\n", 0, match.start()) + 1
                self.report("cited", path, line, f"{match.group()} is not in this tree: cite what a reader has")

    def check_loose(self, path):
        if path.startswith("src/") and path.count("/") == 1 and path[4:] not in LOOSE:
            self.report("loose", path, 1, "lies directly in src/: give it a room")

    def check_long_files(self):
        for path in self.long_files:
            file = self.root / path
            if not file.exists() or file.read_text(encoding="utf-8").count("\n") <= MAX_LINES:
                self.report("length", path, 0, "stands in LONG_FILES and need not")

    def check_decoders(self):
        for path, line in self.decoders[MAX_DECODERS:]:
            self.report("decoders", path, line, f"reads n_args, as {MAX_DECODERS} others do in {', '.join(BOUND)}: "
                        "take struct amp__bound (context/bound.h)")

    # ---- circles

    def note_need(self, path, other):
        if other and path.startswith(NO_CIRCLES):
            self.needs.setdefault(os.path.splitext(path)[0], set()).add(os.path.splitext(other)[0])

    def note_imports(self, path, text):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                names = [(0, alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                module = node.module + "." if node.module else ""
                names = [(node.level, module + alias.name) for alias in node.names]
            else:
                continue
            for level, name in names:
                file = self.module_file(path, level, name)
                self.note_need(path, file)
                if file:
                    self.check_extra(path, node.lineno, file)

    def module_file(self, path, level, name):
        """Of a module, or of the one that has the name; None: it is none of ours."""
        folders, parts = list(pathlib.PurePath(path).parents), name.split(".")
        packages = [folder for folder in folders if (self.root / folder / "__init__.py").is_file()]
        for folder in folders[level - 1 : level] if level else [f for f in folders if f not in packages]:
            for n in range(len(parts), max(len(parts) - 2, -1 if level else 0), -1):
                stem = folder.joinpath(*parts[:n]).as_posix()
                for place in (stem, stem.replace("/libamp/torch/", "/libamp/apex/")):  # its __path__ has both
                    for file in (f"{place}.py", f"{place}/__init__.py"):
                        if (self.root / file).is_file():
                            return file
        return None

    def check_circles(self):
        reached = {}
        for start in self.needs:
            reached[start], left = set(), list(self.needs[start])
            while left:
                file = left.pop()
                if file not in reached[start]:
                    reached[start].add(file)
                    left += self.needs.get(file, ())
        for circle in {frozenset(y for y in reached[x] if x in reached.get(y, ())) for x in reached}:
            if len(circle) > 1:
                self.report("circle", min(circle), 0, "includes or imports in a circle: " + ", ".join(sorted(circle)))

    def check_seen(self):
        for header, most in SEEN_BY.items():
            seen, left = set(), [header]
            while left:
                file = left.pop()
                new = {other for other, included in self.includes.items() if file in included} - seen
                seen |= new
                left += new
            sources = sorted(file for file in seen if file.endswith(".c"))
            if len(sources) > most:
                self.report("seen", sources[-1], 0, f"{len(sources)} files see {header}, {most} at most: take the part "
                            "that you need")

    # ---- C

    def check_c(self, path, text):
        code = COMMENT_OR_LITERAL.sub(lambda match: blank(match, True), text)
        for match in INCLUDE.finditer(code):
            line = code.count("\n", 0, match.start()) + 1
            self.check_include(path, line, match.group(2), quoted=match.group(1) == '"')
        if path.startswith("src/"):
            code = COMMENT_OR_LITERAL.sub(lambda match: blank(match, False), text)
            self.check_calls(path, code)
            for name, line, members in structs.structures(code) if path.endswith(".h") else ():
                self.structures[name], self.defined_at[name] = members, (path, line)
            if path.startswith(BOUND):
                self.decoders += [(path, code.count("\n", 0, match.start()) + 1) for match in DECODER.finditer(code)]

    def resolve(self, path, name):
        """An include's file, relative to the root, or None if it is not one of ours."""
        for folder in (pathlib.PurePath(path).parent.as_posix(), "src", "include"):
            found = os.path.normpath(os.path.join(folder, name))
            if (self.root / found).is_file():
                return found
        return None

    def check_extra(self, path, line, ours):
        mine, other = extra_of(path), extra_of(ours)
        if other and other != mine and (path, other) not in MEETS:
            self.report("extra", path, line,
                        f"{ours} belongs to the extra {other}, which {mine or 'the core'} does without")
        if mine and mine not in WITHIN and ours.startswith("src/"):
            self.report("extra", path, line, f"{ours} is private: the extra {mine} sees public headers alone")

    def check_include(self, path, line, name, quoted):
        ours = self.resolve(path, name)
        self.note_need(path, ours)
        if ours and path.startswith("src/"):
            self.includes.setdefault(path, set()).add(ours)
        if ours:
            self.check_extra(path, line, ours)
        if path.startswith("src/"):
            if not ours:
                self.check_foreign(path, line, name)
            if ours and ours.startswith("src/"):
                self.check_row(path, line, ours)
            elif not ours and quoted and name not in GENERATED:
                self.report("unknown", path, line, f'"{name}" is not in this tree: system headers are written <{name}>')
            elif ours and not ours.startswith("include/"):
                self.report("layers", path, line, f"src/ may not include {ours}")
        elif path.startswith("include/"):
            allowed = PUBLIC_INCLUDES.union(*(more for begin, more in HEADER_ONLY.items() if path.startswith(begin)))
            if path.endswith(".h") and name not in allowed and not (ours or "").startswith("include/"):
                self.report("public", path, line,
                            f"a public header may include <stddef.h>, <stdint.h> and its kind, not {name}")
        elif path.startswith(("demo/", "examples/", "bindings/", "adapters/")):
            if ours and ours.startswith("src/"):
                self.report("private", path, line, f"{ours} is private: installed headers only")
            if path.startswith("demo/host/") and ours and ours.startswith("include/"):
                self.report("private", path, line, "demo/host is a framework that knows nothing of libamp")

    def check_row(self, path, line, ours):
        room, other = (file[4:].rpartition("/")[0].split("/")[0] for file in (path, ours))
        for name in (room, other):
            if name not in ROWS:
                self.report("layers", path, line, f"src/{name} has no row: add it to ROWS and to the design")
                return
        if room == other or ROWS[other] < ROWS[room] or (room, ours[4:]) in ALLOWED:
            return
        relation = "of its own row" if ROWS[other] == ROWS[room] else "above it"
        self.report("layers", path, line, f"{room or 'src'} may not include {ours}: a room {relation}")

    def check_foreign(self, path, line, name):
        for pattern, folder in FOREIGN:
            if pattern.match(name) and not path.startswith(folder):
                self.report("foreign", path, line, f"{name} belongs to {folder} alone")

    def check_structures(self):
        for name, message in structs.too_many(self.structures) if self.structures else ():
            path, line = self.defined_at.get(name, ("src", 0))
            self.report("members", path, line, f"struct {name} {message}")

    def check_calls(self, path, code):
        def line_of(match):
            return code.count("\n", 0, match.start()) + 1

        for match in CALL.finditer(code):
            if (match.group(1), path) in EXCEPTIONS:
                continue
            name = match.group(1)
            self.report("call", path, line_of(match), f"{name}() {WHY[name]}, which src/ never does")
        for match in STREAM.finditer(code):
            self.report("call", path, line_of(match), f"{match.group(1)}: src/ never prints")
        for match in ASSERT.finditer(code):
            if SIDE_EFFECT.search(argument(code, match.end())):
                self.report("assert", path, line_of(match), "an assert with a side effect: release builds leave it out")


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: check_layers.py ROOT")
    lint = Lint(sys.argv[1])
    found = lint.run()
    for rule, path, line, message in found:
        print(f"{path}:{line}: {message} [{rule}]")
    print(f"{lint.checked} files checked, {len(found)} violations")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
