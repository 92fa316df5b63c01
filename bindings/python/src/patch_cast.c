/* SPDX-License-Identifier: Apache-2.0 */
/* Finds floating tensors among arguments, casts them, and calls with the casts. */
#include "patch.h"

#include <dlfcn.h>
#include <string.h>

#include "context.h"

enum { DEEPEST = 16 }; /* lists in lists */

static PyTypeObject *tensor_class, *parameter_class;
static PyObject *name_make;
/* Tensor.float and similar methods take half the time of Tensor.to. Called as C functions. */
static PyObject *to_type[AMP_FLOAT64 + 1], *no_arguments;
static PyCFunctionWithKeywords to_type_directly[AMP_FLOAT64 + 1];

static PyObject *get_attribute(PyObject *of, const char *name) {
    return of ? PyObject_GetAttrString(of, name) : NULL;
}

int amp_py_cast_init(void) {
    static const char *const methods[] = { NULL, "float", "half", "bfloat16", "double" };
    if (tensor_class) return 0;
    PyObject *torch = amp_py_torch() < 0 ? NULL : PyImport_ImportModule("torch");
    PyObject *nn = get_attribute(torch, "nn"), *tensor = get_attribute(torch, "Tensor"),
        *parameter = get_attribute(nn, "Parameter");
    name_make = PyUnicode_InternFromString("_make");
    for (amp_dtype dtype = AMP_FLOAT32; dtype <= AMP_FLOAT64; dtype++)
        to_type[dtype] = get_attribute(tensor, methods[dtype]);
    no_arguments = PyTuple_New(0);
    Py_XDECREF(nn);
    if (PyErr_Occurred() || !torch) {
        Py_XDECREF(torch);
        return -1;
    }
    for (amp_dtype dtype = AMP_FLOAT32; dtype <= AMP_FLOAT64; dtype++) {
        const PyCFunction found = amp_py_method(methods[dtype], METH_VARARGS | METH_KEYWORDS);
        memcpy(&to_type_directly[dtype], &found, sizeof found);
    }
    amp_py_quick_init(torch);
    Py_DECREF(torch);
    parameter_class = (PyTypeObject *)parameter;
    tensor_class = (PyTypeObject *)tensor;
    return 0;
}

/* Python 3.10 has it as an inline function only. */
static PyObject *call_by_tuple(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    const Py_ssize_t n = (Py_ssize_t)(nargsf & ~((size_t)1 << (8 * sizeof(size_t) - 1)));
    const Py_ssize_t n_names = kwnames ? PyTuple_Size(kwnames) : 0;
    PyObject *tuple = PyTuple_New(n), *result = NULL;
    PyObject *keywords = n_names ? PyDict_New() : NULL;
    for (Py_ssize_t i = 0; tuple && i < n; i++) PyTuple_SetItem(tuple, i, Py_NewRef(args[i]));
    int bad = tuple == NULL || (n_names && keywords == NULL);
    for (Py_ssize_t i = 0; !bad && i < n_names; i++)
        bad = PyDict_SetItem(keywords, PyTuple_GetItem(kwnames, i), args[n + i]);
    if (!bad) result = PyObject_Call(callable, tuple, keywords);
    Py_XDECREF(tuple);
    Py_XDECREF(keywords);
    return result;
}

amp_py_vectorcall amp_py_call_vector = call_by_tuple;

void amp_py_find_vectorcall(void) {
    void *symbol = dlsym(RTLD_DEFAULT, "PyObject_Vectorcall");
    if (symbol) memcpy(&amp_py_call_vector, &symbol, sizeof symbol);
}

PyObject *amp_py_call_alone(PyObject *function, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    amp_scope scope;
    amp_status status = amp_scope_enter(NULL, &scope);
    if (status != AMP_OK) return amp_py_raise(status);
    PyObject *result = amp_py_call_vector(function, args, nargsf, kwnames);
    status = amp_scope_leave(&scope);
    if (status != AMP_OK && result) {
        Py_DECREF(result);
        return amp_py_raise(status);
    }
    return result;
}

static inline bool is_tensor(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    return type == tensor_class || type == parameter_class || PyType_IsSubtype(type, tensor_class);
}

static inline bool is_plain_object(PyTypeObject *type) {
    return type == &PyLong_Type || type == &PyFloat_Type || type == &PyBool_Type || type == &PyUnicode_Type;
}

amp_dtype amp_py_tensor_type(PyObject *object) {
    return is_tensor(object) ? amp_py_dtype(object) : AMP_DTYPE_OTHER;
}

static amp_dtype collect_types(PyObject *value, uint32_t *set, int depth) {
    PyTypeObject *type = Py_TYPE(value);
    amp_dtype dtype = AMP_DTYPE_OTHER;
    if (type == tensor_class || type == parameter_class) {
        dtype = amp_py_dtype(value);
        *set |= amp_py_bit(dtype);
        return dtype;
    }
    if (value == Py_None || is_plain_object(type)) return AMP_DTYPE_OTHER;
    const bool tuple = PyTuple_Check(value);
    if ((tuple || PyList_Check(value)) && depth < DEEPEST) {
        const Py_ssize_t n = tuple ? PyTuple_Size(value) : PyList_Size(value);
        for (Py_ssize_t i = 0; i < n; i++)
            (void)collect_types(tuple ? PyTuple_GetItem(value, i) : PyList_GetItem(value, i), set, depth + 1);
        return AMP_DTYPE_DEFAULT;
    }
    dtype = amp_py_tensor_type(value);
    *set |= amp_py_bit(dtype);
    return dtype;
}

amp_dtype amp_py_collect(PyObject *value, uint32_t *set) {
    return collect_types(value, set, 0);
}

static PyObject *cast_fresh(struct amp_py_call *call, PyObject *tensor, amp_dtype from) {
    const amp_dtype to = call->target;
    const bool exact = Py_TYPE(tensor) == tensor_class || Py_TYPE(tensor) == parameter_class;
    PyObject *cast = exact ? amp_py_cast_quick(call, tensor, from, to) : NULL;
    if (cast) return cast;
    if (!amp_py_has_16_bits(tensor)) { /* few ops know other layouts in 16 bits */
        return Py_NewRef(tensor);
    }
    if (exact && to_type_directly[to]) return to_type_directly[to](tensor, no_arguments, NULL);
    return amp_py_call_vector(to_type[to], &tensor, 1, NULL);
}

/* Casts a weight once an iteration: the library caches it, only inside a scope. A write through .data changes no
 * version, and only the end of a forward clears the cache after it. Weights that are not trained are cast anew, as
 * torch does: a momentum encoder is written that way between two uses in one forward. */
static PyObject *cast_weight(const struct amp_py_call *call, PyObject *tensor) {
    amp_cast_frame frame = AMP_CAST_FRAME_INIT;
    void *handle = tensor;
    const amp_status status = amp_cast_to(call->policy->amp, call->target, &handle, 1, &frame);
    if (status != AMP_OK) return amp_py_context_raise((amp_py_Context *)call->policy->context, status);
    PyObject *cast = Py_NewRef((PyObject *)handle);
    (void)amp_cast_done(&frame);
    return cast;
}

static int report_cast(const struct amp_py_call *call, amp_dtype from) {
    PyObject *told = PyObject_CallFunction(call->policy->report, "Oii", call->function->op, from, call->target);
    Py_XDECREF(told);
    return told ? 0 : -1;
}

static PyObject *cast_tensor(struct amp_py_call *call, PyObject *tensor, amp_dtype from) {
    const uint32_t bit = amp_py_bit(from);
    if (bit == 0 || from == call->target || (call->function->flags & AMP_PY_WIDENS && !(bit & AMP_PY_LOW)))
        return Py_NewRef(tensor);
    /* True if this argument changes the result for the set so far. */
    const int target = amp_py_target(call, call->into ? bit : bit | amp_py_bit(call->target));
    if (target < 0) return NULL;
    const bool weight = call->scoped && call->op_class == AMP_LOWER && Py_TYPE(tensor) == parameter_class &&
                        amp_py_requires_grad(tensor);
    if (target != (int)call->target) return Py_NewRef(tensor);
    if (call->policy->report && (weight || amp_py_has_16_bits(tensor)) && report_cast(call, from) < 0) return NULL;
    return weight ? cast_weight(call, tensor) : cast_fresh(call, tensor, from);
}

/* Returns a list or tuple of the same class with these items. Steals `items`. */
static PyObject *rebuild_sequence(PyObject *value, PyObject *items) {
    PyTypeObject *type = Py_TYPE(value);
    PyObject *made = NULL;
    if (type == &PyList_Type) return items;
    if (type == &PyTuple_Type) {
        made = PyList_AsTuple(items);
    } else {
        PyObject *make = PyObject_GetAttr((PyObject *)type, name_make); /* for a namedtuple */
        if (!make) {
            PyErr_Clear();
            make = Py_NewRef((PyObject *)type);
        }
        made = PyObject_CallFunctionObjArgs(make, items, NULL);
        Py_DECREF(make);
    }
    Py_DECREF(items);
    return made;
}

static PyObject *cast_value(struct amp_py_call *call, PyObject *value, int depth) {
    if (value == Py_None || is_plain_object(Py_TYPE(value))) return Py_NewRef(value);
    if (is_tensor(value)) return cast_tensor(call, value, amp_py_dtype(value));
    const bool tuple = PyTuple_Check(value);
    if ((!tuple && !PyList_Check(value)) || depth >= DEEPEST) return Py_NewRef(value);
    const Py_ssize_t n = tuple ? PyTuple_Size(value) : PyList_Size(value);
    PyObject *items = PyList_New(0);
    bool changed = false;
    for (Py_ssize_t i = 0; items && i < n; i++) {
        PyObject *item = tuple ? PyTuple_GetItem(value, i) : PyList_GetItem(value, i);
        PyObject *cast = item ? cast_value(call, item, depth + 1) : NULL;
        const int bad = cast ? PyList_Append(items, cast) : -1;
        changed |= cast != item;
        Py_XDECREF(cast);
        if (bad) Py_CLEAR(items);
    }
    if (!items || changed) return items ? rebuild_sequence(value, items) : NULL;
    Py_DECREF(items);
    return Py_NewRef(value);
}

PyObject *amp_py_cast_value(struct amp_py_call *call, PyObject *value, amp_dtype type) {
    if (type == AMP_DTYPE_DEFAULT) return cast_value(call, value, 0);
    return type == AMP_DTYPE_OTHER ? Py_NewRef(value) : cast_tensor(call, value, type);
}
