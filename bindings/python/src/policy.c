/* SPDX-License-Identifier: Apache-2.0 */
/* _core.Policy: a level's rulings on ops, for frameworks with tensors that the extension does not know. It has no model
 * and no optimizer. Types are named by strings. And the gate's table. */
#include "context.h"

#include "amp_gate.h"

#include <stdlib.h>

enum { MOST_TYPES = 8 };

typedef struct {
    PyObject_HEAD
    amp_context *amp;
} amp_py_Policy;

static PyObject *policy_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = { "level", "config", NULL };
    const char *level;
    PyObject *settings;
    amp_config config;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sO!", names, &level, &PyDict_Type, &settings) ||
        amp_py_config(level, settings, &config))
        return NULL;
    amp_py_Policy *policy = (amp_py_Policy *)PyType_GenericAlloc(type, 0);
    const amp_status status = policy ? amp_initialize_many(NULL, 0, NULL, 0, &config, &policy->amp) : AMP_OK;
    if (status != AMP_OK) {
        Py_DECREF(policy);
        return amp_py_raise(status);
    }
    return (PyObject *)policy;
}

static void policy_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    amp_context *amp = ((amp_py_Policy *)self)->amp;
    if (amp) (void)amp_shutdown(amp);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* Raises the library's message for a banned op. */
static PyObject *raise_refusal(amp_status status) {
    if (status != AMP_ERR_BANNED) return amp_py_raise(status);
    PyObject *words = amp_py_words(amp_last_error());
    PyErr_SetObject(PyExc_NotImplementedError, words);
    Py_XDECREF(words);
    return NULL;
}

static PyObject *policy_target(PyObject *self, PyObject *args) {
    amp_context *amp = ((amp_py_Policy *)self)->amp;
    const char *op;
    PyObject *given;
    int op_class = AMP_BY_LIST;
    amp_dtype types[MOST_TYPES], target = AMP_DTYPE_DEFAULT;
    if (!PyArg_ParseTuple(args, "sO!|i:target", &op, &PyTuple_Type, &given, &op_class)) return NULL;
    const Py_ssize_t n = PyTuple_Size(given);
    if (n > MOST_TYPES) return PyErr_Format(PyExc_ValueError, "%zd type%s, and there are fewer: name each once", n,
                                            AMP_PY_S(n));
    for (Py_ssize_t i = 0; i < n; i++) {
        if (amp_py_type_of(PyTuple_GetItem(given, i), &types[i])) return NULL;
    }
    amp_status status = op_class == AMP_BY_LIST ? amp_op_class(amp, op, &op_class) : AMP_OK;
    if (status == AMP_OK) status = amp_class_target(amp, op, op_class, AMP_DTYPE_DEFAULT, types, (size_t)n, &target);
    return status == AMP_OK ? amp_py_type_name(target) : raise_refusal(status);
}

/* ---- the gate's table ---- */

static PyObject *gate_rows(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    size_t n = 0, count = 0;
    amp_status status = amp_get_gate_rows(NULL, 0, &n);
    amp_gate_row *rows = status == AMP_OK ? calloc(n, sizeof *rows) : NULL;
    if (!rows) return status == AMP_OK ? PyErr_NoMemory() : amp_py_raise(status);
    rows[0].struct_size = sizeof *rows;
    status = amp_get_gate_rows(rows, n, &count);
    PyObject *made = status == AMP_OK ? PyList_New((Py_ssize_t)n) : amp_py_raise(status);
    for (size_t i = 0; made && i < n; i++) {
        PyObject *row = Py_BuildValue("(sssNK)", rows[i].who, rows[i].kind, rows[i].unit,
                                      amp_py_type_name(rows[i].dtype), (unsigned long long)rows[i].least);
        if (row && PyList_SetItem(made, (Py_ssize_t)i, row) == 0) continue;
        Py_CLEAR(made);
    }
    free(rows);
    return made;
}

int amp_py_add_policy(PyObject *module) {
    static PyMethodDef functions[] = {
        { "gate_rows", gate_rows, METH_NOARGS, "gate_rows(): the gate's table: (who, kind, unit, type, least edge)." },
        { NULL, NULL, 0, NULL },
    };
    static PyMethodDef methods[] = {
        { "target", policy_target, METH_VARARGS,
          "target(op, types, op_class=0): the type for arguments of these types, None for no cast." },
        { NULL, NULL, 0, NULL },
    };
    static PyType_Slot slots[] = {
        { Py_tp_new, AMP_PY_SLOT(policy_new) },
        { Py_tp_dealloc, AMP_PY_SLOT(policy_dealloc) },
        { Py_tp_methods, methods },
        { Py_tp_doc, (void *)(uintptr_t)"Policy(level, config): a level's rulings on ops, without a model." },
        { 0, NULL },
    };
    static PyType_Spec spec = { "libamp._core.Policy", sizeof(amp_py_Policy), 0, Py_TPFLAGS_DEFAULT, slots };
    PyObject *type = PyType_FromSpec(&spec);
    const int bad = type == NULL || PyModule_AddObjectRef(module, "Policy", type) < 0 ||
        PyModule_AddFunctions(module, functions) < 0;
    Py_XDECREF(type);
    return bad ? -1 : 0;
}
