# SPDX-License-Identifier: Apache-2.0
"""A GPU of the tests' own behind torch on the CPU, for a process that does nothing else.

libamp hears that every tensor is a GPU's, and works on it by the plugin of tests/cuda, whose CUDA is a fake. Each of
torch's ops becomes work on the fake's stream, where alone the memory of libamp's own may be touched, and counts as a
wait where the host hears of a result. A capture keeps work of both, and a replay runs it.
"""
import contextlib
import ctypes
import importlib
import os
import types

import extras
import torch
from producer import DLTensor, api
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

FOLDER = "AMP_FAKE_CUDA"
_INTS = (
    "devices", "current", "switches", "calls", "launches", "uploads", "blocks", "streams", "waits", "on_null_stream",
    "on_wrong_device", "fail_at", "fail_with", "last_error", "capturing", "relaxed", "capturing_elsewhere",
    "broke_capture", "pools", "capability",
)
_TOOLS = (
    "alloc", "free", "copy", "flush", "capture_begin", "capture_end", "replay", "end", "work", "stream", "take",
    "managed", "synchronize", "written",
)
_WAITS = ("_local_scalar_dense", "equal", "is_nonzero", "nonzero")
_RUN = ctypes.PYFUNCTYPE(None, ctypes.POINTER(ctypes.c_int64))


class Fake(ctypes.Structure):
    """tests/cuda/fake.h"""

    _fields_ = [*((name, ctypes.c_int) for name in _INTS), ("clock", ctypes.c_float), ("event_waits", ctypes.c_int)]


class Tools(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in _TOOLS]


class Exchange(ctypes.Structure):
    """DLPack's table of C functions."""

    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32),
                *((name, ctypes.c_void_p) for name in ("older", "allocate", "export", "adopt", "view", "stream"))]


def why_not():
    """Why there can be none here, or None."""
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        return "this torch has no table of DLPack's functions"
    if not os.path.exists(os.path.join(os.environ.get(FOLDER, ""), "libfake_cublasLt.so")):
        return f"{FOLDER} names no folder tests/cuda of a C build with a CUDA of the tests' own"
    return None


class Event:
    """torch.cuda.Event: what is before it has run when it is asked a second time."""

    asked = 0

    def record(self):
        pass

    def synchronize(self):
        pass

    def query(self):
        self.asked += 1
        return self.asked > 1


def _places(func):
    """Which arguments an op writes."""
    return [bool(argument.alias_info and argument.alias_info.is_write) for argument in func._schema.arguments]


def _blank(tensor):
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype).fill_(0)


class Gpu(TorchDispatchMode):
    """What was installed: counts, captures, replays."""

    def __init__(self, folder):
        super().__init__()
        library = ctypes.PyDLL(os.path.join(folder, "libamp_cuda.so"))
        self.fake = Fake.in_dll(library, "amp_fake_cuda")
        tools = Tools.in_dll(library, "amp_fake_cuda_tools")
        kinds = {"work": ctypes.PYFUNCTYPE(None, _RUN, ctypes.POINTER(ctypes.c_int64), ctypes.c_size_t),
                 "stream": ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_int)}
        self.tools = types.SimpleNamespace(**{
            name: kinds.get(name, ctypes.PYFUNCTYPE(None))(getattr(tools, name)) for name in _TOOLS
        })
        self.read = 0  # results that torch brought to the host
        self.retired = []
        self._pinned = set()  # addresses of the host's
        self._work, self._run, self._failed = [], _RUN(self._run_one), None
        self._patch_torch()
        self._patch_libamp()

    # -- torch's ops --

    def _run_one(self, index):
        try:
            with torch._C._AutoDispatchBelowAutograd(), _disable_current_modes():
                self._work[index[0]]()
        except Exception as error:  # ctypes would only print it
            self._failed = error

    def _raise(self):
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def _put(self, run):
        self._work.append(run)
        self.tools.work(self._run, ctypes.byref(ctypes.c_int64(len(self._work) - 1)), 8)
        if not self.fake.capturing:
            self._work.pop()
            self._raise()

    def __torch_dispatch__(self, func, kinds, args=(), kwargs=None):
        kwargs, name = dict(kwargs or {}), func._schema.name.partition("::")[2]
        if kwargs.pop("pin_memory", False):
            tensor = func(*args, **kwargs)
            self._pinned.add(tensor.data_ptr())
            return tensor
        if name in _WAITS and args[0].data_ptr() not in self._pinned:
            self.read += 1
            if self.fake.capturing:
                raise RuntimeError(f"{name} while the stream is being captured")
        if not self.fake.capturing:
            results = []
            self._put(lambda: results.append(func(*args, **kwargs)))
            return results[0]
        if any(_places(func)):
            self._put(lambda: func(*args, **kwargs))
            return args[0] if func._schema.returns else None
        if any(result.alias_info for result in func._schema.returns) or "empty" in name:
            return func(*args, **kwargs)
        return self._captured(func, args, kwargs)

    def _captured(self, func, args, kwargs):
        """Nothing runs now, but what has results of this shape."""
        out = func(*tree_map_only(torch.Tensor, _blank, args), **tree_map_only(torch.Tensor, _blank, kwargs))

        def run():
            for into, value in zip(tree_leaves(out), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(into, torch.Tensor):
                    into.copy_(value)

        self._put(run)
        return out

    # -- captures --

    @contextlib.contextmanager
    def capture(self, graph, **how):
        """torch.cuda.graph. The fake keeps one graph with work of libamp's; those of torch's alone are kept here."""
        launches, first = self.fake.launches, len(self._work)
        self.tools.capture_begin()
        try:
            yield
        finally:
            self.tools.capture_end()
        work, ours = self._work[first:], self.fake.launches != launches

        def replay():
            if ours:
                self.tools.replay()
                self._raise()
            for run in () if ours else work:
                self._put(run)

        graph.replay = replay

    def waits(self):
        """So far: the host's for the stream, for an event, for a result."""
        return self.fake.waits, self.fake.event_waits, self.read

    # -- what is put in torch's and libamp's places --

    def _patch_torch(self):
        api.PyCapsule_GetPointer.restype = ctypes.c_void_p
        api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
        name = b"dlpack_exchange_api"
        table = Exchange.from_address(api.PyCapsule_GetPointer(torch.Tensor.__dlpack_c_exchange_api__, name))
        kind = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(DLTensor))
        view = kind(table.view)

        def view_there(tensor, out):
            status = view(tensor, out)
            out.contents.device_type = 2
            return status

        def stream(device_type, device, out):
            out[0] = self.tools.stream(device)
            return 0

        streams = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
        self._kept = [Exchange.from_buffer_copy(table), kind(view_there), streams(stream)]
        self._kept[0].view, self._kept[0].stream = (ctypes.cast(each, ctypes.c_void_p).value for each in self._kept[1:])
        torch.Tensor.__dlpack_c_exchange_api__ = api.PyCapsule_New(ctypes.addressof(self._kept[0]), name, None)
        torch.cuda.is_initialized = lambda: True
        torch.cuda.is_current_stream_capturing = lambda: bool(self.fake.capturing)
        torch.cuda.CUDAGraph = types.SimpleNamespace
        torch.cuda.graph = self.capture
        torch.cuda.synchronize = torch.cuda.graphs.graph_pool_handle = lambda: None
        torch.cuda.Stream = types.SimpleNamespace
        torch.cuda.Event = Event
        torch.cuda.stream = contextlib.nullcontext

    def _patch_libamp(self):
        from libamp.torch import _devices
        from libamp.torch.amp import session, storage

        _devices._events = lambda kind: Event
        number = storage.number

        def number_here(capsule):
            tensor = DLTensor.from_address(api.PyCapsule_GetPointer(capsule, b"dltensor"))
            assert (tensor.device_type, tensor.device_id) == (2, 0)
            tensor.device_type = 1
            return number(capsule)

        storage.number = number_here
        storage.retire = self.retired.append
        storage._DEVICES[2] = "cpu"
        if extras.is_there("activations"):
            importlib.import_module("libamp.torch.amp.packed")._is_there = lambda tensor: True
        session.is_elsewhere = lambda param: True


def install():
    """Before libamp's first context; AMP_BACKEND_PATH names the same folder."""
    return Gpu(os.environ[FOLDER])
