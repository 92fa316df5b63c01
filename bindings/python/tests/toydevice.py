# SPDX-License-Identifier: Apache-2.0
"""The device "toy", registered through PrivateUse1 (toydevice.cpp). It is built once and kept in the user's cache.
Registering is for the life of a process: tests run in forks."""

import contextlib
import functools
import gc
import hashlib
import os
import pathlib
import select
import shutil
import signal
import subprocess
import tempfile
import traceback
import types

import pytest
import torch
import torch._dynamo  # optimizers import it: once, and not in each fork

SOURCE = pathlib.Path(__file__).with_name("toydevice.cpp")
NAME = "toy"
LIMIT = 60  # seconds that a test may take


def _cache():
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "libamp" / "tests"


@functools.cache
def build():
    """The library's path; raises RuntimeError with the reason where it cannot be built."""
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))), None)
    root = pathlib.Path(torch.__file__).parent
    if compiler is None or not (root / "include" / "torch" / "library.h").exists():
        raise RuntimeError("there is no C++ compiler" if compiler is None else "this torch has no headers")
    abi = int(torch.compiled_with_cxx11_abi())
    flags = ["-std=c++20", "-O0", "-fPIC", "-shared", "-DAT_PER_OPERATOR_HEADERS", f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
             f"-isystem{root}/include", f"-isystem{root}/include/torch/csrc/api/include"]
    what = SOURCE.read_bytes() + repr([compiler, flags, torch.__version__]).encode()
    library = _cache() / f"toydevice-{hashlib.sha256(what).hexdigest()[:16]}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            made = pathlib.Path(folder) / "toy.so"
            command = [compiler, *flags, str(SOURCE), "-o", str(made), f"-L{root}/lib", "-lc10", "-ltorch_cpu"]
            result = subprocess.run(command, capture_output=True, text=True)
            if result.returncode:
                raise RuntimeError(f"{compiler} does not compile {SOURCE.name}: {result.stderr[:2000]}")
            os.replace(made, library)
    return library


def register():
    """In this process, for good."""
    torch.ops.load_library(str(build()))
    torch.ops.libamp_toy.start()
    torch.utils.rename_privateuse1_backend(NAME)
    module = types.ModuleType(f"torch.{NAME}")
    module.is_available = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module.synchronize = lambda device=None: None
    module.device = contextlib.nullcontext
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda seed: None
    torch._register_device_module(NAME, module)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)


def waits():
    """How often a host has had a value from the device so far."""
    return torch.ops.libamp_toy.waits()


def ops():
    """How many ops the device has run so far."""
    return torch.ops.libamp_toy.ops()


def on_toy(test):
    """The test in a fork, where the device is registered."""

    @functools.wraps(test)
    def forked(*args, **named):
        try:
            build()
        except RuntimeError as reason:
            pytest.skip(str(reason))
        mine, its = os.pipe()
        child = os.fork()
        if child == 0:
            text = ""
            try:
                gc.freeze()  # libamp looks for averages among all objects, of which torch._dynamo has many
                register()
                test(*args, **named)
            except BaseException:
                text = traceback.format_exc()
            os.write(its, text.encode()[-60000:] + b"\0")
            os._exit(0)
        os.close(its)
        text = b""
        while not text.endswith(b"\0"):
            if not select.select([mine], [], [], LIMIT)[0]:
                os.kill(child, signal.SIGKILL)
            if not (part := os.read(mine, 65536)):
                text += f"ended without an answer, or did not in {LIMIT} s".encode()
                break
            text += part
        os.close(mine)
        os.waitpid(child, 0)
        if text != b"\0":
            pytest.fail(text.rstrip(b"\0").decode(), pytrace=False)

    return pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")(forked)
