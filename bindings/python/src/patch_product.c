/* SPDX-License-Identifier: Apache-2.0 */
/* Products in 16 bits on the CPU. A patched function of products has a replacement that sums in FP32 and rounds once
 * (libamp/torch/amp/products.py). It is called for 16-bit arguments, whether the policy, autocast or the model made
 * them. All other calls pay for one look at a type. */
#include "patch.h"

#include <string.h>

#include "context.h"

enum { STACK = 16 };
enum { GIVEN, BY_POLICY, BY_AUTOCAST }; /* the reason for 16 bits */

static uint32_t served;             /* 16-bit types of products, as amp_py_bit. 0: none */
static PyObject *in_autocast;       /* callable(): True in autocast on the CPU. NULL or None: autocast is not heeded */
static PyObject *autocast_type;     /* callable(): its 16-bit type, or None */

static PyObject *call_product(const amp_py_patched *function, PyObject *low, int lowered, PyObject *const *args,
                              Py_ssize_t n, PyObject *names) {
    PyObject *values[STACK + 2];
    const Py_ssize_t total = n + (names ? PyTuple_Size(names) : 0);
    if (total > STACK) return Py_NewRef(Py_NotImplemented);
    values[0] = low;
    values[1] = PyLong_FromLong(lowered);
    memcpy(values + 2, args, (size_t)total * sizeof *args);
    PyObject *result = amp_py_call_alone(function->product, values, (size_t)n + 2, names);
    Py_XDECREF(values[1]); /* a small number: there is one */
    return result;
}

/* Returns the type of the first tensor among the arguments, and the tensor. */
static amp_dtype first_type(PyObject *const *args, Py_ssize_t total, PyObject **tensor) {
    for (Py_ssize_t i = 0; i < total; i++) {
        uint32_t set = 0;
        *tensor = args[i];
        const amp_dtype type = amp_py_collect(args[i], &set);
        if (type == AMP_DTYPE_DEFAULT && set) { /* a list of tensors, of one type if they can be multiplied */
            for (amp_dtype dtype = AMP_FLOAT32; dtype <= AMP_FLOAT64; dtype++) {
                if (set & amp_py_bit(dtype)) return dtype;
            }
        }
        if (amp_py_bit(type)) return type;
    }
    return AMP_DTYPE_OTHER;
}

PyObject *amp_py_product_as_given(const amp_py_patched *function, PyObject *const *args, size_t nargsf,
                                  PyObject *names) {
    if (!function->product || !served) return Py_NewRef(Py_NotImplemented);
    const Py_ssize_t n = (Py_ssize_t)(nargsf & ~((size_t)1 << (8 * sizeof(size_t) - 1)));
    PyObject *tensor;
    const amp_dtype type = first_type(args, n + (names ? PyTuple_Size(names) : 0), &tensor);
    if (served & amp_py_bit(type))
        return amp_py_is_on_cuda(tensor) ? Py_NewRef(Py_NotImplemented)
                                         : call_product(function, amp_py_torch_dtype(type), GIVEN, args, n, names);
    if (type != AMP_FLOAT32 || !in_autocast || in_autocast == Py_None) return Py_NewRef(Py_NotImplemented);
    PyObject *low = PyObject_CallNoArgs(in_autocast);
    if (low == Py_True) {
        Py_DECREF(low);
        low = PyObject_CallNoArgs(autocast_type);
    }
    PyObject *result = !low ? NULL
        : low == Py_False || low == Py_None ? Py_NewRef(Py_NotImplemented)
                                            : call_product(function, low, BY_AUTOCAST, args, n, names);
    Py_XDECREF(low);
    return result;
}

PyObject *amp_py_product_lowered(const amp_py_patched *function, amp_dtype low, PyObject *const *args, Py_ssize_t n,
                                 PyObject *names) {
    PyObject *tensor;
    if (!function->product || !(served & amp_py_bit(low))) return Py_NewRef(Py_NotImplemented);
    const amp_dtype type = first_type(args, n + (names ? PyTuple_Size(names) : 0), &tensor);
    if (type == AMP_DTYPE_OTHER || amp_py_is_on_cuda(tensor)) return Py_NewRef(Py_NotImplemented);
    return call_product(function, amp_py_torch_dtype(low), BY_POLICY, args, n, names);
}

static PyObject *serve_products(PyObject *module, PyObject *args) {
    PyObject *types, *is_on, *type_of;
    uint32_t set = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!OO", &PyTuple_Type, &types, &is_on, &type_of) || amp_py_cast_init() < 0) return NULL;
    for (Py_ssize_t i = 0; i < PyTuple_Size(types); i++) {
        for (amp_dtype dtype = AMP_FLOAT16; dtype <= AMP_BFLOAT16; dtype++) {
            if (PyTuple_GetItem(types, i) == amp_py_torch_dtype(dtype)) set |= amp_py_bit(dtype);
        }
    }
    PyObject *before[] = { in_autocast, autocast_type };
    in_autocast = Py_NewRef(is_on);
    autocast_type = Py_NewRef(type_of);
    served = set;
    Py_XDECREF(before[0]);
    Py_XDECREF(before[1]);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    { "serve_products", serve_products, METH_VARARGS,
      "serve_products(types, in_autocast, autocast_type): products of these types of torch go to their replacements. "
      "in_autocast: a callable, True in autocast on the CPU, or None. autocast_type: another, its type or None." },
    { NULL, NULL, 0, NULL },
};

int amp_py_add_products(PyObject *module) { return PyModule_AddFunctions(module, functions); }
