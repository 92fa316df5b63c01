# SPDX-License-Identifier: Apache-2.0
"""The device "toy", registered through PrivateUse1 (toydevice.cpp). It is built once and kept in the user's cache.
Registering is for the life of a process: tests run in forks."""

import contextlib
import functools
import gc
import hashlib
import json
import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import traceback
import types
import warnings

import pytest
import torch
import torch._dynamo  # optimizers import it: once, and not in each fork
from half import half_on_cpu

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


# ---- tests of it ----

_tests = {}  # by name
_nursery = None  # the connection to it


def on_toy(test):
    """The test in a fork, where the device is registered. Its arguments are JSON's."""
    _tests[test.__name__] = test

    @functools.wraps(test)
    def ask(**named):
        try:
            build()
        except RuntimeError as reason:
            pytest.skip(str(reason))
        print(json.dumps([test.__name__, named]), file=_nursery, flush=True)
        if (answer := json.loads(_nursery.readline())) != "":
            pytest.fail(answer, pytrace=False)

    return ask


def start(prepare):
    """At the end of a file of tests: they will fork from a process in which nothing ran. torch's autograd counts the
    devices at its first backward, and would know none that comes later. prepare() is called in each fork."""
    global _nursery
    mine, its = socket.socketpair()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks among threads
        child = os.fork()
    if child == 0:
        mine.close()
        _serve(its.makefile("rw"), prepare)
    its.close()
    _nursery = mine.makefile("rw")


def _serve(connection, prepare):
    gc.freeze()  # libamp looks for averages among all objects, of which torch._dynamo has many
    for line in connection:
        name, named = json.loads(line)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            _run(write, prepare, _tests[name], named)
        os.close(write)
        answer = b""
        while True:
            if not select.select([read], [], [], LIMIT)[0]:
                os.kill(child, signal.SIGKILL)
            if not (part := os.read(read, 65536)):
                break
            answer += part
        os.close(read)
        os.waitpid(child, 0)
        text = "" if answer == b"fine" else answer.decode() or f"ended without an answer, or has none in {LIMIT} s"
        print(json.dumps(text), file=connection, flush=True)
    os._exit(0)


def _run(answer, prepare, test, named):
    text = "fine"
    try:
        register()
        prepare()
        with half_on_cpu():
            test(**named)
    except BaseException:
        text = traceback.format_exc()
    os.write(answer, text.encode()[-60000:])
    os._exit(0)
