/* SPDX-License-Identifier: Apache-2.0 */
#include "view.h"

#include "dlpack.h"

static PyObject *n_array_interface; /* interned names */

/* ---- __array_interface__ ----------------------------------------------------------------------------------------- */

/* Returns libamp's type for "<f4". bfloat16 of ml_dtypes is "<V2", and only its dtype has the name. */
static int array_type(PyObject *array, PyObject *interface, amp_py_where place, amp_dtype *dtype, int64_t *width) {
    PyObject *text = PyDict_GetItemString(interface, "typestr"); /* borrowed */
    PyObject *bytes = text ? PyUnicode_AsASCIIString(text) : NULL;
    if (!bytes) {
        PyErr_Clear();
        return amp_py_refuse(place, "its __array_interface__ has no typestr");
    }
    const char *code = PyBytes_AsString(bytes);
    char order = code[0], kind = order ? code[1] : 0;
    *width = kind ? strtol(code + 2, NULL, 10) : 0;
    Py_DECREF(bytes);
    *dtype = AMP_DTYPE_OTHER;
    if (kind == 'f') {
        *dtype = *width == 2 ? AMP_FLOAT16 : *width == 4 ? AMP_FLOAT32 : *width == 8 ? AMP_FLOAT64 : AMP_DTYPE_OTHER;
    } else if (kind == 'V' && *width == 2) {
        PyObject *type = PyObject_GetAttrString(array, "dtype");
        PyObject *name = type ? PyObject_GetAttrString(type, "name") : NULL;
        if (name && PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, "bfloat16") == 0)
            *dtype = AMP_BFLOAT16;
        PyErr_Clear();
        Py_XDECREF(name);
        Py_XDECREF(type);
    }
    const uint16_t probe = 1;
    char foreign = *(const char *)&probe ? '>' : '<';
    if (*dtype != AMP_DTYPE_OTHER && order == foreign)
        return amp_py_refuse(place, "has the byte order of other machines: convert it first");
    return 0;
}

/* Reads a tuple of at most AMP_PY_DIMS integers. */
static int read_extents(PyObject *tuple, int64_t *out, int *count, amp_py_where place) {
    Py_ssize_t n = tuple && PyTuple_Check(tuple) ? PyTuple_Size(tuple) : -1;
    if (n < 0 || n > AMP_PY_DIMS) return amp_py_refuse(place, "has a shape that cannot be read");
    for (Py_ssize_t i = 0; i < n; i++) {
        out[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
        if (out[i] == -1 && PyErr_Occurred()) return -1;
    }
    *count = (int)n;
    return 0;
}

static int read_interface(PyObject *array, PyObject *interface, amp_py_where place, amp_py_view *view) {
    int64_t width = 0;
    if (array_type(array, interface, place, &view->span.dtype, &width)) return -1;
    PyObject *data = PyDict_GetItemString(interface, "data");
    if (!data || !PyTuple_Check(data) || PyTuple_Size(data) != 2)
        return amp_py_refuse(place, "its __array_interface__ has no address");
    view->span.data = PyLong_AsVoidPtr(PyTuple_GetItem(data, 0));
    view->read_only = PyObject_IsTrue(PyTuple_GetItem(data, 1)) != 0;
    int dims = 0;
    if (PyErr_Occurred() || read_extents(PyDict_GetItemString(interface, "shape"), view->shape, &view->dims, place))
        return -1;
    PyObject *strides = PyDict_GetItemString(interface, "strides");
    if (!strides || strides == Py_None) {
        int64_t step = 1;
        for (int i = view->dims - 1; i >= 0; i--) {
            view->strides[i] = step;
            step *= view->shape[i];
        }
        return 0;
    }
    if (read_extents(strides, view->strides, &dims, place)) return -1;
    for (int i = 0; i < dims; i++) {
        if (width <= 0 || view->strides[i] % width != 0)
            return amp_py_refuse(place, "has strides that are no multiple of its elements' size: copy it first");
        view->strides[i] /= width;
    }
    return dims == view->dims ? 0 : amp_py_refuse(place, "has a shape that cannot be read");
}

static int view_array(PyObject *tensor, amp_py_where place, amp_py_view *view) {
    PyObject *interface = PyObject_GetAttr(tensor, n_array_interface);
    if (!interface) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return -1;
        PyErr_Clear();
        return 1;
    }
    int state = PyDict_Check(interface) ? read_interface(tensor, interface, place, view) : 1;
    Py_DECREF(interface);
    return state == 0 ? amp_py_view_measure(view, place) : state;
}

/* ---- any object -------------------------------------------------------------------------------------------------- */

/* Raises TypeError and returns -1. */
static int refuse_type(PyObject *object, amp_py_where place) {
    PyObject *type = PyObject_GetAttrString((PyObject *)Py_TYPE(object), "__name__");
    if (type && place.index < 0)
        PyErr_Format(PyExc_TypeError, "%s: '%U' is no tensor: it has no __dlpack__", place.name, type);
    else if (type)
        PyErr_Format(PyExc_TypeError, "%s[%zd]: '%U' is no tensor: it has no __dlpack__", place.name, place.index,
                     type);
    Py_XDECREF(type);
    return -1;
}

void amp_py_let_go(PyObject **keep) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    Py_CLEAR(*keep);
    PyErr_Restore(type, value, trace);
}

int amp_py_view_get(PyObject *tensor, amp_py_where place, bool shape, amp_py_view *view, PyObject **keep) {
    *keep = NULL;
    view->span = (amp_span){ NULL, 0, AMP_DTYPE_OTHER, 0 };
    view->device = (amp_device){ AMP_PY_CPU, 0 };
    view->is_torch = view->read_only = false;
    view->dims = 0;
    int state = amp_py_view_torch(tensor, place, shape, view);
    if (state == 1) state = amp_py_view_dlpack(tensor, place, view, keep);
    if (state == 1) state = view_array(tensor, place, view);
    if (state == 1) return refuse_type(tensor, place);
    if (state == 0 && view->span.size != 0 && !view->span.data)
        state = amp_py_refuse(place, "has no memory of its own (a meta or fake tensor?)");
    if (state != 0) amp_py_let_go(keep);
    return state;
}

int amp_py_add_view(PyObject *module) {
    (void)module;
    n_array_interface = PyUnicode_InternFromString("__array_interface__");
    return n_array_interface ? 0 : -1;
}
