/* SPDX-License-Identifier: Apache-2.0 */
/* Views of torch tensors: by DLPack's table of C functions if torch has one, else by attributes. Either is faster than
 * __dlpack__, and tensors that require gradients are accepted. torch is never imported. */
#include "view.h"

#include "dlpack.h"

static PyObject *tensor_class; /* torch.Tensor, after the first one */
static const dl_exchange *exchange; /* torch's table, from 2.10 on, or NULL */
static PyObject *increment_version; /* of torch.autograd.graph, NULL in torch 2.0 */

/* torch's types that libamp supports */
static struct { const char *name; amp_dtype dtype; PyObject *object; } types[] = {
    { "float32", AMP_FLOAT32, NULL },
    { "float16", AMP_FLOAT16, NULL },
    { "bfloat16", AMP_BFLOAT16, NULL },
    { "float64", AMP_FLOAT64, NULL },
};

/* interned names */
enum { N_DATA_PTR, N_NUMEL, N_IS_CONTIGUOUS, N_DTYPE, N_IS_CPU, N_DEVICE, N_SHAPE, N_STRIDE, N_TORCH, NAMES };
static const char *const spelled[NAMES] = { "data_ptr", "numel", "is_contiguous", "dtype", "is_cpu",
                                            "device",   "shape", "stride",        "torch" };
static PyObject *names[NAMES];

/* false without an exception: torch is absent or partly imported */
static bool find_torch(void) {
    if (tensor_class) return true;
    PyObject *torch = PyImport_GetModule(names[N_TORCH]);
    PyObject *found = torch ? PyObject_GetAttrString(torch, "Tensor") : NULL;
    for (size_t i = 0; found && i < sizeof(types) / sizeof(types[0]); i++) {
        if (!types[i].object && (types[i].object = PyObject_GetAttrString(torch, types[i].name)) == NULL)
            Py_CLEAR(found);
    }
    PyObject *autograd = found ? PyObject_GetAttrString(torch, "autograd") : NULL;
    PyObject *graph = autograd ? PyObject_GetAttrString(autograd, "graph") : NULL;
    if (graph) increment_version = PyObject_GetAttrString(graph, "increment_version");
    exchange = found ? amp_py_dlpack_exchange(found) : NULL;
    PyErr_Clear();
    Py_XDECREF(graph);
    Py_XDECREF(autograd);
    Py_XDECREF(torch);
    tensor_class = found;
    return found != NULL;
}

bool amp_py_is_torch(PyObject *object) {
    return find_torch() && PyType_IsSubtype(Py_TYPE(object), (PyTypeObject *)tensor_class);
}

static int64_t call_integer(PyObject *tensor, int name) {
    PyObject *result = PyObject_CallMethodObjArgs(tensor, names[name], NULL);
    int64_t value = result ? PyLong_AsLongLong(result) : -1;
    Py_XDECREF(result);
    return value;
}

/* Returns 1, 0, or -1 with an exception. Steals the reference. */
static int is_true(PyObject *value) {
    int is = value ? PyObject_IsTrue(value) : -1;
    Py_XDECREF(value);
    return is;
}

static int read_device(PyObject *tensor, amp_py_where place, amp_device *device) {
    int cpu = is_true(PyObject_GetAttr(tensor, names[N_IS_CPU]));
    if (cpu != 0) return cpu < 0 ? -1 : 0;
    PyObject *where = PyObject_GetAttr(tensor, names[N_DEVICE]);
    PyObject *kind = where ? PyObject_GetAttrString(where, "type") : NULL;
    PyObject *index = where ? PyObject_GetAttrString(where, "index") : NULL;
    int bad = kind == NULL || index == NULL ? -1 : 0;
    if (!bad && PyUnicode_CompareWithASCIIString(kind, "meta") == 0)
        bad = amp_py_refuse(place, "is on device %S, which has no memory", where);
    if (!bad) {
        const bool cuda = PyUnicode_CompareWithASCIIString(kind, "cuda") == 0;
        device->type = cuda ? AMP_PY_CUDA : AMP_PY_SERVED;
        device->id = index == Py_None ? 0 : (int32_t)PyLong_AsLong(index);
    }
    Py_XDECREF(index);
    Py_XDECREF(kind);
    Py_XDECREF(where);
    return bad;
}

static int read_tuple(PyObject *values, int64_t *out, int *count) {
    PyObject *tuple = values ? PySequence_Tuple(values) : NULL;
    Py_ssize_t n = tuple ? PyTuple_Size(tuple) : -1;
    for (Py_ssize_t i = 0; i < n && i < AMP_PY_DIMS; i++) out[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
    *count = (int)n;
    Py_XDECREF(tuple);
    Py_XDECREF(values);
    return n < 0 || PyErr_Occurred() ? -1 : 0;
}

static int read_shape(PyObject *tensor, amp_py_where place, amp_py_view *view) {
    int strides = 0;
    if (read_tuple(PyObject_GetAttr(tensor, names[N_SHAPE]), view->shape, &view->dims) ||
        read_tuple(PyObject_CallMethodObjArgs(tensor, names[N_STRIDE], NULL), view->strides, &strides))
        return -1;
    if (view->dims > AMP_PY_DIMS || view->dims != strides)
        return amp_py_refuse(place, "has a shape that cannot be read");
    return amp_py_view_measure(view, place);
}

static int read_attributes(PyObject *tensor, amp_py_where place, bool shape, amp_py_view *view) {
    PyObject *dtype = PyObject_GetAttr(tensor, names[N_DTYPE]);
    if (!dtype) return -1;
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        view->span.dtype = dtype == types[i].object ? types[i].dtype : view->span.dtype;
    Py_DECREF(dtype);
    PyObject *address = PyObject_CallMethodObjArgs(tensor, names[N_DATA_PTR], NULL);
    if (!address) { /* a sparse or functional tensor, torch's message says which */
        return -1;
    }
    view->span.data = PyLong_AsVoidPtr(address);
    Py_DECREF(address);
    if (PyErr_Occurred() || read_device(tensor, place, &view->device)) return -1;
    int compact = is_true(PyObject_CallMethodObjArgs(tensor, names[N_IS_CONTIGUOUS], NULL));
    if (compact < 0) return -1;
    if (shape || !compact) return read_shape(tensor, place, view);
    view->compact = true;
    int64_t size = call_integer(tensor, N_NUMEL);
    view->span.size = (uint64_t)size;
    return size < 0 ? -1 : 0;
}

/* The attributes describe tensors that DLPack cannot (a sparse one), and give the messages. */
static int read_torch(PyObject *tensor, amp_py_where place, bool shape, amp_py_view *view) {
    dl_tensor borrowed;
    if (exchange && exchange->borrow) {
        if (exchange->borrow(tensor, &borrowed) == 0) return amp_py_dlpack_read(&borrowed, place, view);
        PyErr_Clear();
    }
    return read_attributes(tensor, place, shape, view);
}

int amp_py_view_torch(PyObject *tensor, amp_py_where place, bool shape, amp_py_view *view) {
    if (!amp_py_is_torch(tensor)) return 1;
    view->is_torch = true;
    return read_torch(tensor, place, shape, view);
}

bool amp_py_torch_stream(amp_device device, void **stream) {
    return find_torch() && exchange != NULL && exchange->current_stream(device.type, device.id, stream) == 0;
}

/* tensor.detach().as_strided((0,), (1,)).zero_(): writes no element, but increases the counter that views share. */
static PyObject *write_nothing(PyObject *tensor) {
    PyObject *detached = PyObject_CallMethod(tensor, "detach", NULL);
    PyObject *nothing = detached ? PyObject_CallMethod(detached, "as_strided", "((i)(i))", 0, 1) : NULL;
    PyObject *done = nothing ? PyObject_CallMethod(nothing, "zero_", NULL) : NULL;
    Py_XDECREF(nothing);
    Py_XDECREF(detached);
    return done;
}

/* All at once if torch supports it. A torch that takes one at a time, or a tensor of inference mode, which has no
 * version, is no error. */
int amp_py_touch_torch(PyObject *tensors) {
    PyObject *done = increment_version ? PyObject_CallFunctionObjArgs(increment_version, tensors, NULL) : NULL;
    if (done) {
        Py_DECREF(done);
        return 0;
    }
    PyErr_Clear();
    Py_ssize_t n = PySequence_Size(tensors);
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *tensor = PySequence_GetItem(tensors, i);
        done = tensor == NULL ? NULL
             : increment_version ? PyObject_CallFunctionObjArgs(increment_version, tensor, NULL)
                                 : write_nothing(tensor);
        if (!done) PyErr_Clear();
        Py_XDECREF(done);
        Py_XDECREF(tensor);
    }
    return 0;
}

int amp_py_add_tensor_view(PyObject *module) {
    (void)module;
    for (int i = 0; i < NAMES; i++) {
        names[i] = PyUnicode_InternFromString(spelled[i]);
        if (!names[i]) return -1;
    }
    return 0;
}
