# SPDX-License-Identifier: Apache-2.0
"""A producer of DLPack capsules that counts what is done with them; its memory is a NumPy array's."""
import ctypes

try:
    import numpy as np
except ImportError:  # then arrays are whatever has what is asked of them here
    np = None

api = ctypes.pythonapi
api.PyCapsule_New.restype = ctypes.py_object
api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
api.PyCapsule_IsValid.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
CODES = {"i": 0, "u": 1, "f": 2}


class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class Managed(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Versioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", DLTensor)]


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def destroy(capsule):
    """Of every producer: an export that nobody took over ends with its capsule."""
    for name in (b"dltensor", b"dltensor_versioned"):
        if api.PyCapsule_IsValid(capsule, name):
            Producer.alive -= 1


class Producer:
    """Not an array and not torch's: only __dlpack__. `alive` counts the exports that have not ended."""

    alive = 0
    exports = 0

    def __init__(self, array, *, version=(1, 0), flags=0, device=(1, 0), offset=0, compact=False, **fields):
        self.array = array if np is None else np.asarray(array)
        self.version, self.flags, self.device = version, flags, device
        self.offset, self.compact, self.fields, self.kept = offset, compact, fields, []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **how):
        if self.version is None and how:
            raise TypeError("__dlpack__() got an unexpected keyword argument")
        array = self.array
        shape = (ctypes.c_int64 * max(array.ndim, 1))(*array.shape)
        strides = (ctypes.c_int64 * max(array.ndim, 1))(*(step // array.itemsize for step in array.strides))
        tensor = DLTensor(array.ctypes.data - self.offset, *self.device, array.ndim, CODES.get(array.dtype.kind, 3),
                          array.itemsize * 8, 1, shape, None if self.compact else strides, self.offset)
        for name, value in self.fields.items():
            setattr(tensor, name, value)
        if self.version is None:
            managed, name = Managed(tensor), b"dltensor"
        else:
            managed, name = Versioned(*self.version, None, None, self.flags, tensor), b"dltensor_versioned"
        self.kept.append((managed, shape, strides))
        Producer.alive += 1
        Producer.exports += 1
        return api.PyCapsule_New(ctypes.addressof(managed), name, ctypes.cast(destroy, ctypes.c_void_p))
