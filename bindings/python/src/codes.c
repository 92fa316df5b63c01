/* SPDX-License-Identifier: Apache-2.0 */
/* Moments in 8 bits in libamp.kernels: encode_moment, decode_moment, optim_key, and the scales and keys of an
 * optimizer's step. */
#include "kernels.h"

#include "amp_optim.h"
#include "call.h"

static uint64_t blocks_of(uint64_t size) { return size / AMP_STATE_BLOCK + (size % AMP_STATE_BLOCK != 0); }

static int check_scales(const amp_py_list *list, const amp_py_list *params, size_t i) {
    const amp_span *span = &list->spans[i];
    const amp_py_where place = { list->name, list->single ? -1 : (Py_ssize_t)i };
    const uint64_t wanted = blocks_of(params->spans[i].size);
    if (!span->data) return 0;
    if (span->dtype != AMP_FLOAT32) return amp_py_refuse(place, "must be float32");
    if (span->size != wanted)
        return amp_py_refuse(place, "has %llu scale%s, and its tensor of %llu element%s needs %llu",
                             (unsigned long long)span->size, AMP_PY_S(span->size),
                             (unsigned long long)params->spans[i].size, AMP_PY_S(params->spans[i].size),
                             (unsigned long long)wanted);
    return 0;
}

float **amp_py_scales(const struct amp_py_list *list, const struct amp_py_list *params) {
    float **scales = PyMem_Calloc(list->n ? list->n : 1, sizeof *scales);
    if (!scales) PyErr_NoMemory();
    for (size_t i = 0; scales && i < list->n; i++) {
        if (check_scales(list, params, i)) {
            PyMem_Free(scales);
            return NULL;
        }
        scales[i] = list->spans[i].data;
    }
    return scales;
}

uint64_t *amp_py_numbers(PyObject *list, const char *name, size_t n) {
    uint64_t *numbers = PyMem_Calloc(n ? n : 1, sizeof *numbers);
    if (!numbers) {
        PyErr_NoMemory();
        return NULL;
    }
    if (!PyList_Check(list) || (size_t)PyList_Size(list) != n)
        amp_py_refuse((amp_py_where){ name, -1 }, "must be a list with a number for each of the %zu tensor%s", n,
                      AMP_PY_S(n));
    for (size_t i = 0; !PyErr_Occurred() && i < n; i++)
        numbers[i] = PyLong_AsUnsignedLongLong(PyList_GetItem(list, (Py_ssize_t)i));
    if (!PyErr_Occurred()) return numbers;
    PyMem_Free(numbers);
    return NULL;
}

/* ---- conversions ---- */

enum { CODES, SCALES, VALUES };

typedef struct moment_call {
    amp_py_call call; /* first member, so that kernels find the others */
    int second, keep_scales;
} moment_call;

/* The codes are as many bytes as elements. */
static int check_moment(const amp_py_call *call) {
    const amp_py_list *codes = &call->lists[CODES], *values = &call->lists[VALUES];
    for (size_t i = 0; i < values->n; i++) {
        const amp_py_where place = { "codes", codes->single ? -1 : (Py_ssize_t)i };
        if (codes->spans[i].dtype != AMP_DTYPE_OTHER || codes->spans[i].size != values->spans[i].size)
            return amp_py_refuse(place, "must be int8 or uint8 with the size of its values");
        if (values->spans[i].dtype != AMP_FLOAT32)
            return amp_py_refuse((amp_py_where){ "values", values->single ? -1 : (Py_ssize_t)i }, "must be float32");
        if (check_scales(&call->lists[SCALES], values, i)) return -1;
    }
    return 0;
}

static amp_status encode_cpu(amp_py_call *call) {
    const moment_call *moment = (const moment_call *)call;
    amp_status status = AMP_OK;
    for (size_t i = 0; i < call->lists[CODES].n && status == AMP_OK; i++) {
        const amp_span *values = &call->lists[VALUES].spans[i];
        status = amp_encode_moment(call->lists[CODES].spans[i].data, call->lists[SCALES].spans[i].data, values->data,
                                   values->size, moment->second, moment->keep_scales);
    }
    return status;
}

static amp_status decode_cpu(amp_py_call *call) {
    const moment_call *moment = (const moment_call *)call;
    amp_status status = AMP_OK;
    for (size_t i = 0; i < call->lists[CODES].n && status == AMP_OK; i++) {
        const amp_span *values = &call->lists[VALUES].spans[i];
        status = amp_decode_moment(values->data, call->lists[CODES].spans[i].data, call->lists[SCALES].spans[i].data,
                                   values->size, moment->second);
    }
    return status;
}

static PyObject *run_moment(moment_call *moment, const amp_py_argument *arguments, amp_py_kernel cpu) {
    PyObject *result = NULL;
    if (amp_py_call_open(&moment->call, arguments, 3)) return NULL;
    if (!check_moment(&moment->call) && !amp_py_call_run(&moment->call, cpu, NULL)) result = Py_NewRef(Py_None);
    amp_py_call_close(&moment->call);
    return result;
}

static PyObject *encode_moment(PyObject *self, PyObject *args, PyObject *keywords) {
    static char *names[] = { "codes", "scales", "values", "second", "keep_scales", NULL };
    moment_call moment = { .call = { .function = "encode_moment" } };
    PyObject *codes, *scales, *values;
    (void)self;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOOp|p:encode_moment", names, &codes, &scales, &values,
                                     &moment.second, &moment.keep_scales))
        return NULL;
    return run_moment(&moment, (amp_py_argument[]){ { "codes", codes, AMP_PY_WRITE | AMP_PY_CODES },
                                                    { "scales", scales, AMP_PY_WRITE },
                                                    { "values", values, AMP_PY_READ } }, encode_cpu);
}

static PyObject *decode_moment(PyObject *self, PyObject *args, PyObject *keywords) {
    static char *names[] = { "values", "codes", "scales", "second", NULL };
    moment_call moment = { .call = { .function = "decode_moment" } };
    PyObject *codes, *scales, *values;
    (void)self;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOOp:decode_moment", names, &values, &codes, &scales,
                                     &moment.second))
        return NULL;
    return run_moment(&moment, (amp_py_argument[]){ { "codes", codes, AMP_PY_READ | AMP_PY_CODES },
                                                    { "scales", scales, AMP_PY_READ },
                                                    { "values", values, AMP_PY_WRITE } }, decode_cpu);
}

static PyObject *optim_key(PyObject *self, PyObject *args) {
    unsigned long long seed;
    const char *name;
    (void)self;
    return PyArg_ParseTuple(args, "Ks:optim_key", &seed, &name)
               ? PyLong_FromUnsignedLongLong(amp_optim_key(seed, name)) : NULL;
}

static PyMethodDef methods[] = {
    { "encode_moment", (PyCFunction)(void (*)(void))encode_moment, METH_VARARGS | METH_KEYWORDS,
      "encode_moment(codes, scales, values, second, keep_scales=False)\n--\n\nStores a moment of Adam in 8 bits "
      "(amp_encode_moment). second: the values are v, and codes is uint8, else int8. CPU only." },
    { "decode_moment", (PyCFunction)(void (*)(void))decode_moment, METH_VARARGS | METH_KEYWORDS,
      "decode_moment(values, codes, scales, second)\n--\n\nReads a moment in 8 bits (amp_decode_moment). CPU only." },
    { "optim_key", optim_key, METH_VARARGS,
      "optim_key(seed, name, /)\n--\n\nReturns the key of a parameter's random numbers (amp_optim_key)." },
    { NULL, NULL, 0, NULL },
};

int amp_py_add_codes(PyObject *kernels) {
    return PyModule_AddFunctions(kernels, methods);
}
