/* SPDX-License-Identifier: Apache-2.0 */
/* Memory by __dlpack__. The capsule is never consumed, so the producer keeps the ownership: when it is released, its
 * destructor ends the export. Memory is thus freed exactly once on every path. */
#include "dlpack.h"

#include <stdlib.h>

static PyObject *n_dlpack, *newest; /* "__dlpack__"; { "max_version": (1, 0) } */

static amp_dtype type_of(const dl_tensor *tensor) {
    if (tensor->lanes != 1) return AMP_DTYPE_OTHER;
    if (tensor->code == 4) return tensor->bits == 16 ? AMP_BFLOAT16 : AMP_DTYPE_OTHER;
    if (tensor->code != 2) return AMP_DTYPE_OTHER;
    return tensor->bits == 16 ? AMP_FLOAT16 : tensor->bits == 32 ? AMP_FLOAT32 : tensor->bits == 64 ? AMP_FLOAT64
                                                                                                     : AMP_DTYPE_OTHER;
}

int amp_py_view_measure(amp_py_view *view, amp_py_where place) {
    uint64_t size = 1;
    bool empty = false, compact = true;
    for (int i = view->dims - 1; i >= 0; i--) {
        uint64_t extent = (uint64_t)view->shape[i];
        if (view->shape[i] < 0) return amp_py_refuse(place, "has an extent below 0");
        compact = compact && (extent == 1 || view->strides[i] == (int64_t)size);
        empty = empty || extent == 0;
        if (extent != 0 && size > (uint64_t)PTRDIFF_MAX / extent)
            return amp_py_refuse(place, "has more elements than memory can hold");
        size *= extent ? extent : 1;
    }
    view->span.size = empty ? 0 : size;
    view->compact = compact || empty;
    return 0;
}

int amp_py_dlpack_read(const dl_tensor *tensor, amp_py_where place, amp_py_view *view) {
    view->device = (amp_device){ tensor->device_type, tensor->device_id };
    if (view->device.type == 3) { /* kDLCUDAHost: pinned, the processor's own */
        view->device = (amp_device){ AMP_PY_CPU, 0 };
    }
    view->span.dtype = type_of(tensor);
    if (tensor->dims < 0 || tensor->dims > AMP_PY_DIMS)
        return amp_py_refuse(place, "has %d dimension%s: at most %d can be read", (int)tensor->dims,
                             AMP_PY_S(tensor->dims), AMP_PY_DIMS);
    view->dims = tensor->dims;
    int64_t step = 1;
    for (int i = view->dims - 1; i >= 0; i--) {
        view->shape[i] = tensor->shape[i];
        view->strides[i] = tensor->strides ? tensor->strides[i] : step;
        step *= tensor->shape[i];
    }
    view->span.data = tensor->data ? (char *)tensor->data + tensor->byte_offset : NULL;
    return amp_py_view_measure(view, place);
}

static int read_capsule(PyObject *capsule, amp_py_where place, amp_py_view *view) {
    if (PyCapsule_IsValid(capsule, "dltensor")) {
        /* managed: the tensor is its first member */
        return amp_py_dlpack_read(PyCapsule_GetPointer(capsule, "dltensor"), place, view);
    }
    if (!PyCapsule_IsValid(capsule, "dltensor_versioned"))
        return amp_py_refuse(place, "its __dlpack__ gave no fresh DLPack capsule");
    const dl_versioned *managed = PyCapsule_GetPointer(capsule, "dltensor_versioned");
    if (managed->major != DL_MAJOR)
        return amp_py_refuse(place, "speaks DLPack %u.%u, libamp 1", (unsigned)managed->major,
                             (unsigned)managed->minor);
    /* writes to a copy would be lost */
    view->read_only = (managed->flags & (DL_READ_ONLY | DL_IS_COPIED)) != 0;
    return amp_py_dlpack_read(&managed->tensor, place, view);
}

/* Returns a capsule, or NULL with an exception. NumPy is fastest without arguments. Others are called for the newest
 * form first, which says whether the memory is writable. */
static PyObject *export_of(PyObject *method, bool plain) {
    PyObject *none = PyTuple_New(0);
    PyObject *capsule = none && !plain ? PyObject_Call(method, none, newest) : NULL;
    if (none && !capsule && (plain || PyErr_ExceptionMatches(PyExc_TypeError))) {
        PyErr_Clear();
        capsule = PyObject_Call(method, none, NULL);
    }
    Py_XDECREF(none);
    return capsule;
}

/* Raises "__dlpack__ failed: " and the producer's message. Only exceptions that reject this object are rewritten. */
static int refuse_export(amp_py_where place) {
    if (!PyErr_ExceptionMatches(PyExc_BufferError) && !PyErr_ExceptionMatches(PyExc_ValueError) &&
        !PyErr_ExceptionMatches(PyExc_TypeError) && !PyErr_ExceptionMatches(PyExc_RuntimeError))
        return -1;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    amp_py_refuse(place, "its __dlpack__ failed: %S", value ? value : type);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return -1;
}

int amp_py_view_dlpack(PyObject *tensor, amp_py_where place, amp_py_view *view, PyObject **keep) {
    PyObject *method = PyObject_GetAttr(tensor, n_dlpack);
    if (!method) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return -1;
        PyErr_Clear();
        return 1;
    }
    bool array = PyObject_HasAttrString((PyObject *)Py_TYPE(tensor), "__array_interface__");
    PyObject *capsule = export_of(method, array);
    Py_DECREF(method);
    if (!capsule) {
        if (array && !PyErr_ExceptionMatches(PyExc_MemoryError)) {
            PyErr_Clear();
            return 1; /* read-only, or a type outside of DLPack */
        }
        return refuse_export(place);
    }
    *keep = capsule;
    return read_capsule(capsule, place, view);
}

const dl_exchange *amp_py_dlpack_exchange(PyObject *type) {
    PyObject *capsule = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__");
    const dl_exchange *table = NULL;
    if (capsule && PyCapsule_IsValid(capsule, "dlpack_exchange_api"))
        table = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    Py_XDECREF(capsule);
    PyErr_Clear();
    while (table && table->major > DL_MAJOR) table = table->older;
    return table != NULL && table->major == DL_MAJOR ? table : NULL;
}

/* A managed tensor, which is its first member, with its extents. */
struct block {
    dl_managed managed;
    int64_t shape, stride;
};

static void end_block(dl_managed *managed) {
    free(managed);
}

/* A consumer that took the memory has renamed the capsule. */
static void end_capsule(PyObject *capsule) {
    if (PyCapsule_IsValid(capsule, "dltensor")) end_block(PyCapsule_GetPointer(capsule, "dltensor"));
}

PyObject *amp_py_dlpack_block(const void *address, uint64_t size, uint8_t code, uint8_t bits, amp_device device) {
    struct block *block = calloc(1, sizeof *block);
    if (!block) return PyErr_NoMemory();
    block->shape = (int64_t)size;
    block->stride = 1;
    block->managed.tensor = (dl_tensor){ .data = (void *)(uintptr_t)address, .device_type = device.type,
                                         .device_id = device.id, .dims = size ? 1 : 0, .code = code, .bits = bits,
                                         .lanes = 1, .shape = &block->shape, .strides = &block->stride };
    block->managed.deleter = end_block;
    PyObject *capsule = PyCapsule_New(&block->managed, "dltensor", end_capsule);
    if (!capsule) end_block(&block->managed);
    return capsule;
}

PyObject *amp_py_dlpack_number(const float *address, amp_device device) {
    return amp_py_dlpack_block(address, 0, 2, 32, device);
}

int amp_py_add_dlpack(PyObject *module) {
    (void)module;
    n_dlpack = PyUnicode_InternFromString("__dlpack__");
    newest = Py_BuildValue("{s(ii)}", "max_version", DL_MAJOR, 0);
    return n_dlpack && newest ? 0 : -1;
}
