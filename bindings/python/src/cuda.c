/* SPDX-License-Identifier: Apache-2.0 */
/* Work on GPUs: the stream, the list object and the place of numbers. */
#include "call.h"
#include "served.h"

/* cudaStreamLegacy, torch's default stream. libamp refuses NULL, which may be a mistake, and accepts this name. */
#define LEGACY_STREAM ((void *)1)

/* One list object for each place in the program: its table remains while the same tensors return. Beyond this number
 * the least recently used one is freed. */
enum { PLACES = 64 };

typedef struct place {
    const char *function; /* by address */
    amp_device device;
    void *stream;
    const void *first; /* address and number of its tensors */
    size_t n;
    uint64_t used; /* by the clock below */
    amp_device_list *list;
} place;

static place places[PLACES];
static uint64_t clock_of_uses;

static place *find_place(const place *wanted) {
    place *oldest = &places[0];
    for (int i = 0; i < PLACES; i++) {
        place *is = &places[i];
        if (is->list && is->function == wanted->function && is->device.type == wanted->device.type &&
            is->device.id == wanted->device.id && is->stream == wanted->stream && is->first == wanted->first &&
            is->n == wanted->n)
            return is;
        oldest = is->used < oldest->used ? is : oldest;
    }
    amp_device_list_close(oldest->list);
    *oldest = *wanted;
    return oldest;
}

/* torch.cuda.current_stream(device).cuda_stream */
static int current_stream(amp_device device, void **stream) {
    if (amp_py_torch_stream(device, stream)) return 0;
    PyErr_Clear();
    PyObject *torch = PyImport_ImportModule("torch.cuda");
    PyObject *object = torch ? PyObject_CallMethod(torch, "current_stream", "i", (int)device.id) : NULL;
    PyObject *address = object ? PyObject_GetAttrString(object, "cuda_stream") : NULL;
    *stream = address ? PyLong_AsVoidPtr(address) : NULL;
    Py_XDECREF(address);
    Py_XDECREF(object);
    Py_XDECREF(torch);
    return PyErr_Occurred() ? -1 : 0;
}

/* stream=: an address, or an object that has it as cuda_stream (torch) or ptr (CuPy). */
static int read_stream(PyObject *argument, void **stream) {
    static const char *const attributes[] = { "cuda_stream", "ptr" };
    PyObject *address = PyLong_Check(argument) ? Py_NewRef(argument) : NULL;
    for (int i = 0; i < 2 && address == NULL; i++) {
        address = PyObject_GetAttrString(argument, attributes[i]);
        PyErr_Clear();
    }
    if (!address)
        return amp_py_refuse((amp_py_where){ "stream", -1 }, "is neither an address nor a stream of torch's or CuPy's");
    *stream = PyLong_AsVoidPtr(address);
    Py_DECREF(address);
    return PyErr_Occurred() ? -1 : 0;
}

int amp_py_cuda_stream(PyObject *argument, bool torch, amp_device device, void **stream) {
    *stream = NULL;
    if (device.type == AMP_PY_SERVED) { /* torch's operators use their own stream */
        device = amp_py_unserved(device);
        torch = device.type == AMP_PY_CUDA;
    }
    int bad = argument && argument != Py_None ? read_stream(argument, stream) : torch
        ? current_stream(device, stream) : 0;
    *stream = *stream ? *stream : LEGACY_STREAM;
    return bad;
}

int amp_py_cuda_open(amp_py_call *call) {
    bool torch = false;
    for (size_t k = 0; k < call->count; k++) torch = torch || call->lists[k].n_torch > 0;
    if (amp_py_cuda_stream(call->stream_argument, torch, call->device, &call->stream)) return -1;
    const amp_py_list *first = &call->lists[0];
    const size_t n = call->has_no_plan ? 0 : first->n;
    place wanted = { call->function, call->device, call->stream, n ? first->spans[0].data : NULL, n, 0, NULL };
    place *found = find_place(&wanted);
    if (!found->list) {
        amp_status status = amp_device_list_open(call->device, &found->list);
        if (status != AMP_OK) {
            amp_py_raise(status);
            return -1;
        }
    }
    found->used = ++clock_of_uses;
    call->list = found->list;
    return 0;
}

/* torch.FACTORY(argument, dtype=torch.DTYPE, device=...) */
static PyObject *make_tensor(const char *factory, PyObject *argument, const char *dtype, amp_device device) {
    PyObject *torch = PyImport_ImportModule("torch");
    PyObject *function = torch ? PyObject_GetAttrString(torch, factory) : NULL;
    PyObject *type = torch ? PyObject_GetAttrString(torch, dtype) : NULL;
    PyObject *served = amp_py_served_device(device);
    PyObject *where = served ? Py_NewRef(served) : PyUnicode_FromFormat("cuda:%d", (int)device.id);
    PyObject *keywords = type && where ? Py_BuildValue("{sOsO}", "dtype", type, "device", where) : NULL;
    PyObject *arguments = PyTuple_Pack(1, argument);
    PyObject *made = function && keywords && arguments ? PyObject_Call(function, arguments, keywords) : NULL;
    if (!torch && PyErr_ExceptionMatches(PyExc_ImportError)) {
        PyErr_Clear();
        PyErr_SetString(amp_py_argument_error(),
                        "numbers must be float32 tensors on the GPU (found_inf=, norm=, norms=, inv_scale=) and steps "
                        "of int64: without torch there is no memory to take");
    }
    Py_XDECREF(arguments);
    Py_XDECREF(keywords);
    Py_XDECREF(where);
    Py_XDECREF(type);
    Py_XDECREF(function);
    Py_XDECREF(torch);
    return made;
}

PyObject *amp_py_cuda_make(const char *factory, PyObject *argument, const char *dtype, amp_device device, void **data) {
    PyObject *tensor = argument ? make_tensor(factory, argument, dtype, device) : NULL;
    PyObject *address = tensor ? PyObject_CallMethod(tensor, "data_ptr", NULL) : NULL;
    *data = address ? PyLong_AsVoidPtr(address) : NULL;
    if (!address) Py_CLEAR(tensor);
    Py_XDECREF(address);
    Py_XDECREF(argument);
    return tensor;
}

int amp_py_cuda_read(PyObject *tensor, float *numbers, size_t count) {
    PyObject *list = PyObject_CallMethod(tensor, "tolist", NULL);
    for (size_t i = 0; list && i < count; i++) {
        PyObject *value = PyList_GetItem(list, (Py_ssize_t)i);
        numbers[i] = value ? (float)PyFloat_AsDouble(value) : 0.0f;
    }
    Py_XDECREF(list);
    return PyErr_Occurred() ? -1 : 0;
}
