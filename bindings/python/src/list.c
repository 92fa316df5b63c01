/* SPDX-License-Identifier: Apache-2.0 */
#include "list.h"
#include "served.h"

#include <stdlib.h>
#include <string.h>

/* ---- Order in memory --------------------------------------------------------------------------------------------- */

typedef struct axis { int64_t stride, extent; } axis;

static int by_stride(const void *left, const void *right) {
    int64_t a = ((const axis *)left)->stride, b = ((const axis *)right)->stride;
    return (a > b) - (a < b);
}

/* Returns the bytes of a tensor that is permuted but without gaps, one block in an order of extents and strides. NULL
 * without an exception for others. */
static PyObject *layout_of(const amp_py_view *view) {
    axis axes[AMP_PY_DIMS];
    int64_t key[2 * AMP_PY_DIMS];
    size_t n = 0;
    for (int i = 0; i < view->dims; i++) {
        if (view->shape[i] != 1) {
            axes[n] = (axis){ view->strides[i], view->shape[i] };
            key[2 * n] = view->strides[i], key[2 * n + 1] = view->shape[i];
            n++;
        }
    }
    qsort(axes, n, sizeof(axes[0]), by_stride);
    int64_t step = 1;
    for (size_t i = 0; i < n; i++) {
        if (axes[i].stride != step) return NULL;
        step *= axes[i].extent;
    }
    return PyBytes_FromStringAndSize((const char *)key, (Py_ssize_t)(2 * n * sizeof(key[0])));
}

static int keep_layout(amp_py_list *list, const amp_py_view *view, amp_py_where place) {
    PyObject *key = PyLong_FromSsize_t(place.index < 0 ? 0 : place.index);
    PyObject *layout = layout_of(view);
    int bad = -1;
    if (!layout && !PyErr_Occurred())
        amp_py_refuse(place, "has gaps between its elements: use a contiguous copy (torch: .contiguous(), NumPy: "
                             "numpy.ascontiguousarray), and copy a result back");
    else if (key && layout && (list->layouts || (list->layouts = PyDict_New())))
        bad = PyDict_SetItem(list->layouts, key, layout);
    Py_XDECREF(layout);
    Py_XDECREF(key);
    return bad;
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

static bool is_list(PyObject *argument) {
    if (PyList_Check(argument) || PyTuple_Check(argument)) return true;
    if (amp_py_is_torch(argument) || PyObject_HasAttrString(argument, "__dlpack__") ||
        PyObject_HasAttrString(argument, "__array_interface__"))
        return false;
    return PyObject_HasAttrString(argument, "__iter__");
}

static int read_one(amp_py_list *list, PyObject *tensor, amp_py_where place, amp_py_view *view) {
    PyObject *keep = NULL;
    if (amp_py_view_get(tensor, place, false, view, &keep)) return -1;
    if (view->is_torch && amp_py_serve_if(tensor, &view->device)) {
        amp_py_let_go(&keep);
        return -1;
    }
    if (keep) {
        int bad = list->keep == NULL && (list->keep = PyList_New(0)) == NULL ? -1 : PyList_Append(list->keep, keep);
        Py_DECREF(keep);
        if (bad) return -1;
    }
    if (view->span.dtype == AMP_DTYPE_OTHER && !(list->how & AMP_PY_CODES))
        return amp_py_refuse(place,
                             "has a type that libamp does not compute in: use float32, float16, bfloat16 or float64");
    if (view->read_only && (list->how & AMP_PY_WRITE)) return amp_py_refuse(place, "is read-only and would be written");
    if (view->device.type != AMP_PY_CPU && view->device.type != AMP_PY_CUDA && view->device.type != AMP_PY_SERVED)
        return amp_py_refuse(place, "is on a device of DLPack's type %d: libamp's kernels work on the CPU and on CUDA",
                             (int)view->device.type);
    if (list->device.type != 0 && (view->device.type != list->device.type || view->device.id != list->device.id))
        return amp_py_refuse(place, "is on another device than those before it: one call works on one device");
    list->device = view->device;
    list->n_torch += view->is_torch;
    return view->compact ? 0 : keep_layout(list, view, place);
}

static int read_all(amp_py_list *list) {
    amp_py_view view;
    for (size_t i = 0; i < list->n; i++) {
        PyObject *tensor = PyTuple_GetItem(list->tensors, (Py_ssize_t)i);
        if (tensor == Py_None && (list->how & AMP_PY_OPTIONAL)) {
            list->spans[i] = (amp_span){ NULL, 0, AMP_FLOAT32, 0 };
            continue;
        }
        if (read_one(list, tensor, (amp_py_where){ list->name, list->single ? -1 : (Py_ssize_t)i }, &view)) return -1;
        list->spans[i] = view.span;
    }
    return 0;
}

/* A twin has the same properties. */
static void copy_twin(amp_py_list *list, const amp_py_list *twin) {
    list->single = twin->single;
    list->n_torch = twin->n_torch;
    list->device = twin->device;
    list->n = twin->n;
    list->tensors = Py_NewRef(twin->tensors);
    list->keep = Py_XNewRef(twin->keep);
    list->layouts = Py_XNewRef(twin->layouts);
    memcpy(list->spans, twin->spans, twin->n * sizeof(amp_span));
}

static int alloc_spans(amp_py_list *list, size_t n) {
    list->spans = PyMem_Malloc((n ? n : 1) * sizeof(amp_span));
    if (!list->spans) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

int amp_py_list_open(amp_py_list *list, const char *name, PyObject *argument, int how, const amp_py_list *twin) {
    *list = (amp_py_list){ .name = name, .how = how, .source = argument };
    if (argument == Py_None && (how & AMP_PY_OPTIONAL)) return 0;
    if (twin && twin->source == argument && twin->tensors && (twin->how | how) == twin->how) {
        if (alloc_spans(list, twin->n)) return -1;
        copy_twin(list, twin);
        return 0;
    }
    list->single = !is_list(argument);
    list->tensors = list->single ? PyTuple_Pack(1, argument) : PySequence_Tuple(argument);
    if (!list->tensors) return -1;
    list->n = (size_t)PyTuple_Size(list->tensors);
    if (alloc_spans(list, list->n) || read_all(list)) {
        amp_py_list_close(list);
        return -1;
    }
    return 0;
}

void amp_py_list_close(amp_py_list *list) {
    PyMem_Free(list->spans);
    list->spans = NULL;
    Py_CLEAR(list->layouts);
    amp_py_let_go(&list->keep);
    Py_CLEAR(list->tensors);
}

/* ---- Lists of one call ---- */

/* Checks that entry i has the same layout in both. Entries of at most one element, and absent ones, always agree. */
static int same_layout(const amp_py_list *first, const amp_py_list *list, size_t i) {
    if (!first->layouts && !list->layouts) return 0;
    PyObject *key = PyLong_FromSize_t(i);
    if (!key) return -1;
    PyObject *a = first->layouts ? PyDict_GetItemWithError(first->layouts, key) : NULL;
    PyObject *b = list->layouts ? PyDict_GetItemWithError(list->layouts, key) : NULL;
    Py_DECREF(key);
    if (PyErr_Occurred()) return -1;
    bool there = first->spans[i].size > 1 && list->spans[i].size > 1;
    int same = a == b ? 1 : a && b ? PyObject_RichCompareBool(a, b, Py_EQ) : 0;
    if (same == 0 && there && first->spans[i].size == list->spans[i].size)
        return amp_py_refuse((amp_py_where){ list->name, list->single ? -1 : (Py_ssize_t)i },
                             "its elements lie in another order than %s's: make both contiguous", first->name);
    return same < 0 ? -1 : 0;
}

static int check_pair(const amp_py_list *first, const amp_py_list *list) {
    if (first->n != list->n) {
        PyErr_Format(amp_py_argument_error(), "%s has %zu tensor%s and %s %zu: they go in pairs", first->name, first->n,
                     AMP_PY_S(first->n), list->name, list->n);
        return -1;
    }
    if (first->device.type && list->device.type &&
        (first->device.type != list->device.type || first->device.id != list->device.id)) {
        PyErr_Format(amp_py_argument_error(), "%s and %s are on different devices: one call works on one device",
                     first->name, list->name);
        return -1;
    }
    for (size_t i = 0; i < list->n && (first->layouts || list->layouts); i++) {
        if (same_layout(first, list, i)) return -1;
    }
    return 0;
}

int amp_py_lists_agree(amp_py_list *lists, size_t count, amp_device *device) {
    *device = (amp_device){ 0, 0 };
    const amp_py_list *first = NULL;
    for (size_t k = 0; k < count; k++) {
        if (!lists[k].tensors) continue;
        if (first && check_pair(first, &lists[k])) return -1;
        first = first ? first : &lists[k];
        *device = lists[k].device.type ? lists[k].device : *device;
    }
    if (device->type == 0) *device = (amp_device){ AMP_PY_CPU, 0 };
    return 0;
}

/* torch's function accepts only torch tensors. */
static PyObject *torch_only(PyObject *tensors) {
    PyObject *chosen = PyList_New(0);
    Py_ssize_t n = PyTuple_Size(tensors);
    for (Py_ssize_t i = 0; chosen && i < n; i++) {
        PyObject *tensor = PyTuple_GetItem(tensors, i);
        if (amp_py_is_torch(tensor) && PyList_Append(chosen, tensor)) Py_CLEAR(chosen);
    }
    return chosen;
}

int amp_py_lists_touch(amp_py_list *lists, size_t count) {
    for (size_t k = 0; k < count; k++) {
        if (lists[k].n_torch == 0 || !(lists[k].how & AMP_PY_WRITE)) continue;
        bool all = lists[k].n_torch == lists[k].n;
        PyObject *written = all ? Py_NewRef(lists[k].tensors) : torch_only(lists[k].tensors);
        int bad = written ? amp_py_touch_torch(written) : -1;
        Py_XDECREF(written);
        if (bad) return -1;
    }
    return 0;
}
