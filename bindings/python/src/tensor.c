/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor.h"

#include <string.h>

struct amp_py_names amp_py_names;

/* The used part of DLPack's table of C functions (dlpack.h 1.2). */
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
    PyObject *to, *strided, *jagged; /* jagged: NULL before torch 2.1 */
    struct reader {
        getter get; /* NULL: call by name */
        setter set; /* NULL: call by name */
        void *closure;
    } dtype, version, requires_grad, layout, ndim, is_cuda, grad;
    struct function {
        PyObject *object;
        PyCFunction call; /* NULL: by PyObject_CallNoArgs */
        PyObject *self;
    } is_grad_enabled;
    const struct exchange *exchange;   /* NULL: an older torch */
} torch;

static int intern_names(void) {
    const struct {
        PyObject **name;
        const char *text;
    } names[] = {
        { &amp_py_names.grad, "grad" },         { &amp_py_names.dtype, "dtype" },
        { &amp_py_names.version, "_version" },  { &amp_py_names.shape, "shape" },
        { &amp_py_names.stride, "stride" },     { &amp_py_names.data_ptr, "data_ptr" },
        { &amp_py_names.device, "device" },     { &amp_py_names.requires_grad, "requires_grad" },
        { &amp_py_names.layout, "layout" },     { &amp_py_names.base, "_base" },
        { &amp_py_names.local_tensor, "_local_tensor" }, { &amp_py_names.ndim, "ndim" },
        { &amp_py_names.is_cuda, "is_cuda" },
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        *names[i].name = PyUnicode_InternFromString(names[i].text);
        if (*names[i].name == NULL) return -1;
    }
    return 0;
}

static const struct exchange *find_exchange(PyObject *tensor_class) {
    PyObject *capsule = PyObject_GetAttrString(tensor_class, "__dlpack_c_exchange_api__");
    const struct exchange *found = capsule ? PyCapsule_GetPointer(capsule, "dlpack_exchange_api") : NULL;
    Py_XDECREF(capsule); /* the class owns it */
    PyErr_Clear();
    while (found && found->major > 1) found = found->previous;
    return found && found->major == 1 && found->view ? found : NULL;
}

/* torch.Tensor's properties and methods are C functions in the tables of a type without a Python part. They are called
 * directly, because the call path costs as much as they do, unless Python code has replaced them. */
static void *find_entry(PyObject *tensor_class, const char *name, int table, size_t size) {
    PyObject *found = PyObject_GetAttrString(tensor_class, name);
    PyObject *owner = found ? PyObject_GetAttrString(found, "__objclass__") : NULL;
    const bool is_type = owner && PyType_Check(owner);
    char *entry = is_type ? PyType_GetSlot((PyTypeObject *)owner, table) : NULL;
    while (entry && *(const char *const *)entry && strcmp(*(const char *const *)entry, name) != 0) {
        entry += size; /* the name is the first member of both */
    }
    PyErr_Clear();
    Py_XDECREF(owner); /* the class's base */
    Py_XDECREF(found);
    return entry && *(const char *const *)entry ? entry : NULL;
}

static struct reader find_reader(PyObject *tensor_class, const char *name) {
    const PyGetSetDef *entry = find_entry(tensor_class, name, Py_tp_getset, sizeof *entry);
    return entry ? (struct reader){ entry->get, entry->set, entry->closure } : (struct reader){ NULL, NULL, NULL };
}

PyCFunction amp_py_method(const char *name, int flags) {
    const PyMethodDef *entry = find_entry((PyObject *)torch.tensor, name, Py_tp_methods, sizeof *entry);
    return entry && entry->ml_flags == flags ? entry->ml_meth : NULL;
}

static PyObject *read_property(const struct reader *of, PyObject *name, PyObject *tensor) {
    PyTypeObject *type = Py_TYPE(tensor);
    if ((type == torch.tensor || type == torch.parameter) && of->get) return of->get(tensor, of->closure);
    return PyObject_GetAttr(tensor, name); /* a subclass may override it */
}

static struct function find_function(PyObject *object) {
    struct function function = { object, NULL, NULL };
    if (object && PyCFunction_CheckExact(object) && PyCFunction_GetFlags(object) == METH_NOARGS) {
        function.call = PyCFunction_GetFunction(object);
        function.self = PyCFunction_GetSelf(object);
    }
    return function;
}

static int look_up(PyObject *module) {
    static const char *const names[AMP_DTYPE_OTHER] = {
        [AMP_FLOAT32] = "float32", [AMP_FLOAT16] = "float16", [AMP_BFLOAT16] = "bfloat16", [AMP_FLOAT64] = "float64",
    };
    for (amp_dtype i = AMP_FLOAT32; i < AMP_DTYPE_OTHER; i++) {
        torch.dtypes[i] = PyObject_GetAttrString(module, names[i]);
        if (!torch.dtypes[i]) return -1;
    }
    PyObject *tensor = PyObject_GetAttrString(module, "Tensor");
    torch.strided = PyObject_GetAttrString(module, "strided");
    torch.jagged = torch.strided ? PyObject_GetAttrString(module, "jagged") : NULL;
    if (torch.strided) PyErr_Clear();
    torch.to = tensor ? PyObject_GetAttrString(tensor, "to") : NULL;
    torch.is_grad_enabled = find_function(PyObject_GetAttrString(module, "is_grad_enabled"));
    if (!torch.strided || !torch.to || !torch.is_grad_enabled.object || intern_names()) {
        Py_XDECREF(tensor);
        return -1;
    }
    PyObject *nn = PyObject_GetAttrString(module, "nn");
    torch.parameter = nn ? (PyTypeObject *)PyObject_GetAttrString(nn, "Parameter") : NULL;
    Py_XDECREF(nn);
    if (!torch.parameter) {
        Py_DECREF(tensor);
        return -1;
    }
    torch.exchange = find_exchange(tensor);
    torch.dtype = find_reader(tensor, "dtype");
    torch.version = find_reader(tensor, "_version");
    torch.requires_grad = find_reader(tensor, "requires_grad");
    torch.layout = find_reader(tensor, "layout");
    torch.ndim = find_reader(tensor, "ndim");
    torch.is_cuda = find_reader(tensor, "is_cuda");
    torch.grad = find_reader(tensor, "grad");
    torch.tensor = (PyTypeObject *)tensor; /* last, it marks that everything was found */
    return 0;
}

int amp_py_torch(void) {
    if (torch.tensor) return 0;
    PyObject *module = PyImport_ImportModule("torch");
    const int bad = module == NULL || look_up(module);
    Py_XDECREF(module);
    return bad ? -1 : 0;
}

bool amp_py_is_tensor(PyObject *object) {
    return torch.tensor && PyObject_TypeCheck(object, torch.tensor);
}

amp_dtype amp_py_dtype(PyObject *tensor) {
    PyObject *dtype = read_property(&torch.dtype, amp_py_names.dtype, tensor);
    if (!dtype) {
        PyErr_Clear();
        return AMP_DTYPE_OTHER;
    }
    Py_DECREF(dtype); /* torch owns its dtypes */
    for (amp_dtype i = AMP_FLOAT32; i < AMP_DTYPE_OTHER; i++) {
        if (dtype == torch.dtypes[i]) return i;
    }
    return AMP_DTYPE_OTHER;
}

PyObject *amp_py_torch_dtype(amp_dtype dtype) {
    return dtype >= AMP_FLOAT32 && dtype < AMP_DTYPE_OTHER ? torch.dtypes[dtype] : NULL;
}

PyObject *amp_py_to(PyObject *tensor, amp_dtype dtype) {
    return PyObject_CallFunctionObjArgs(torch.to, tensor, amp_py_torch_dtype(dtype), NULL);
}

bool amp_py_grad_enabled(void) {
    const struct function *is = &torch.is_grad_enabled;
    PyObject *enabled = is->call ? is->call(is->self, NULL) : PyObject_CallNoArgs(is->object);
    const bool result = enabled != Py_False;
    Py_XDECREF(enabled);
    PyErr_Clear();
    return result;
}

bool amp_py_requires_grad(PyObject *tensor) {
    PyObject *requires = read_property(&torch.requires_grad, amp_py_names.requires_grad, tensor);
    const bool result = requires != Py_False;
    Py_XDECREF(requires);
    PyErr_Clear();
    return result;
}

bool amp_py_has_16_bits(PyObject *tensor) {
    PyObject *layout = read_property(&torch.layout, amp_py_names.layout, tensor);
    const bool known = layout && (layout == torch.strided || layout == torch.jagged);
    Py_XDECREF(layout);
    PyErr_Clear();
    return known;
}

bool amp_py_has_dims(PyObject *tensor) {
    PyObject *layout = read_property(&torch.layout, amp_py_names.layout, tensor);
    PyObject *ndim = layout == torch.strided ? read_property(&torch.ndim, amp_py_names.ndim, tensor) : NULL;
    const bool some = ndim && PyLong_AsLong(ndim) > 0;
    Py_XDECREF(ndim);
    Py_XDECREF(layout);
    PyErr_Clear();
    return some;
}

bool amp_py_is_on_cuda(PyObject *tensor) {
    PyTypeObject *type = Py_TYPE(tensor);
    if (type != torch.tensor && type != torch.parameter) return false;
    PyObject *is_cuda = read_property(&torch.is_cuda, amp_py_names.is_cuda, tensor);
    const bool on_cuda = is_cuda == Py_True;
    Py_XDECREF(is_cuda);
    PyErr_Clear();
    return on_cuda;
}

PyObject *amp_py_grad(PyObject *tensor) { return read_property(&torch.grad, amp_py_names.grad, tensor); }

int amp_py_set_grad(PyObject *tensor, PyObject *grad) {
    PyTypeObject *type = Py_TYPE(tensor);
    if ((type == torch.tensor || type == torch.parameter) && torch.grad.set)
        return torch.grad.set(tensor, grad, torch.grad.closure);
    return PyObject_SetAttr(tensor, amp_py_names.grad, grad);
}

uint64_t amp_py_version(PyObject *tensor) {
    PyObject *version = read_property(&torch.version, amp_py_names.version, tensor);
    const uint64_t number = version ? PyLong_AsUnsignedLongLong(version) : 0;
    Py_XDECREF(version);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    return number;
}

void *amp_py_data(PyObject *tensor) {
    PyObject *address = PyObject_CallMethodObjArgs(tensor, amp_py_names.data_ptr, NULL);
    void *data = address ? PyLong_AsVoidPtr(address) : NULL;
    Py_XDECREF(address);
    return data;
}

/* ---- the view without DLPack's table ---- */

enum { MAX_DIMS = 64 };

static int read_sizes(PyObject *sizes, int64_t *out, int32_t *n) {
    const Py_ssize_t size = sizes ? PyTuple_Size(sizes) : -1;
    if (size < 0 || size > MAX_DIMS) {
        Py_XDECREF(sizes);
        return -1;
    }
    for (Py_ssize_t i = 0; i < size; i++) out[i] = PyLong_AsLongLong(PyTuple_GetItem(sizes, i));
    Py_DECREF(sizes);
    *n = (int32_t)size;
    return PyErr_Occurred() ? -1 : 0;
}

static int view_device(PyObject *tensor, amp_device *device) {
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

/* Returns the type of the parts, 0 for elements that are not complex. */
static uint8_t complex_bits(PyObject *tensor) {
    PyObject *is = PyObject_CallMethod(tensor, "is_complex", NULL);
    PyObject *size = is == Py_True ? PyObject_CallMethod(tensor, "element_size", NULL) : NULL;
    const long bytes = size ? PyLong_AsLong(size) : 0;
    Py_XDECREF(size);
    Py_XDECREF(is);
    PyErr_Clear();
    return (uint8_t)(8 * bytes);
}

static int view_by_attributes(PyObject *tensor, amp_tensor_view *view) {
    static _Thread_local int64_t shape[MAX_DIMS], strides[MAX_DIMS];
    const amp_dtype dtype = amp_py_dtype(tensor);
    int32_t n = 0;
    view->dtype.code = dtype == AMP_BFLOAT16 ? 4 : dtype == AMP_DTYPE_OTHER ? 0 : 2;
    view->dtype.bits = dtype == AMP_FLOAT64 ? 64 : dtype == AMP_FLOAT32 ? 32 : dtype == AMP_DTYPE_OTHER ? 8 : 16;
    view->dtype.lanes = 1;
    const uint8_t bits = dtype == AMP_DTYPE_OTHER ? complex_bits(tensor) : 0;
    if (bits) {
        view->dtype.code = 5; /* kDLComplex */
        view->dtype.bits = bits;
    }
    if (read_sizes(PyObject_GetAttr(tensor, amp_py_names.shape), shape, &view->ndim) ||
        read_sizes(PyObject_CallMethodObjArgs(tensor, amp_py_names.stride, NULL), strides, &n) ||
        view_device(tensor, &view->device))
        return -1;
    view->shape = shape;
    view->strides = strides;
    view->data = amp_py_data(tensor);
    return PyErr_Occurred() ? -1 : 0;
}

static int view_tensor(PyObject *tensor, amp_tensor_view *view) {
    return torch.exchange ? torch.exchange->view(tensor, view) : view_by_attributes(tensor, view);
}

/* A DTensor has no elements itself. Its local tensor has those of this rank. */
static PyObject *local_of(PyObject *tensor) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *local = PyObject_GetAttr(tensor, amp_py_names.local_tensor);
    const bool found = local && local != tensor && amp_py_is_tensor(local);
    Py_XDECREF(local); /* the tensor owns it */
    PyErr_Clear();
    PyErr_Restore(type, value, trace);
    return found ? local : NULL;
}

int amp_py_look(PyObject *tensor, amp_tensor_view *view) {
    PyTypeObject *type = Py_TYPE(tensor);
    PyObject *local = type == torch.tensor || type == torch.parameter ? NULL : local_of(tensor);
    return view_tensor(local ? local : tensor, view);
}

const void *amp_py_address(PyObject *tensor) {
    amp_tensor_view view = { 0 };
    if (amp_py_look(tensor, &view)) {
        PyErr_Clear();
        return NULL;
    }
    return (const char *)view.data + view.byte_offset;
}

int amp_py_read_order(PyObject *tensor, struct amp_py_order *order) {
    amp_tensor_view view = { 0 };
    *order = (struct amp_py_order){ 0 };
    if (amp_py_look(tensor, &view)) return -1;
    if (view.ndim > AMP_PY_MAX_DIMS || !view.strides) return 0;
    order->ndim = view.ndim;
    for (int32_t i = 0; i < view.ndim; i++) {
        int32_t at = i;
        for (; at > 0 && view.strides[order->of[at - 1]] < view.strides[i]; at--) order->of[at] = order->of[at - 1];
        order->of[at] = (int8_t)i;
        order->permuted |= at != i;
    }
    return 0;
}
