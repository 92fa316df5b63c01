/* SPDX-License-Identifier: Apache-2.0 */
/* libamp.kernels.pack and unpack: one tensor in 8, 4, 2 or 1 bits an element. They are called for each saved tensor of
 * a backward, so their arguments are read without names. */
#include "amp_pack.h"
#include "call.h"
#include "context.h"
#include "kernels.h"

/* One tensor, its packed memory, and the results. */
typedef struct packing {
    amp_py_call call; /* first member, so that kernels find the others */
    PyObject *keep_packed, *keep_flags;
    amp_pack_args pack;
    amp_unpack_args unpack;
} packing;

static amp_status pack_cpu(amp_py_call *call) { return amp_pack(&((packing *)call)->pack); }
static amp_status pack_cuda(amp_py_call *call) {
    return amp_device_pack(call->list, call->stream, &((packing *)call)->pack);
}
static amp_status unpack_cpu(amp_py_call *call) { return amp_unpack(&((packing *)call)->unpack); }
static amp_status unpack_cuda(amp_py_call *call) {
    return amp_device_unpack(call->list, call->stream, &((packing *)call)->unpack);
}

/* Opens the packed memory, without gaps. An element of a type outside of libamp counts as a byte. Returns the address,
 * or NULL with an exception. */
static void *packed_memory(PyObject *tensor, uint64_t wanted, bool written, packing *x) {
    const amp_py_call *call = &x->call;
    const amp_py_where place = { "packed", -1 };
    amp_py_view view;
    if (amp_py_view_get(tensor, place, false, &view, &x->keep_packed)) return NULL;
    const amp_dtype dtype = view.span.dtype;
    const uint64_t width = dtype == AMP_DTYPE_OTHER ? 1 : dtype == AMP_FLOAT64 ? 8 : dtype == AMP_FLOAT32 ? 4 : 2;
    if (!view.compact) {
        amp_py_refuse(place, "has gaps between its elements");
    } else if (written && view.read_only) {
        amp_py_refuse(place, "is read-only and would be written");
    } else if (view.device.type != call->device.type || view.device.id != call->device.id) {
        amp_py_refuse(place, "is on another device than %s", call->lists[0].name);
    } else if (view.span.size * width < wanted) {
        amp_py_refuse(place, "has %llu byte%s and %llu are needed: see libamp.kernels.packed_bytes(elements, bits)",
                      (unsigned long long)(view.span.size * width), AMP_PY_S(view.span.size * width),
                      (unsigned long long)wanted);
    } else if (!view.span.data) { /* no elements */
        return (void *)(uintptr_t)call; /* never read or written */
    } else {
        return view.span.data;
    }
    return NULL; /* close_packing releases it */
}

static float *flags_of(PyObject *tensor, packing *x) {
    const amp_py_where place = { "flags", -1 };
    amp_py_view view;
    if (amp_py_view_get(tensor, place, false, &view, &x->keep_flags)) return NULL;
    if (view.span.dtype != AMP_FLOAT32 || view.span.size < 2 || !view.compact || view.read_only)
        amp_py_refuse(place, "must be two float32 without gaps between them, which are written");
    else if (view.device.type != x->call.device.type || view.device.id != x->call.device.id)
        amp_py_refuse(place, "is on another device than %s", x->call.lists[0].name);
    else return view.span.data;
    return NULL; /* close_packing releases it */
}

static void close_packing(packing *x) {
    amp_py_let_go(&x->keep_packed);
    amp_py_let_go(&x->keep_flags);
    amp_py_call_close(&x->call);
}

/* Returns the packed memory, or NULL with an exception and everything closed. */
static void *open_packing(packing *x, const char *name, PyObject *tensor, PyObject *packed, int32_t bits, int how) {
    const amp_py_list *list = &x->call.lists[0];
    void *memory = NULL;
    x->call.has_no_plan = true;
    if (amp_py_call_open(&x->call, &(amp_py_argument){ name, tensor, how }, 1)) return NULL;
    if (!list->single) PyErr_Format(PyExc_TypeError, "%s: a tensor is wanted, not a list of them", name);
    else memory = packed_memory(packed, amp_pack_bytes(list->spans[0].size, bits), !(how & AMP_PY_WRITE), x);
    if (!memory) close_packing(x);
    return memory;
}

/* Returns 0, which amp_pack refuses, for a value outside of int32_t. */
static int32_t bits_of(PyObject *number) {
    const long bits = PyLong_AsLong(number);
    return bits == (int32_t)bits ? (int32_t)bits : 0;
}

/* Runs, and reads the results unless they go to the caller's tensor. */
static PyObject *run_pack(packing *x, PyObject *to) {
    float seen[2] = { 0.0f, 0.0f };
    const bool there = to == NULL && x->call.device.type == AMP_PY_CUDA;
    PyObject *scratch = NULL, *result = NULL;
    void *flags = seen;
    if (to) flags = flags_of(to, x);
    else if (there) scratch = amp_py_cuda_make("zeros", PyLong_FromLong(2), "float32", x->call.device, &flags);
    if (flags && !PyErr_Occurred()) {
        x->pack.found_inf = flags;
        x->pack.inexact = (float *)flags + 1;
        if (!amp_py_call_run(&x->call, pack_cpu, pack_cuda) && !(there && amp_py_cuda_read(scratch, seen, 2)))
            result = to ? Py_NewRef(Py_None) : Py_BuildValue("(OO)", seen[0] != 0.0f ? Py_True : Py_False,
                                                             seen[1] != 0.0f ? Py_True : Py_False);
    }
    Py_XDECREF(scratch);
    return result;
}

static PyObject *pack(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    (void)self;
    if (n < 4 || n > 6) {
        PyErr_Format(PyExc_TypeError, "pack takes packed, src, bits, seed, and a context and flags or none, not %zd "
                     "argument%s", n, AMP_PY_S(n));
        return NULL;
    }
    packing x = { .call = { .function = "pack" }, .pack = AMP_PACK_ARGS_INIT };
    x.pack.bits = bits_of(args[2]);
    x.pack.seed = PyLong_AsUnsignedLongLongMask(args[3]);
    if (n >= 5 && args[4] != Py_None) x.pack.context = amp_py_context(args[4]);
    if (PyErr_Occurred()) return NULL;
    x.pack.packed = open_packing(&x, "src", args[1], args[0], x.pack.bits, AMP_PY_READ);
    if (!x.pack.packed) return NULL;
    x.pack.src = x.call.lists[0].spans[0];
    PyObject *result = run_pack(&x, n == 6 && args[5] != Py_None ? args[5] : NULL);
    close_packing(&x);
    return result;
}

static PyObject *unpack(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    (void)self;
    if (n != 3) {
        PyErr_Format(PyExc_TypeError, "unpack takes dst, packed and bits: 3 arguments, not %zd", n);
        return NULL;
    }
    packing x = { .call = { .function = "unpack" }, .unpack = AMP_UNPACK_ARGS_INIT };
    x.unpack.bits = bits_of(args[2]);
    if (PyErr_Occurred()) return NULL;
    x.unpack.packed = open_packing(&x, "dst", args[0], args[1], x.unpack.bits, AMP_PY_WRITE);
    if (!x.unpack.packed) return NULL;
    x.unpack.dst = x.call.lists[0].spans[0];
    const int bad = amp_py_call_run(&x.call, unpack_cpu, unpack_cuda);
    close_packing(&x);
    return bad ? NULL : Py_NewRef(Py_None);
}

static PyObject *packed_bytes(PyObject *self, PyObject *args) {
    (void)self;
    unsigned long long size;
    int bits;
    return PyArg_ParseTuple(args, "Ki:packed_bytes", &size, &bits)
        ? PyLong_FromUnsignedLongLong(amp_pack_bytes(size, bits)) : NULL;
}

#define QUICK(function, doc) { #function, (PyCFunction)(void (*)(void))function, METH_FASTCALL, doc }

static PyMethodDef methods[] = {
    QUICK(pack, "pack(packed, src, bits, seed, context=None, flags=None, /)\n--\n\n"
                "Packs src in 8, 4, 2 or 1 bits an element (amp_pack.h). Returns True if an element is not finite, "
                "and with 1 bit True if one is not restored exactly. context: its memory record counts it. flags: two "
                "float32 on src's device, set to 1 instead. Then it returns None, without waiting."),
    QUICK(unpack, "unpack(dst, packed, bits, /)\n--\n\n"
                  "Unpacks into dst, as many elements, in any 16-bit type or float32."),
    { "packed_bytes", packed_bytes, METH_VARARGS,
      "packed_bytes(size, bits, /)\n--\n\nReturns the packed bytes of `size` elements, 0 for invalid bits." },
    { NULL, NULL, 0, NULL },
};

int amp_py_add_pack(PyObject *kernels) { return PyModule_AddFunctions(kernels, methods); }
