#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The compiler's command in docs/libtorch-c.md compiles, links and runs a program: check_c_line.py GUIDE PKGCONFIG. Prints
TAP."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

PROGRAM = """
#include <amp_torch.h>
#include <string.h>
int main(void) {
    amp_torch_guard guard = 0;
    amp_torch_scaler *scaler = NULL;
    if (amp_torch_enter(NULL, &guard) || amp_torch_leave(guard)) return 1;
    if (amp_torch_leave(guard) != AMP_ERR_WRONG_STATE || !strstr(amp_torch_last_error(), "amp_torch_leave")) return 2;
    if (amp_torch_scaler_new(NULL, &scaler)) return 3;
    amp_torch_scaler_free(scaler);
    return 0;
}
"""


def main():
    guide, packages = map(pathlib.Path, sys.argv[1:])
    line = re.search(r"^cc trainer\.c .*$", guide.read_text(encoding="utf-8"), re.MULTILINE)[0]
    line += " -Wall -Wextra -Wpedantic -Werror"
    env = dict(os.environ, PKG_CONFIG_PATH=str(packages))
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "trainer.c").write_text(PROGRAM, encoding="utf-8")
        compiled = subprocess.run(["sh", "-c", line], cwd=folder, env=env, text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, check=False)
        print("\n".join(f"# {text}" for text in compiled.stdout.splitlines()[:40]))
        libraries = subprocess.run(["pkg-config", "--libs-only-L", "libamp_torch"], env=env, text=True, check=True,
                                   stdout=subprocess.PIPE).stdout.split()
        env["LD_LIBRARY_PATH"] = ":".join(path.removeprefix("-L") for path in libraries)
        ran = compiled.returncode == 0 and subprocess.run(["./a.out"], cwd=folder, env=env, check=False).returncode == 0
    print(f"1..1\n{'ok' if ran else 'not ok'} 1 - the guide's command compiles and links a program that runs")


if __name__ == "__main__":
    main()
