#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PTX to an object: compile.py IN.ptx OUT.o COMPILER... Translating and compiling takes half a minute: what was done
for the same text, by the same translator and compiler, is taken from ${XDG_CACHE_HOME:-~/.cache}/libamp/emulator.
"""
import fcntl
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
FLAGS = ["-std=c++17", "-O1", "-ffp-contract=off", "-fno-strict-aliasing", "-fno-exceptions", "-fPIC",
         "-fvisibility=hidden", "-w"]
KEPT = 64 << 20  # bytes; the oldest go


def key_of(text, compiler):
    version = subprocess.run([*compiler, "--version"], stdout=subprocess.PIPE, check=True).stdout
    key = hashlib.sha256(version + " ".join(FLAGS + [os.uname().machine]).encode())
    for name in ("ptx.py", "translate.py", "emulator.h"):
        key.update((HERE / name).read_bytes())
    key.update(re.sub(r"//[^\n]*|\.(?:target|version)[^\n]*", "", text).encode())
    return key.hexdigest()


def cache():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.environ.get("HOME", "/nonexistent"), ".cache")
    folder = pathlib.Path(base) / "libamp" / "emulator"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return folder if os.access(folder, os.W_OK) else None
    except OSError:
        return None


def forget(folder):
    files = sorted(folder.glob("*.o"), key=lambda file: file.stat().st_mtime, reverse=True)
    total = 0
    for file in files:
        total += file.stat().st_size
        if total > KEPT:
            file.unlink(missing_ok=True)
            file.with_suffix(".lock").unlink(missing_ok=True)


def main():
    source, out, compiler = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3:]
    folder = cache()
    kept = folder and folder / (key_of(source.read_text(encoding="utf-8"), compiler) + ".o")
    if kept:
        lock = open(kept.with_suffix(".lock"), "w", encoding="utf-8")  # who comes second waits, and finds it
        fcntl.flock(lock, fcntl.LOCK_EX)
    if kept and kept.exists():
        shutil.copyfile(kept, out)
        os.utime(kept)
        return 0
    with tempfile.TemporaryDirectory() as made:
        translated = pathlib.Path(made) / "kernels.cpp"
        for command in ([sys.executable, HERE / "translate.py", source, translated],
                        [*compiler, *FLAGS, f"-I{HERE}", "-c", translated, "-o", out]):
            if code := subprocess.run(command, check=False).returncode:
                return code
    if kept:
        handle, new = tempfile.mkstemp(dir=folder)
        os.close(handle)
        shutil.copyfile(out, new)
        os.replace(new, kept)
        forget(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
