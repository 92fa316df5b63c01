/* SPDX-License-Identifier: Apache-2.0 */
/* State of a context: scales, records, checkpoints, and the policy in words. */
#include "context.h"

#include <stdlib.h>

static bool read_loss_id(PyObject *object, uint32_t *loss_id) {
    const unsigned long number = PyLong_AsUnsignedLong(object);
    *loss_id = number > UINT32_MAX ? UINT32_MAX : (uint32_t)number;
    return !PyErr_Occurred();
}

static bool read_record(PyObject *self, PyObject *loss_id, amp_record *record) {
    const amp_py_Context *context = amp_py_live(self);
    uint32_t id;
    if (!context || !read_loss_id(loss_id, &id)) return false;
    *record = (amp_record)AMP_RECORD_INIT;
    const amp_status status = amp_get_record(context->amp, id, record);
    if (status != AMP_OK) amp_py_raise(status);
    return status == AMP_OK;
}

PyObject *amp_py_Context_scale(PyObject *self, PyObject *loss_id) {
    amp_record record;
    return read_record(self, loss_id, &record) ? PyFloat_FromDouble((double)record.scale_after) : NULL;
}

PyObject *amp_py_Context_record(PyObject *self, PyObject *loss_id) {
    amp_record record;
    if (!read_record(self, loss_id, &record)) return NULL;
    return Py_BuildValue("{s:i,s:d,s:d,s:K,s:K,s:I,s:I,s:z}", "action", (int)record.action, "scale_before",
                         (double)record.scale_before, "scale_after", (double)record.scale_after, "brackets",
                         (unsigned long long)record.brackets, "skipped", (unsigned long long)record.skipped,
                         "skips_in_row",
                         (unsigned)record.skips_in_row, "unskipped", (unsigned)record.unskipped, "first_nonfinite",
                         record.first_nonfinite);
}

PyObject *amp_py_Context_check(PyObject *self, PyObject *unused) {
    const amp_py_Context *context = amp_py_live(self);
    (void)unused;
    return context ? amp_py_result(amp_check(context->amp)) : NULL;
}

/* ---- tensors of the caller ---- */

PyObject *amp_py_Context_unscale(PyObject *self, PyObject *args) {
    amp_py_Context *context = amp_py_live(self);
    PyObject *list;
    unsigned loss_id;
    if (!context || !PyArg_ParseTuple(args, "IO!:unscale", &loss_id, &PyList_Type, &list)) return NULL;
    const size_t n = (size_t)PyList_Size(list);
    void **tensors = calloc(n + 1, sizeof *tensors);
    if (!tensors) return PyErr_NoMemory();
    for (size_t i = 0; i < n; i++) tensors[i] = PyList_GetItem(list, (Py_ssize_t)i);
    float found_inf = 0.0f;
    const amp_status status = amp_unscale(context->amp, loss_id, tensors, n, &found_inf);
    free(tensors);
    return status == AMP_OK ? PyBool_FromLong(found_inf != 0.0f) : amp_py_context_raise(context, status);
}

PyObject *amp_py_Context_reconcile(PyObject *self, PyObject *unused) {
    amp_py_Context *context = amp_py_live(self);
    (void)unused;
    if (!context) return NULL;
    const amp_status status = amp_masters_reconcile(context->amp);
    return status == AMP_OK ? Py_NewRef(Py_None) : amp_py_context_raise(context, status);
}

/* ---- states ---- */

static PyObject *save_bytes(amp_py_Context *context, amp_state_format format) {
    size_t size = 0;
    amp_status status = amp_state_save_memory(context->amp, format, NULL, 0, &size);
    char *data = status == AMP_OK ? malloc(size + 1) : NULL;
    if (status == AMP_OK)
        status = data ? amp_state_save_memory(context->amp, format, data, size, &size) : AMP_ERR_NO_MEMORY;
    PyObject *bytes = status == AMP_OK ? PyBytes_FromStringAndSize(data, (Py_ssize_t)size) : NULL;
    free(data);
    return status == AMP_OK ? bytes : amp_py_context_raise(context, status);
}

PyObject *amp_py_Context_save(PyObject *self, PyObject *args) {
    amp_py_Context *context = amp_py_live(self);
    const char *path, *format = "safetensors";
    if (!context || !PyArg_ParseTuple(args, "z|s:save", &path, &format)) return NULL;
    const bool apex = PyOS_stricmp(format, "apex") == 0;
    const amp_state_format form = apex ? AMP_STATE_APEX : AMP_STATE_SAFETENSORS;
    if (!path) return save_bytes(context, form);
    const amp_status status = amp_state_save(context->amp, path, form);
    return status == AMP_OK ? Py_NewRef(Py_None) : amp_py_context_raise(context, status);
}

PyObject *amp_py_Context_load(PyObject *self, PyObject *state) {
    amp_py_Context *context = amp_py_live(self);
    if (!context) return NULL;
    amp_status status;
    if (PyBytes_Check(state)) {
        char *data;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(state, &data, &size)) return NULL;
        status = amp_state_load_memory(context->amp, data, (size_t)size);
    } else {
        const char *path = PyUnicode_AsUTF8AndSize(state, NULL);
        if (!path) return NULL;
        status = amp_state_load(context->amp, path);
    }
    return status == AMP_OK ? Py_NewRef(Py_None) : amp_py_context_raise(context, status);
}

/* ---- the policy ---- */

enum { MOST_TYPES = 64 };

PyObject *amp_py_Context_op_target(PyObject *self, PyObject *args) {
    const amp_py_Context *context = amp_py_live(self);
    const char *name;
    PyObject *list;
    amp_dtype dtypes[MOST_TYPES], target;
    if (!context || !PyArg_ParseTuple(args, "sO!:op_target", &name, &PyList_Type, &list)) return NULL;
    const size_t n = (size_t)PyList_Size(list);
    if (n > MOST_TYPES) {
        PyErr_SetString(PyExc_ValueError, "too many types");
        return NULL;
    }
    for (size_t i = 0; i < n; i++) {
        dtypes[i] = AMP_DTYPE_OTHER;
        for (amp_dtype type = AMP_FLOAT32; type < AMP_DTYPE_OTHER; type++) {
            if (PyList_GetItem(list, (Py_ssize_t)i) == amp_py_torch_dtype(type)) dtypes[i] = type;
        }
    }
    const amp_status status = amp_op_target(context->amp, name, dtypes, n, &target);
    if (status != AMP_OK) return amp_py_raise(status);
    PyObject *dtype = amp_py_torch_dtype(target);
    return Py_NewRef(dtype ? dtype : Py_None);
}

/* Returns the text of `tell`, amp_explain or amp_health. */
static PyObject *read_text(const amp_py_Context *context, const char *op,
                           amp_status (*tell)(amp_context *, const char *, char *, size_t, size_t *)) {
    size_t length = 0;
    amp_status status = tell(context->amp, op, NULL, 0, &length);
    char *text = status == AMP_OK ? malloc(length + 1) : NULL;
    if (status == AMP_OK) status = text ? tell(context->amp, op, text, length + 1, NULL) : AMP_ERR_NO_MEMORY;
    PyObject *result = status == AMP_OK ? PyUnicode_FromString(text) : amp_py_raise(status);
    free(text);
    return result;
}

PyObject *amp_py_Context_explain(PyObject *self, PyObject *args) {
    const amp_py_Context *context = amp_py_live(self);
    const char *op = NULL;
    if (!context || !PyArg_ParseTuple(args, "|z:explain", &op)) return NULL;
    return read_text(context, op, amp_explain);
}

static amp_status tell_health(amp_context *context, const char *op, char *text, size_t capacity, size_t *length) {
    (void)op;
    return amp_health(context, text, capacity, length);
}

PyObject *amp_py_Context_health(PyObject *self, PyObject *unused) {
    const amp_py_Context *context = amp_py_live(self);
    (void)unused;
    return context ? read_text(context, NULL, tell_health) : NULL;
}

PyObject *amp_py_Context_findings(PyObject *self, PyObject *unused) {
    const amp_py_Context *context = amp_py_live(self);
    size_t n = 0, told = 0;
    (void)unused;
    if (!context) return NULL;
    amp_status status = amp_get_findings(context->amp, NULL, 0, &n);
    amp_finding *found = calloc(n + 1, sizeof *found);
    if (!found) return PyErr_NoMemory();
    found[0] = (amp_finding)AMP_FINDING_INIT;
    if (status == AMP_OK && n > 0) {
        status = amp_get_findings(context->amp, found, n, &told); /* there may be more in the meantime */
    }
    PyObject *list = status == AMP_OK ? PyList_New(0) : amp_py_raise(status);
    for (size_t i = 0; i < n && list; i++) {
        PyObject *entry = Py_BuildValue("(sssK)", found[i].code, found[i].subject, found[i].message,
                                        (unsigned long long)found[i].times);
        if (!entry || PyList_Append(list, entry)) Py_CLEAR(list);
        Py_XDECREF(entry);
    }
    free(found);
    return list;
}

static PyObject *stats_dict(const amp_op_stats *s) {
    return Py_BuildValue("{s:s,s:i,s:i,s:K,s:K,s:K,s:K,s:K}", "name", s->name, "op_class", (int)s->op_class,
                         "last_target", (int)s->last_target, "calls", (unsigned long long)s->calls, "passed",
                         (unsigned long long)s->passed, "casts", (unsigned long long)s->casts, "cache_hits",
                         (unsigned long long)s->cache_hits, "failures", (unsigned long long)s->failures);
}

PyObject *amp_py_Context_op_stats(PyObject *self, PyObject *unused) {
    const amp_py_Context *context = amp_py_live(self);
    (void)unused;
    if (!context) return NULL;
    size_t n = context->model.n_ops;
    amp_op_stats *stats = calloc(n + 1, sizeof *stats);
    if (!stats) return PyErr_NoMemory();
    stats[0].struct_size = sizeof *stats;
    const amp_status status = amp_get_op_stats(context->amp, stats, n, &n);
    PyObject *list = status == AMP_OK ? PyList_New(0) : amp_py_raise(status);
    for (size_t i = 0; i < n && list; i++) {
        PyObject *entry = stats_dict(&stats[i]);
        if (!entry || PyList_Append(list, entry)) Py_CLEAR(list);
        Py_XDECREF(entry);
    }
    free(stats);
    return list;
}
