#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The compiler's command in docs/start/libtorch.md compiles, links and runs a program: check_line.py GUIDE PKGCONFIG
HEADERS... Prints TAP. Warnings are errors in libamp's headers.

Takes the guide's words but for -O2, which would double the minute; where the C++11 ABI is the old one, what the guide
says then."""
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

import torch

PROGRAM = """
#include <amp_torch.hpp>
int main() {
    torch::nn::Linear net(2, 2);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    auto amp = amp::torch::initialize(net, optimizer, AMP_O2);
    return amp.forward(net, torch::ones({1, 2})).scalar_type() == at::kFloat ? 0 : 1;
}
"""


def main():
    guide, packages, *headers = sys.argv[1:]
    line = re.search(r"```sh\n(g\+\+ .*?)```", pathlib.Path(guide).read_text(encoding="utf-8"), re.DOTALL)[1]
    options = [*"-O0 -Wall -Wextra -Wconversion -Wshadow -Werror".split(),
               *(f"-I{shlex.quote(path)}" for path in headers)]
    line = line.replace("\\\n", " ").replace("-O2", " ".join(options))
    if not torch.compiled_with_cxx11_abi():
        line += " -D_GLIBCXX_USE_CXX11_ABI=0"
    env = dict(os.environ, TORCH=str(pathlib.Path(torch.__file__).parent), PKG_CONFIG_PATH=packages)
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "trainer.cpp").write_text(PROGRAM, encoding="utf-8")
        compiled = subprocess.run(["sh", "-c", line], cwd=folder, env=env, text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, check=False)
        print("\n".join(f"# {text}" for text in compiled.stdout.splitlines()[:40]))
        good = compiled.returncode == 0
        libraries = subprocess.run(["pkg-config", "--libs-only-L", "libamp"], env=env, text=True,
                                   stdout=subprocess.PIPE, check=True).stdout.split()
        env["LD_LIBRARY_PATH"] = ":".join(path.removeprefix("-L") for path in libraries)
        ran = good and subprocess.run(["./trainer"], cwd=folder, env=env, check=False).returncode == 0
    print(f"1..2\n{'ok' if good else 'not ok'} 1 - the guide's command compiles and links")
    print(f"{'ok' if ran else 'not ok'} 2 - and its program runs")


if __name__ == "__main__":
    main()
