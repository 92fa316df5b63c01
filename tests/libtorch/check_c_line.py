#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The compiler's command in docs/start/libtorch.md compiles, links and runs a program, and the two libraries find each
other wherever a binding puts them: check_c_line.py GUIDE PKGCONFIG. Prints TAP."""
import os
import pathlib
import re
import shutil
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

# Loads libamp_torch.so.0 of a folder, and prints where libamp.so.0 came from.
LOADS = """
import ctypes, re, sys
ctypes.CDLL(sys.argv[1])
print(*sorted(set(re.findall(r"/\\S*/libamp\\.so\\S*", open("/proc/self/maps").read()))))
"""


def finds_its_neighbour(folders, env):
    """Copies of the two, alone in a folder, and nothing that names it."""
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder).resolve()
        for name in ("libamp.so.0", "libamp_torch.so.0"):
            shutil.copy(next(path for path in (pathlib.Path(each) / name for each in folders) if path.exists()), place)
        env = {name: value for name, value in env.items() if name != "LD_LIBRARY_PATH"}
        ran = subprocess.run([sys.executable, "-c", LOADS, place / "libamp_torch.so.0"], env=env, text=True,
                             check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    print("\n".join(f"# {text}" for text in ran.stdout.splitlines()[-5:]))
    return ran.returncode == 0 and ran.stdout.split() == [str(place / "libamp.so.0")]


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
        folders = [path.removeprefix("-L") for path in libraries]
        env["LD_LIBRARY_PATH"] = ":".join(folders)
        ran = compiled.returncode == 0 and subprocess.run(["./a.out"], cwd=folder, env=env, check=False).returncode == 0
    print(f"1..2\n{'ok' if ran else 'not ok'} 1 - the guide's command compiles and links a program that runs")
    found = finds_its_neighbour(folders, env)
    print(f"{'ok' if found else 'not ok'} 2 - libamp_torch.so.0 finds libamp.so.0 beside itself")


if __name__ == "__main__":
    main()
