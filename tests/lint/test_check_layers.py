#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Proves that check_layers.py finds a violation of each of its rules, and none where there is none. Prints TAP."""
import pathlib
import tempfile

import structs
from check_layers import SEEN_BY, Lint

SPDX = "/* SPDX-License-Identifier: Apache-2.0 */\n"
OPTIMIZER = "amp__optimizer"
SCRIPT = "# SPDX-License-Identifier: Apache-2.0\n"
CLEAN = {
    "src/system/linux.c": "#include <dlfcn.h>\n#include <sys/mman.h>\n",
    "include/amp.h": "#include <stddef.h>\n#include <stdint.h>\n",
    "docs/reference/numerics.md": "",
    "include/amp_kernels.h": '/* docs/reference/numerics.md */\n#include "amp.h"\n',
    "include/amp_mpi.h": '#include "amp.h"\n',
    "include/amp_nccl.h": '#include "amp.h"\n',
    "include/amp_all.h": '#include "amp_nccl.h"\n',
    "src/nccl/nccl.c": '#include "amp_nccl.h"\n#include "kernels/kernels.h"\n',
    "tests/mpi/test_mpi.c": '#include "amp_mpi.h"\n',
    "bindings/python/libamp/mlx/__init__.py": "",
    "bindings/python/libamp/apex/contrib/__init__.py": "from libamp.torch.optimizers import base\n",
    "bindings/python/libamp/mlx/amp.py": "from . import core\n",
    "src/common/common.h": '#include "amp.h"\n',
    "src/kernels/kernels.h": '#include "common/common.h"\n',
    "src/host/host.h": '#include "common/common.h"\n',
    "src/scaler/scaler.h": "",
    "src/master/master.c": '#include "scaler/scaler.h"\n#include "host/host.h"\n',
    "src/schema/structs.h": "#include <ffi.h>\n",
    "src/intercept/closure.c": '#include <ffi.h>\n#include "schema/structs.h"\n',
    "src/opt_levels/policy.h": "",
    "src/opt_levels/policy.c": '#include "policy.h"\n#include "master/../scaler/scaler.h"\n',
    "src/context/context.h": '#include "call/cache.h"\n',
    "src/context/optimizer.h": "struct amp__optimizer {\n    struct amp__part {\n        int x, *y;\n    } part;\n"
    "    bool a, b, c, *e, f[2];\n    struct {\n        int g;\n    };\n    int h;\n};\n",
    "src/context/parts.h": "".join(f"struct {name} {{ int x; }};\n" for name in structs.LIMITS if name != OPTIMIZER),
    "src/call/cache.h": "",
    "src/call/call.h": '#include "context/context.h"\n',
    "src/api/api.h": "",
    "src/api/one.c": '#include "api/api.h"\n',
    "src/api/two.c": '#include "api/api.h"\n',
    **{f"src/api/seen{i}.c": '#include "call/call.h"\n' for i in range(SEEN_BY["src/context/context.h"] - 2)},
    "src/bracket/bracket.h": '#include "raw/raw.h"\n',
    "src/raw/raw.h": '#include "call/call.h"\n',
    "src/observe/observe.h": "",
    "src/call/bind.c": "/* n_args */\n" + "void f(s) { for (int i = 0; i < s->n_args; i++) continue; }\n" * 3,
    "src/initialize.c": '#include "context/context.h"\n#include "opt_levels/policy.h"\n'
    '/* never printf(x) or abort() */\nint f(void) { host->abort(1); snprintf("exit(1)"); assert(a == b && c <= d); '
    '}\n',
    "demo/host/tape.h": "",
    "demo/host/tape.c": '#include "tape.h"\n#include <stdio.h>\nint main(void) { printf("x"); exit(1); }\n',
    "demo/adapter.c": "#include <amp.h>\n",
    "bindings/p/__init__.py": "from .sub import inner\n",
    "bindings/p/sub/__init__.py": "",
    "bindings/p/sub/inner.py": "import os\nfrom ..other import x\n",
    "bindings/p/other.py": "from typing import Any\n",
    "bench/bench.h": '#include "memory.h"\n',
    "bench/bench.c": '#include "bench.h"\n',
    "bench/memory.h": "int " + "x" * 115 + ";\n",
    "build/generated.c": "#include <ffi.h>\n",
}

PLANTED = [  # what, rule, file, text
    ("common includes a higher room", "layers", "src/common/a.c", '#include "host/host.h"\n'),
    ("a room includes one of its own row", "layers", "src/kernels/a.c", '#include "host/host.h"\n'),
    ("a room includes a higher one", "layers", "src/opt_levels/a.c", '#include "context/context.h"\n'),
    ("context includes of call what is not the cache", "layers", "src/context/a.c", '#include "call/call.h"\n'),
    ("the handler of calls knows an instrument", "layers", "src/call/a.c", '#include "observe/observe.h"\n'),
    ("an instrument knows casts", "layers", "src/observe/a.c", '#include "call/call.h"\n'),
    ("an instrument knows raw buffers", "layers", "src/observe/a.c", '#include "raw/raw.h"\n'),
    ("raw includes bracket", "layers", "src/raw/a.c", '#include "bracket/bracket.h"\n'),
    ("amp_mpi.h includes more than it may", "public", "include/amp_mpi.h", "#include <mpi.h>\n#include <unistd.h>\n"),
    ("mpi.h elsewhere", "public", "include/amp_call.h", "#include <mpi.h>\n"),
    ("a page that is not there", "cited", "tests/a.c", "/* design.md 5 */\n"),
    ("a loose file", "loose", "src/loose.c", "int x;\n"),
    ("an include through ..", "layers", "src/common/a.c", '#include "../host/host.h"\n'),
    ("an include in angle brackets", "layers", "src/common/a.c", "#  include <host/host.h>\n"),
    ("a room without a row", "layers", "src/attic/a.c", '#include "common/common.h"\n'),
    ("src includes an example", "layers", "src/api/a.c", '#include "../../demo/host/tape.h"\n'),
    ("an include of nothing", "unknown", "src/api/a.c", '#include "gone.h"\n'),
    ("ffi.h outside intercept", "foreign", "src/master/a.c", "#include <ffi.h>\n"),
    ("a CUDA header outside cuda", "foreign", "src/kernels/a.c", "#include <cuda_runtime.h>\n"),
    ("a oneDNN header outside onednn", "foreign", "src/kernels/a.c", "#include <oneapi/dnnl/dnnl.h>\n"),
    ("a header of the system's", "foreign", "src/kernels/a.c", "#include <dlfcn.h>\n"),
    ("another one, of Linux", "foreign", "src/context/a.c", "#include <sys/mman.h>\n"),
    ("a call of printf", "call", "src/api/a.c", "void f(void) { printf (x); }\n"),
    ("a call of abort", "call", "src/api/a.c", "void f(void) { if (x) abort(); }\n"),
    ("a call of clock_gettime", "call", "src/api/a.c", "void f(void) { clock_gettime(0, &t); }\n"),
    ("a call of time", "call", "src/api/a.c", "void f(void) { seed = time(NULL); }\n"),
    ("a call of sigaction", "call", "src/api/a.c", "void f(void) { sigaction(1, &a, NULL); }\n"),
    ("a call of atexit", "call", "src/api/a.c", "void f(void) { atexit(g); }\n"),
    ("a call of setlocale", "call", "src/api/a.c", 'void f(void) { setlocale(LC_ALL, ""); }\n'),
    ("stderr", "call", "src/api/a.c", "void f(void) { log_to(stderr); }\n"),
    ("an assert that assigns", "assert", "src/api/a.c", "void f(void) { assert((x = g(1)) != 0); }\n"),
    ("an assert that counts", "assert", "src/api/a.c", "void f(void) { assert(n++ < 3); }\n"),
    ("an example with a private header", "private", "examples/a.c", '#include "../src/context/context.h"\n'),
    ("a binding with a private header", "private", "bindings/a.c", '#include "common/common.h"\n'),
    ("the example's framework knows libamp", "private", "demo/host/a.c", "#include <amp.h>\n"),
    ("the core needs an extra", "extra", "src/kernels/a.c", '#include "amp_nccl.h"\n'),
    ("a test of the core needs an extra", "extra", "tests/levels/a.c", '#include "amp_mpi.h"\n'),
    ("an extra needs another", "extra", "demo/mpi/a.c", '#include "amp_nccl.h"\n'),
    ("a test of an extra with a private header", "extra", "tests/mpi/a.c", '#include "common/common.h"\n'),
    ("a module of the core imports an extra", "extra", "bindings/python/libamp/a.py", "from .mlx import amp\n"),
    ("an extra imported by libamp.torch's name for it", "extra", "bindings/python/libamp/torch/a.py",
     "from libamp.torch.contrib import clip\n"),
    ("a public header with stdbool.h", "public", "include/amp_more.h", "#include <stdbool.h>\n"),
    ("a wide line", "width", "bench/wide.c", "int " + "x" * 116 + ";\n"),
    ("a wide line of Python", "width", "tools/wide.py", SCRIPT + "x = " + "1" * 117 + "\n"),
    ("a wide line of a shell script", "width", "tests/wide.sh", SCRIPT + "#" * 121 + "\n"),
    ("a wide line of a command", "width", "tools/wide", "#!/bin/sh\n" + SCRIPT + "#" * 121 + "\n"),
    ("a long file", "length", "src/api/a.c", "int x;\n" * 501),
    ("a fourth loop over the arguments of a call", "decoders", "src/raw/a.c",
     "#define EACH_ARG(i, s) for (int i = 0; i < (s)->n_args; i++)\n"),
    ("a header that shows context.h to one file too many", "seen", "src/api/api.h", '#include "call/call.h"\n'),
    ("a circle of C files", "circle", "bench/memory.c", '#include "bench.h"\n'),
    ("a circle of imports, one inside of a function", "circle", "bindings/p/other.py", "def f():\n    import p\n"),
    ("a structure with one member too many", "members", "src/context/optimizer.h",
     f"struct {OPTIMIZER} {{ int {', '.join(f'a{i}' for i in range(structs.LIMITS[OPTIMIZER][0] + 1))}; }};\n"),
    ("members of a structure that has no name", "members", "src/context/optimizer.h",
     f"struct {OPTIMIZER} {{ struct {{\nint {', '.join(f'a{i}' for i in range(structs.LIMITS[OPTIMIZER][0]))}; }} all; "
     "int b; };\n"),
    ("a structure with one bool too many", "members", "src/context/optimizer.h",
     f"struct {OPTIMIZER} {{ bool a, b, c; const bool d; _Atomic(bool) e; }};\n"),
    ("a part that is the bag for all", "members", "src/context/optimizer.h",
     f"struct {OPTIMIZER} {{ struct amp__part part; }};\n"
     f"struct amp__part {{ int {', '.join(f'a{i}' for i in range(structs.LARGEST_PART[0] + 1))}; }};\n"),
    ("a structure that is gone", "members", "src/context/optimizer.h", "struct amp__another { int x; };\n"),
    ("a C file without SPDX", "spdx", "src/api/a.c", None),
    ("a script without SPDX", "spdx", "tools/a", None),
    ("a build file without SPDX", "spdx", "tests/meson.build", None),
]


def violations(files):
    with tempfile.TemporaryDirectory() as folder:
        for path, text in files.items():
            file = pathlib.Path(folder) / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        return Lint(folder, long_files={}).run()


def planted(path, text):
    files = {name: (SCRIPT if name.endswith(".py") else SPDX) + content for name, content in CLEAN.items()}
    whole = text is not None and text.startswith("#!")
    head = "" if whole else SCRIPT if path.endswith(".py") else SPDX
    files[path] = "#!/bin/sh\n" if text is None else head + text
    return violations(files)


def main():
    counted = {name: structs.count(found) for name, _, found in structs.structures(CLEAN["src/context/optimizer.h"])}
    results = [
        ("a clean tree has no violation", planted("src/api/clean.c", "") == []),
        ("members are counted one by one", counted == {OPTIMIZER: (8, 4), "amp__part": (2, 0)}),
        ("an empty tree fails", [found[0] for found in violations({})] == ["nothing"]),
        ("a tree without src fails",
         [found[0] for found in violations({"examples/a.c": SPDX})] == ["nothing"]),
    ]
    for what, rule, path, text in PLANTED:
        found = planted(path, text)
        results.append((f"finds {what}", [item[0] for item in found] == [rule]))
    print(f"1..{len(results)}")
    for number, (what, passed) in enumerate(results, 1):
        print(f"{'ok' if passed else 'not ok'} {number} - {what}")


if __name__ == "__main__":
    main()
