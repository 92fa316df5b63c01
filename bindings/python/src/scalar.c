/* SPDX-License-Identifier: Apache-2.0 */
#include "scalar.h"
#include "served.h"

static int open_tensor(amp_py_scalar *scalar, PyObject *tensor, uint64_t count, bool write) {
    amp_py_view view;
    amp_py_where place = { scalar->name, -1 };
    if (amp_py_view_get(tensor, place, false, &view, &scalar->keep)) return -1;
    int bad = 0;
    if (view.is_torch && amp_py_serve_if(tensor, &view.device)) bad = -1;
    else if (view.span.dtype != AMP_FLOAT32 || view.span.size != count || !view.compact)
        bad = amp_py_refuse(place, "must be a contiguous float32 tensor of %llu element%s", (unsigned long long)count,
                            AMP_PY_S(count));
    else if (write && view.read_only) bad = amp_py_refuse(place, "is read-only and would be written");
    if (bad) {
        amp_py_let_go(&scalar->keep);
        return -1;
    }
    Py_INCREF(tensor);
    scalar->tensor = tensor;
    scalar->pointer = view.span.data;
    scalar->device = view.device;
    if (!write && count && scalar->device.type == AMP_PY_CPU) scalar->value = *scalar->pointer;
    return 0;
}

int amp_py_scalar_in(amp_py_scalar *scalar, const char *name, PyObject *argument) {
    *scalar = (amp_py_scalar){ .name = name, .value = scalar->value };
    if (argument == Py_None) return 0;
    if (PyFloat_Check(argument) || PyLong_Check(argument) || !PyObject_HasAttrString(argument, "__dlpack__")) {
        scalar->value = (float)PyFloat_AsDouble(argument);
        return PyErr_Occurred() ? -1 : 0;
    }
    return open_tensor(scalar, argument, 1, false);
}

int amp_py_scalar_out(amp_py_scalar *scalar, const char *name, PyObject *argument, uint64_t count) {
    *scalar = (amp_py_scalar){ .name = name };
    return argument == Py_None ? 0 : open_tensor(scalar, argument, count, true);
}

int amp_py_scalar_vector(amp_py_scalar *scalar, const char *name, PyObject *argument, uint64_t count) {
    *scalar = (amp_py_scalar){ .name = name };
    return argument == Py_None ? 0 : open_tensor(scalar, argument, count, false);
}

void amp_py_scalar_close(amp_py_scalar *scalar) {
    amp_py_let_go(&scalar->keep);
    Py_CLEAR(scalar->tensor);
}

int amp_py_scalar_on(const amp_py_scalar *scalar, amp_device device) {
    if (scalar->tensor && (scalar->device.type != device.type || scalar->device.id != device.id))
        return amp_py_refuse((amp_py_where){ scalar->name, -1 }, "is on another device than the tensors");
    return 0;
}
