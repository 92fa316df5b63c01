/* SPDX-License-Identifier: Apache-2.0 */
#include "call.h"

/* The order of a call's results in its scratch. */
enum { AT_NORM, AT_FOUND, AT_NORMS };

int amp_py_call_open(amp_py_call *call, const amp_py_argument *arguments, size_t count) {
    for (call->count = 0; call->count < count; call->count++) {
        const amp_py_argument *argument = &arguments[call->count];
        if (amp_py_list_open(&call->lists[call->count], argument->name, argument->value, argument->how,
                             call->count ? &call->lists[0] : NULL)) {
            amp_py_call_close(call);
            return -1;
        }
    }
    if (amp_py_lists_agree(call->lists, count, &call->device)) {
        amp_py_call_close(call);
        return -1;
    }
    return 0;
}

void amp_py_call_close(amp_py_call *call) {
    for (size_t k = 0; k < call->count; k++) amp_py_list_close(&call->lists[k]);
    call->count = 0;
    amp_py_scalar *const scalars[] = { &call->a, &call->b, &call->norm, &call->norms, &call->found_inf };
    for (size_t k = 0; k < sizeof(scalars) / sizeof(scalars[0]); k++) amp_py_scalar_close(scalars[k]);
    PyMem_Free(call->numbers);
    call->numbers = NULL;
    Py_CLEAR(call->scratch);
}

/* The memory for the kernel's results: tensors of the caller, or scratch on the device of the work. */
static int place_results(amp_py_call *call) {
    const amp_py_scalar *const scalars[] = { &call->a, &call->b, &call->norm, &call->norms, &call->found_inf };
    for (size_t k = 0; k < sizeof(scalars) / sizeof(scalars[0]); k++) {
        /* a number may also be read from the CPU's memory */
        if ((k > 1 || scalars[k]->device.type != AMP_PY_CPU) && amp_py_scalar_on(scalars[k], call->device)) return -1;
    }
    bool own_norm = (call->results & AMP_PY_NORM) && !call->norm.tensor;
    bool own_norms = (call->results & AMP_PY_NORMS) && !call->norms.tensor;
    bool own_found = (call->results & AMP_PY_FOUND) && !call->found_inf.tensor;
    size_t count = AT_NORMS + (own_norms ? call->lists[0].n : 0);
    if (own_norm || own_norms || own_found) {
        call->numbers = PyMem_Calloc(count, sizeof(float));
        if (!call->numbers) {
            PyErr_NoMemory();
            return -1;
        }
    }
    float *numbers = call->numbers;
    if (numbers && call->device.type != AMP_PY_CPU) {
        void *data = NULL;
        call->scratch = amp_py_cuda_make("zeros", PyLong_FromSize_t(count), "float32", call->device, &data);
        if (!call->scratch) return -1;
        numbers = data;
    }
    call->to_norm = own_norm ? numbers + AT_NORM : call->norm.pointer;
    call->to_norms = own_norms ? numbers + AT_NORMS : call->norms.pointer;
    call->to_found = own_found ? numbers + AT_FOUND : call->found_inf.pointer;
    return 0;
}

int amp_py_call_run(amp_py_call *call, amp_py_kernel cpu, amp_py_kernel cuda) {
    bool on_cuda = call->device.type != AMP_PY_CPU;
    if (on_cuda && !cuda) {
        PyErr_Format(amp_py_argument_error(), "%s works on the CPU only, and these tensors are on device %d",
                     call->function, (int)call->device.id);
        return -1;
    }
    if ((on_cuda && amp_py_cuda_open(call)) || place_results(call)) return -1;
    amp_status status;
    if (on_cuda) { /* only starts the work. The GIL separates calls with one list */
        status = cuda(call);
    } else {
        Py_BEGIN_ALLOW_THREADS
        status = cpu(call);
        Py_END_ALLOW_THREADS
    }
    if (status != AMP_OK) {
        amp_py_raise(status);
        return -1;
    }
    return amp_py_lists_touch(call->lists, call->count);
}

/* Returns a result as a Python object, if no tensor was given for it. */
static PyObject *result_of(const amp_py_call *call, int which) {
    if (which == AMP_PY_NORM) return PyFloat_FromDouble((double)call->numbers[AT_NORM]);
    if (which == AMP_PY_FOUND) return PyBool_FromLong(call->numbers[AT_FOUND] != 0.0f);
    PyObject *list = PyList_New((Py_ssize_t)call->lists[0].n);
    for (size_t i = 0; list && i < call->lists[0].n; i++) {
        PyObject *value = PyFloat_FromDouble((double)call->numbers[AT_NORMS + i]);
        if (!value || PyList_SetItem(list, (Py_ssize_t)i, value)) Py_CLEAR(list);
    }
    return list;
}

PyObject *amp_py_call_results(amp_py_call *call) {
    if (!call->numbers) return Py_NewRef(Py_None);
    if (call->scratch) {
        bool norms = (call->results & AMP_PY_NORMS) && !call->norms.tensor;
        if (amp_py_cuda_read(call->scratch, call->numbers, AT_NORMS + (norms ? call->lists[0].n : 0))) return NULL;
    }
    PyObject *values[3];
    Py_ssize_t n = 0;
    for (int which = AMP_PY_NORM; which <= AMP_PY_FOUND; which *= 2) {
        const amp_py_scalar *tensor = which == AMP_PY_NORM ? &call->norm
            : which == AMP_PY_NORMS ? &call->norms : &call->found_inf;
        if (!(call->results & which)) continue;
        values[n] = tensor->tensor ? Py_NewRef(Py_None) : result_of(call, which);
        if (values[n++] == NULL) {
            while (--n > 0) Py_DECREF(values[n - 1]);
            return NULL;
        }
    }
    if (n == 1) return values[0];
    PyObject *tuple = PyTuple_New(n);
    for (Py_ssize_t i = 0; i < n; i++) {
        if (!tuple) Py_DECREF(values[i]);
        else PyTuple_SetItem(tuple, i, values[i]);
    }
    return tuple;
}

PyObject *amp_py_call_all(amp_py_call *call, const amp_py_argument *arguments, size_t count, amp_py_kernel cpu,
                          amp_py_kernel cuda) {
    if (amp_py_call_open(call, arguments, count)) return NULL;
    PyObject *results = amp_py_call_run(call, cpu, cuda) ? NULL : amp_py_call_results(call);
    amp_py_call_close(call);
    return results;
}
