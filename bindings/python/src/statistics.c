/* SPDX-License-Identifier: Apache-2.0 */
/* libamp.kernels.statistics: amp_statistics_list of amp_kernels.h. */
#include "amp_kernels.h"
#include "call.h"
#include "kernels.h"

#include <string.h>

static amp_status statistics_cpu(amp_py_call *call) {
    *call->statistics = (amp_statistics)AMP_STATISTICS_INIT;
    for (size_t i = 0; i < call->lists[0].n; i++) {
        amp_status status = amp_statistics_list(&call->lists[0].spans[i], 1, call->statistics);
        if (status != AMP_OK) return status;
    }
    return AMP_OK;
}

/* Returns {exponent: elements} of nonzero counts. */
static PyObject *binades_of(const amp_statistics *statistics) {
    PyObject *binades = PyDict_New();
    for (int i = 0; binades != NULL && i < AMP_BINADES; i++) {
        if (statistics->binades[i].elements == 0) continue;
        PyObject *key = PyLong_FromLong(i + AMP_BINADE_LEAST);
        PyObject *value = PyLong_FromUnsignedLongLong(statistics->binades[i].elements);
        if (!key || !value || PyDict_SetItem(binades, key, value)) Py_CLEAR(binades);
        Py_XDECREF(key);
        Py_XDECREF(value);
    }
    return binades;
}

/* Returns the tuple for libamp.kernels.Statistics, with the structure's bytes last. */
PyObject *amp_py_statistics(const amp_statistics *s) {
    PyObject *binades = binades_of(s);
    if (!binades) return NULL;
    return Py_BuildValue("(KKKKKddddNy#)", s->elements, s->zeros, s->nans, s->plus_infinities, s->minus_infinities,
                         s->largest, s->least, s->sum, s->sum_squares, binades, (const char *)s,
                         (Py_ssize_t)sizeof *s);
}

static PyObject *statistics(PyObject *self, PyObject *src) {
    (void)self;
    amp_statistics found;
    amp_py_call call = { .function = "statistics", .statistics = &found };
    PyObject *done = amp_py_call_all(&call, (amp_py_argument[]){ { "src", src, AMP_PY_READ } }, 1, statistics_cpu,
                                     NULL);
    Py_XDECREF(done);
    return done ? amp_py_statistics(&found) : NULL;
}

static PyObject *statistics_losses(PyObject *self, PyObject *args) {
    (void)self;
    const char *bytes, *name;
    Py_ssize_t size;
    float scale;
    amp_statistics counted;
    amp_losses losses;
    if (!PyArg_ParseTuple(args, "y#sf:statistics_losses", &bytes, &size, &name, &scale)) return NULL;
    amp_dtype type = !strcmp(name, "float16") ? AMP_FLOAT16 : !strcmp(name, "bfloat16") ? AMP_BFLOAT16 : AMP_FLOAT32;
    if (size != (Py_ssize_t)sizeof counted) {
        PyErr_SetString(PyExc_ValueError, "statistics_losses: not the bytes of statistics");
        return NULL;
    }
    memcpy(&counted, bytes, sizeof counted);
    amp_status status = amp_statistics_losses(&counted, type, scale, &losses);
    if (status != AMP_OK) return amp_py_result(status);
    return Py_BuildValue("(KKK)", losses.zeros, losses.subnormals, losses.infinities);
}

static PyMethodDef methods[] = {
    { "statistics", statistics, METH_O, "statistics(src, /)\n--\n\nReturns a tuple for libamp.kernels.Statistics." },
    { "statistics_losses", statistics_losses, METH_VARARGS,
      "statistics_losses(memory, dtype, scale, /)\n--\n\nReturns (zeros, subnormals, infinities) of a cast." },
    { NULL, NULL, 0, NULL },
};

int amp_py_add_statistics(PyObject *kernels) { return PyModule_AddFunctions(kernels, methods); }
