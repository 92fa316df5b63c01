/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor.h"

#include <string.h>

struct amp_py_names amp_py_names;

/* DLPack's table of C functions, as far as it is used: dlpack.h 1.2. */
struct exchange {
    uint32_t major, minor;
    struct exchange *previous;
    int (*allocate)(void);
    int (*from_object)(void);
    int (*to_object)(void);
    int (*view)(void *object, amp_tensor_view *out);
};

static struct {
    PyTypeObject *tensor, *parameter;
    PyObject *dtypes[AMP_DTYPE_OTHER]; /* by amp_dtype */
    PyObject *to, *is_grad_enabled;
    struct getter {
        PyObject *property; /* torch.Tensor's own, */
        descrgetfunc get;   /* and how it is read: without a search through the classes */
    } dtype, version;
    const struct exchange *exchange;   /* NULL: an older torch */
} torch;

static int intern_names(void)
{
    const struct {
        PyObject **name;
        const char *text;
    } names[] = {
        { &amp_py_names.grad, "grad" },         { &amp_py_names.dtype, "dtype" },
        { &amp_py_names.version, "_version" },  { &amp_py_names.shape, "shape" },
        { &amp_py_names.stride, "stride" },     { &amp_py_names.data_ptr, "data_ptr" },
        { &amp_py_names.device, "device" },     { &amp_py_names.requires_grad, "requires_grad" },
        { &amp_py_names.local_tensor, "_local_tensor" },
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        *names[i].name = PyUnicode_InternFromString(names[i].text);
        if (*names[i].name == NULL) {
            return -1;
        }
    }
    return 0;
}

static const struct exchange *find_exchange(PyObject *tensor_class)
{
    PyObject *capsule = PyObject_GetAttrString(tensor_class, "__dlpack_c_exchange_api__");
    const struct exchange *found = capsule ? PyCapsule_GetPointer(capsule, "dlpack_exchange_api") : NULL;
    Py_XDECREF(capsule); /* the class keeps it */
    PyErr_Clear();
    while (found && found->major > 1) {
        found = found->previous;
    }
    return found && found->major == 1 && found->view ? found : NULL;
}

static PyObject *read_property(const struct getter *of, PyObject *name, PyObject *tensor)
{
    PyTypeObject *type = Py_TYPE(tensor);
    if (type == torch.tensor && of->get) {
        return of->get(of->property, tensor, (PyObject *)type);
    }
    return PyObject_GetAttr(tensor, name); /* a subclass may have its own */
}

static struct getter find_getter(PyObject *tensor_class, PyObject *name)
{
    struct getter found = { PyObject_GetAttr(tensor_class, name), NULL };
    if (found.property) {
        void *slot = PyType_GetSlot(Py_TYPE(found.property), Py_tp_descr_get);
        memcpy(&found.get, &slot, sizeof(slot));
    }
    PyErr_Clear();
    return found;
}

static int look_up(PyObject *module)
{
    static const char *const names[AMP_DTYPE_OTHER] = {
        [AMP_FLOAT32] = "float32", [AMP_FLOAT16] = "float16", [AMP_BFLOAT16] = "bfloat16", [AMP_FLOAT64] = "float64",
    };
    for (amp_dtype i = AMP_FLOAT32; i < AMP_DTYPE_OTHER; i++) {
        torch.dtypes[i] = PyObject_GetAttrString(module, names[i]);
        if (torch.dtypes[i] == NULL) {
            return -1;
        }
    }
    PyObject *tensor = PyObject_GetAttrString(module, "Tensor");
    torch.to = tensor ? PyObject_GetAttrString(tensor, "to") : NULL;
    torch.is_grad_enabled = PyObject_GetAttrString(module, "is_grad_enabled");
    if (torch.to == NULL || torch.is_grad_enabled == NULL || intern_names()) {
        Py_XDECREF(tensor);
        return -1;
    }
    PyObject *nn = PyObject_GetAttrString(module, "nn");
    torch.parameter = nn ? (PyTypeObject *)PyObject_GetAttrString(nn, "Parameter") : NULL;
    Py_XDECREF(nn);
    if (torch.parameter == NULL) {
        Py_DECREF(tensor);
        return -1;
    }
    torch.exchange = find_exchange(tensor);
    torch.dtype = find_getter(tensor, amp_py_names.dtype);
    torch.version = find_getter(tensor, amp_py_names.version);
    torch.tensor = (PyTypeObject *)tensor; /* last: says that all is there */
    return 0;
}

int amp_py_torch(void)
{
    if (torch.tensor) {
        return 0;
    }
    PyObject *module = PyImport_ImportModule("torch");
    const int bad = module == NULL || look_up(module);
    Py_XDECREF(module);
    return bad ? -1 : 0;
}

bool amp_py_is_tensor(PyObject *object)
{
    return torch.tensor && PyObject_TypeCheck(object, torch.tensor);
}

amp_dtype amp_py_dtype(PyObject *tensor)
{
    PyObject *dtype = read_property(&torch.dtype, amp_py_names.dtype, tensor);
    if (dtype == NULL) {
        PyErr_Clear();
        return AMP_DTYPE_OTHER;
    }
    Py_DECREF(dtype); /* torch keeps its dtypes */
    for (amp_dtype i = AMP_FLOAT32; i < AMP_DTYPE_OTHER; i++) {
        if (dtype == torch.dtypes[i]) {
            return i;
        }
    }
    return AMP_DTYPE_OTHER;
}

PyObject *amp_py_torch_dtype(amp_dtype dtype)
{
    return dtype >= AMP_FLOAT32 && dtype < AMP_DTYPE_OTHER ? torch.dtypes[dtype] : NULL;
}

PyObject *amp_py_to(PyObject *tensor, amp_dtype dtype)
{
    return PyObject_CallFunctionObjArgs(torch.to, tensor, amp_py_torch_dtype(dtype), NULL);
}

bool amp_py_grad_enabled(void)
{
    PyObject *enabled = PyObject_CallNoArgs(torch.is_grad_enabled);
    const bool result = enabled != Py_False;
    Py_XDECREF(enabled);
    PyErr_Clear();
    return result;
}

uint64_t amp_py_version(PyObject *tensor)
{
    PyObject *version = read_property(&torch.version, amp_py_names.version, tensor);
    const uint64_t number = version ? PyLong_AsUnsignedLongLong(version) : 0;
    Py_XDECREF(version);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    return number;
}

void *amp_py_data(PyObject *tensor)
{
    PyObject *address = PyObject_CallMethodObjArgs(tensor, amp_py_names.data_ptr, NULL);
    void *data = address ? PyLong_AsVoidPtr(address) : NULL;
    Py_XDECREF(address);
    return data;
}

/* ---- the view without DLPack's table ---- */

enum { MAX_DIMS = 64 };

static int read_sizes(PyObject *sizes, int64_t *out, int32_t *n)
{
    const Py_ssize_t size = sizes ? PyTuple_Size(sizes) : -1;
    if (size < 0 || size > MAX_DIMS) {
        Py_XDECREF(sizes);
        return -1;
    }
    for (Py_ssize_t i = 0; i < size; i++) {
        out[i] = PyLong_AsLongLong(PyTuple_GetItem(sizes, i));
    }
    Py_DECREF(sizes);
    *n = (int32_t)size;
    return PyErr_Occurred() ? -1 : 0;
}

static int read_device(PyObject *tensor, amp_device *device)
{
    PyObject *object = PyObject_GetAttr(tensor, amp_py_names.device);
    PyObject *type = object ? PyObject_GetAttrString(object, "type") : NULL;
    PyObject *index = type ? PyObject_GetAttrString(object, "index") : NULL;
    if (index) {
        const bool cpu = PyUnicode_CompareWithASCIIString(type, "cpu") == 0;
        const bool cuda = PyUnicode_CompareWithASCIIString(type, "cuda") == 0;
        device->type = cpu ? 1 : cuda ? 2 : 12 /* kDLExtDev */;
        device->id = index == Py_None ? 0 : (int32_t)PyLong_AsLong(index);
    }
    const int bad = index == NULL || PyErr_Occurred() != NULL;
    Py_XDECREF(index);
    Py_XDECREF(type);
    Py_XDECREF(object);
    return bad ? -1 : 0;
}

static int view_by_attributes(PyObject *tensor, amp_tensor_view *view)
{
    static _Thread_local int64_t shape[MAX_DIMS], strides[MAX_DIMS];
    const amp_dtype dtype = amp_py_dtype(tensor);
    int32_t n = 0;
    view->dtype.code = dtype == AMP_BFLOAT16 ? 4 : dtype == AMP_DTYPE_OTHER ? 0 : 2;
    view->dtype.bits = dtype == AMP_FLOAT64 ? 64 : dtype == AMP_FLOAT32 ? 32 : dtype == AMP_DTYPE_OTHER ? 8 : 16;
    view->dtype.lanes = 1;
    if (read_sizes(PyObject_GetAttr(tensor, amp_py_names.shape), shape, &view->ndim)
        || read_sizes(PyObject_CallMethodObjArgs(tensor, amp_py_names.stride, NULL), strides, &n)
        || read_device(tensor, &view->device)) {
        return -1;
    }
    view->shape = shape;
    view->strides = strides;
    view->data = amp_py_data(tensor);
    return PyErr_Occurred() ? -1 : 0;
}

static int look(PyObject *tensor, amp_tensor_view *view)
{
    return torch.exchange ? torch.exchange->view(tensor, view) : view_by_attributes(tensor, view);
}

/* A DTensor has no elements of its own: those of this rank are in the tensor that it keeps. */
static PyObject *local_of(PyObject *tensor)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *local = PyObject_GetAttr(tensor, amp_py_names.local_tensor);
    if (local && local != tensor && amp_py_is_tensor(local)) {
        Py_DECREF(local); /* the tensor's */
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(trace);
        return local;
    }
    Py_XDECREF(local);
    PyErr_Clear();
    PyErr_Restore(type, value, trace);
    return NULL;
}

int amp_py_look(PyObject *tensor, amp_tensor_view *view)
{
    PyTypeObject *type = Py_TYPE(tensor);
    PyObject *local = type == torch.tensor || type == torch.parameter ? NULL : local_of(tensor);
    return look(local ? local : tensor, view);
}
