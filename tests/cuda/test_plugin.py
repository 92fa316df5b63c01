#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""libamp_cuda.so as a file and through the loader: test_plugin.py PROBE LIBAMP FAKE_OLD FAKE_NEW OLD_DRIVER PRODUCTS
PLUGIN. TAP.

Whatever this machine has: the plugin exports one function, needs neither a driver nor a library of CUDA's to be loaded,
and where it cannot work it says what is missing. PLUGIN "-REASON": it was not built, which skips what is about it.
FAKE_*: a backend of that name and another version. OLD_DRIVER: a libcuda.so.1 for CUDA 12.4. PRODUCTS: 1 if the build
found cublasLt.h.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

READY, NOT_FOUND, CANNOT_LOAD, NO_DEVICE = range(1, 5)
OK, BACKEND, NO_DEVICE_STATUS = 0, -16, -19
NAME = "libamp_cuda.so"


def tool(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True,
                          env={**os.environ, "LC_ALL": "C"}).stdout


def must(condition, message):
    if not condition:
        raise AssertionError(message)


class Rig:
    def __init__(self, probe, library, old_driver, products):
        self.probe, self.library, self.old_driver, self.products = probe, library, old_driver, products

    def run(self, plugin, environment=None):
        """The probe beside a copy of `plugin`; a pathlib.Path, bytes or None."""
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder) / "libamp.so"
            shutil.copy(self.library, copy)
            if isinstance(plugin, bytes):
                (copy.parent / NAME).write_bytes(plugin)
            elif plugin:
                shutil.copy(plugin, copy.parent / NAME)
            clean = {k: v for k, v in os.environ.items() if not k.startswith("AMP_") and k != "CUDA_VISIBLE_DEVICES"}
            done = subprocess.run([self.probe, str(copy)], env={**clean, **(environment or {})}, cwd=folder,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
            must(done.returncode == 0, f"the probe ended with {done.returncode}: {done.stderr}")
            said = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
        must(said["again"] == said["load"], f"two answers: {said}")
        must((said["cpu"], said["cpu.sum"]) == ("0", "12"), f"the CPU side does not work: {said}")
        return said


def expect(said, state, status, *words):
    must((said["state"], said["load"]) == (str(state), str(status)), f"state and status: {said}")
    for word in words:
        must(word in said["error"], f"the error does not say {word!r}: {said['error']!r}")


# ---- with a plugin

def exports_one_function(rig, plugin):
    names = [line.split()[-1] for line in tool("nm", "-D", "--defined-only", plugin).splitlines()]
    must(names == ["amp_backend"], f"exports {names}")


def needs_libc_alone(rig, plugin):
    needed = re.findall(r"NEEDED.*\[(.*)\]", tool("readelf", "-d", plugin))
    strange = [name for name in needed
               if not re.match(r"(libc|libm|libdl|librt|libpthread|libgcc_s)\.so|lib(a|ub|t)san\.so|ld-linux", name)]
    must(needed and not strange, f"needs {strange}: a machine without CUDA could not load it")
    undefined = [name for name in tool("nm", "-D", "--undefined-only", plugin).split()
                 if name.startswith(("cublas", "cu", "nccl"))]
    must(not undefined, f"takes {undefined} from whatever library is there")


def hardened(rig, plugin):
    said = tool("readelf", "-dW", plugin) + tool("readelf", "-lW", plugin)
    for flag in ("NOW", "NODELETE", "GNU_RELRO"):
        must(flag in said, f"{flag} is missing")
    must(not re.search(r"GNU_STACK.*RWE", said), "an executable stack")


def says_what_this_machine_lacks(rig, plugin):
    said = rig.run(plugin)
    if said["state"] == str(READY):
        must(re.match(r"CUDA \d+\.\d+, driver for \d+\.\d+, \d+ devices?$", said["version"]), said["version"])
    elif said["state"] == str(NO_DEVICE):
        expect(said, NO_DEVICE, NO_DEVICE_STATUS, "backend cuda", NAME, "loads, no device", "driver")
    else:
        expect(said, CANNOT_LOAD, BACKEND, "backend cuda", NAME, "nstall")


def has_products(rig, plugin):
    said = rig.run(plugin)
    must(said["products"] == rig.products, f"products: {said['products']}, the build says {rig.products}")


def the_driver_is_too_old(rig, plugin):
    """Of CUDA 12.4, as CUDA's own runtime judges it: one line that says what to do."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(rig.old_driver, os.path.join(folder, "libcuda.so.1"))
        said = rig.run(plugin, {"LD_LIBRARY_PATH": folder})
    expect(said, CANNOT_LOAD, BACKEND, "backend cuda", NAME, "driver is too old", "CUDA 12.4", "Install a driver")
    must("\n" not in said["error"] and said["text"] in said["error"], f"not one line: {said}")


def no_visible_device(rig, plugin):
    said = rig.run(plugin, {"CUDA_VISIBLE_DEVICES": ""})
    expect(said, NO_DEVICE, NO_DEVICE_STATUS, "loads, no device")


# ---- without

def not_there(rig, *unused):
    expect(rig.run(None), NOT_FOUND, BACKEND, "backend cuda", f"no {NAME} beside", "AMP_BACKEND_PATH")


def too_old(rig, old, new):
    expect(rig.run(old), CANNOT_LOAD, BACKEND, "backend cuda", "of another libamp")


def too_new(rig, old, new):
    expect(rig.run(new), CANNOT_LOAD, BACKEND, "backend cuda", "of another libamp")


def no_library(rig, *unused):
    expect(rig.run(b"this is no library\n" * 100), CANNOT_LOAD, BACKEND, "cannot be loaded")


def main():
    probe, library, old, new, old_driver, products, plugin = sys.argv[1:]
    rig = Rig(os.path.abspath(probe), os.path.abspath(library), os.path.abspath(old_driver), products)
    with_plugin = [exports_one_function, needs_libc_alone, hardened, has_products, says_what_this_machine_lacks,
                   the_driver_is_too_old, no_visible_device]
    cases = [(case, (os.path.abspath(plugin),)) for case in with_plugin]
    cases += [(case, (os.path.abspath(old), os.path.abspath(new)))
              for case in (not_there, too_old, too_new, no_library)]
    print(f"1..{len(cases)}")
    for number, (case, arguments) in enumerate(cases, 1):
        name = case.__name__.replace("_", " ")
        if case in with_plugin and plugin.startswith("-"):
            print(f"ok {number} - {name} # SKIP {plugin[1:]}")
            continue
        try:
            case(rig, *arguments)
            print(f"ok {number} - {name}")
        except AssertionError as failure:
            print(f"not ok {number} - {name}")
            print("# " + str(failure).replace("\n", "\n# "))


if __name__ == "__main__":
    main()
