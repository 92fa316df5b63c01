/* SPDX-License-Identifier: Apache-2.0 */
/* libamp.kernels.pack and unpack: one tensor in 8, 4, 2 or 1 bits an element. They are called for each tensor that a
 * backward pass waits for, so their arguments are read without names. */
#include "amp_pack.h"
#include "context.h"
#include "kernels.h"
#include "list.h"

/* The packed side: memory without gaps, of whatever type. An element of a type that is not libamp's has a byte at
 * least. Returns its address, or NULL with an exception; *keep as amp_py_view_get's. */
static void *packed_memory(PyObject *tensor, const amp_py_list *list, int bits, bool written, PyObject **keep)
{
    const amp_py_where place = { "packed", -1 };
    amp_py_view view;
    if (amp_py_view_get(tensor, place, false, &view, keep)) {
        return NULL;
    }
    const uint64_t wanted = amp_pack_bytes(list->spans[0].size, bits);
    const amp_dtype dtype = view.span.dtype;
    const uint64_t width = dtype == AMP_DTYPE_OTHER ? 1 : dtype == AMP_FLOAT64 ? 8 : dtype == AMP_FLOAT32 ? 4 : 2;
    if (!view.compact) {
        amp_py_refuse(place, "has gaps between its elements");
    } else if (written && view.read_only) {
        amp_py_refuse(place, "is read-only and would be written");
    } else if (view.device.type != AMP_PY_CPU || (list->device.type != AMP_PY_CPU && list->device.type != 0)) {
        amp_py_refuse(place, "works on the CPU alone, and this tensor or %s is elsewhere", list->name);
    } else if (view.span.size * width < wanted) {
        amp_py_refuse(place, "has %llu bytes and %llu are needed: see libamp.kernels.packed_bytes(elements, bits)",
                      (unsigned long long)(view.span.size * width), (unsigned long long)wanted);
    } else if (view.span.data == NULL) { /* of no elements */
        return (void *)(uintptr_t)list; /* read and written by nobody */
    } else {
        return view.span.data;
    }
    amp_py_let_go(keep);
    return NULL;
}

static int open_one(amp_py_list *list, const char *name, PyObject *tensor, int how)
{
    if (amp_py_list_open(list, name, tensor, how, NULL)) {
        return -1;
    }
    if (!list->single) {
        PyErr_Format(PyExc_TypeError, "%s: a tensor is wanted, not a list of them", name);
        amp_py_list_close(list);
        return -1;
    }
    return 0;
}

/* 0, which amp_pack refuses, for what is no int32_t. */
static int32_t bits_of(PyObject *number)
{
    const long bits = PyLong_AsLong(number);
    return bits == (int32_t)bits ? (int32_t)bits : 0;
}

static PyObject *pack(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    (void)self;
    if (n != 4 && n != 5) {
        PyErr_Format(PyExc_TypeError, "pack takes packed, src, bits, seed and a context or none, not %zd arguments", n);
        return NULL;
    }
    amp_pack_args call = AMP_PACK_ARGS_INIT;
    float found_inf = 0.0f, inexact = 0.0f;
    amp_py_list src;
    PyObject *keep = NULL;
    call.bits = bits_of(args[2]);
    call.seed = PyLong_AsUnsignedLongLongMask(args[3]);
    call.found_inf = &found_inf;
    call.inexact = &inexact;
    if (n == 5 && args[4] != Py_None) {
        call.context = amp_py_context(args[4]);
    }
    if (PyErr_Occurred() || open_one(&src, "src", args[1], AMP_PY_READ)) {
        return NULL;
    }
    call.src = src.spans[0];
    call.packed = packed_memory(args[0], &src, call.bits, true, &keep);
    amp_status status = AMP_OK;
    if (call.packed != NULL) {
        Py_BEGIN_ALLOW_THREADS
        status = amp_pack(&call);
        Py_END_ALLOW_THREADS
    }
    amp_py_let_go(&keep);
    amp_py_list_close(&src);
    if (call.packed == NULL || status != AMP_OK) {
        return call.packed ? amp_py_raise(status) : NULL;
    }
    return Py_BuildValue("(OO)", found_inf != 0.0f ? Py_True : Py_False, inexact != 0.0f ? Py_True : Py_False);
}

static PyObject *unpack(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    (void)self;
    if (n != 3) {
        PyErr_Format(PyExc_TypeError, "unpack takes dst, packed and bits: 3 arguments, not %zd", n);
        return NULL;
    }
    amp_unpack_args call = AMP_UNPACK_ARGS_INIT;
    amp_py_list dst;
    PyObject *keep = NULL;
    call.bits = bits_of(args[2]);
    if (PyErr_Occurred() || open_one(&dst, "dst", args[0], AMP_PY_WRITE)) {
        return NULL;
    }
    call.dst = dst.spans[0];
    call.packed = packed_memory(args[1], &dst, call.bits, false, &keep);
    amp_status status = AMP_OK;
    if (call.packed != NULL) {
        Py_BEGIN_ALLOW_THREADS
        status = amp_unpack(&call);
        Py_END_ALLOW_THREADS
    }
    const int bad = call.packed == NULL || status != AMP_OK || amp_py_lists_touch(&dst, 1);
    amp_py_let_go(&keep);
    amp_py_list_close(&dst);
    if (bad) {
        return call.packed && status != AMP_OK ? amp_py_raise(status) : NULL;
    }
    return Py_NewRef(Py_None);
}

static PyObject *packed_bytes(PyObject *self, PyObject *args)
{
    (void)self;
    unsigned long long size;
    int bits;
    return PyArg_ParseTuple(args, "Ki:packed_bytes", &size, &bits)
        ? PyLong_FromUnsignedLongLong(amp_pack_bytes(size, bits)) : NULL;
}

#define QUICK(function, doc) { #function, (PyCFunction)(void (*)(void))function, METH_FASTCALL, doc }

static PyMethodDef methods[] = {
    QUICK(pack, "pack(packed, src, bits, seed, context=None, /)\n--\n\n"
                "packed = src in 8, 4, 2 or 1 bits an element (amp_pack.h). Whether an element is not finite, and, "
                "with 1 bit, whether one does not come back as it was. context: whose ledger counts it."),
    QUICK(unpack, "unpack(dst, packed, bits, /)\n--\n\n"
                  "dst = what was packed: as many elements, in any 16-bit type or float32."),
    { "packed_bytes", packed_bytes, METH_VARARGS,
      "packed_bytes(size, bits, /)\n--\n\nBytes of `size` elements packed; 0 for bits that are none." },
    { NULL, NULL, 0, NULL },
};

int amp_py_add_pack(PyObject *kernels) { return PyModule_AddFunctions(kernels, methods); }
