/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors of parameters, optimizers and ops for libamp, from Python's. */
#include "context.h"

#include <stdlib.h>

/* ---- parameters ---- */

static int grow_table(amp_py_Context *context) {
    size_t size = 64;
    while (size < 4 * (context->n_params + 1)) size *= 2;
    struct amp_py_param **table = size > context->table_size ? calloc(size, sizeof *table) : context->table;
    if (!table) {
        PyErr_NoMemory();
        return -1;
    }
    if (table == context->table) return 0;
    for (size_t i = 0; i < context->n_params; i++) {
        size_t at = ((uintptr_t)context->params[i]->tensor >> 4) & (size - 1);
        while (table[at]) at = (at + 1) & (size - 1);
        table[at] = context->params[i];
    }
    free(context->table);
    context->table = table;
    context->table_size = size;
    return 0;
}

/* Returns the parameter of a tensor, a new one if it is unknown. */
static struct amp_py_param *intern_param(amp_py_Context *context, PyObject *tensor) {
    struct amp_py_param *param = amp_py_find(context, tensor);
    if (param) return param;
    if (grow_table(context)) return NULL;
    struct amp_py_param **grown = realloc(context->params, (context->n_params + 1) * sizeof *grown);
    if (!grown) {
        PyErr_NoMemory();
        return NULL;
    }
    context->params = grown;
    param = calloc(1, sizeof *param);
    if (!param) {
        PyErr_NoMemory();
        return NULL;
    }
    param->tensor = Py_NewRef(tensor);
    param->number = context->n_params;
    context->params[context->n_params++] = param;
    size_t at = ((uintptr_t)tensor >> 4) & (context->table_size - 1);
    while (context->table[at]) at = (at + 1) & (context->table_size - 1);
    context->table[at] = param;
    const int bad = amp_py_read_order(tensor, &param->order);
    context->permutes |= param->order.permuted;
    return bad ? NULL : param;
}

/* Reads one (tensor, name, is_batch_norm). The tuple owns the name. */
static int read_param(amp_py_Context *context, PyObject *entry, amp_param *out) {
    PyObject *tensor, *name;
    int is_batch_norm = 0;
    if (!PyArg_ParseTuple(entry, "OUp", &tensor, &name, &is_batch_norm)) return -1;
    *out = (amp_param)AMP_PARAM_INIT;
    out->tensor = tensor;
    out->name = PyUnicode_AsUTF8AndSize(name, NULL);
    out->module_kind = is_batch_norm ? AMP_MODULE_BATCH_NORM : AMP_MODULE_OTHER;
    if (!amp_py_is_tensor(tensor)) {
        PyErr_Format(PyExc_TypeError, "%U is no torch.Tensor", name);
        return -1;
    }
    return out->name && intern_param(context, tensor) ? 0 : -1;
}

amp_param *amp_py_read_params(amp_py_Context *context, PyObject *list, size_t *n) {
    *n = (size_t)PyList_Size(list);
    amp_param *params = calloc(*n + 1, sizeof *params);
    if (!params) {
        PyErr_NoMemory();
        return NULL;
    }
    for (size_t i = 0; i < *n; i++) {
        if (read_param(context, PyList_GetItem(list, (Py_ssize_t)i), &params[i])) {
            free(params);
            return NULL;
        }
    }
    return params;
}

/* ---- optimizers ---- */

static int append_param(amp_py_Context *context, struct amp_py_optimizer *optimizer, PyObject *tensor) {
    struct amp_py_param *param = intern_param(context, tensor);
    struct amp_py_param **grown = realloc(optimizer->params, (optimizer->n + 1) * sizeof *grown);
    if (!param || !grown) {
        optimizer->params = grown ? grown : optimizer->params;
        return param ? (PyErr_NoMemory(), -1) : -1;
    }
    optimizer->params = grown;
    optimizer->params[optimizer->n++] = param;
    return 0;
}

static int read_optimizer(amp_py_Context *context, PyObject *tensors) {
    struct amp_py_optimizer *optimizer = calloc(1, sizeof *optimizer);
    const Py_ssize_t n = PyList_Size(tensors);
    if (!optimizer || n < 0) {
        free(optimizer);
        return n < 0 ? -1 : (PyErr_NoMemory(), -1);
    }
    context->optimizers[context->n_optimizers++] = optimizer;
    optimizer->amp = (amp_optimizer)AMP_OPTIMIZER_INIT;
    optimizer->amp.flags = AMP_OPTIMIZER_HOLDS_MASTERS;
    optimizer->amp.host = &context->host;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (append_param(context, optimizer, PyList_GetItem(tensors, i))) return -1;
    }
    return 0;
}

int amp_py_read_optimizers(amp_py_Context *context, PyObject *list, PyObject *skipping) {
    const Py_ssize_t n = PyList_Size(list);
    context->optimizers = n < 0 ? NULL : calloc((size_t)n + 1, sizeof *context->optimizers);
    if (!context->optimizers) return n < 0 ? -1 : (PyErr_NoMemory(), -1);
    for (Py_ssize_t i = 0; i < n; i++) {
        if (read_optimizer(context, PyList_GetItem(list, i))) return -1;
    }
    for (Py_ssize_t i = 0; skipping && i < PyList_Size(skipping); i++) {
        struct amp_py_optimizer *optimizer = amp_py_optimizer_at(context, PyList_GetItem(skipping, i));
        if (!optimizer) return -1;
        optimizer->amp.flags |= AMP_OPTIMIZER_SKIPS_ON_DEVICE;
    }
    return 0;
}

/* Returns the handles of an optimizer's parameters for amp_initialize_many. free() it. */
void **amp_py_handles_of(const struct amp_py_optimizer *optimizer) {
    void **handles = calloc(optimizer->n + 1, sizeof *handles);
    for (size_t i = 0; handles && i < optimizer->n; i++) handles[i] = optimizer->params[i]->tensor;
    return handles;
}

/* ---- ops ---- */

static int read_op(PyObject *entry, amp_op *op) {
    int op_class = 0;
    PyObject *class_object = Py_None;
    *op = (amp_op)AMP_OP_INIT;
    if (!PyArg_ParseTuple(entry, "szzO", &op->name, &op->aliases, &op->schema, &class_object)) return -1;
    if (class_object != Py_None) op_class = (int)PyLong_AsLong(class_object);
    op->op_class = op_class;
    op->flags = AMP_OP_DIRECT;
    return PyErr_Occurred() ? -1 : 0;
}

amp_op *amp_py_read_ops(PyObject *list, size_t *n) {
    *n = (size_t)PyList_Size(list);
    amp_op *ops = calloc(*n + 1, sizeof *ops);
    if (!ops) {
        PyErr_NoMemory();
        return NULL;
    }
    for (size_t i = 0; i < *n; i++) {
        if (read_op(PyList_GetItem(list, (Py_ssize_t)i), &ops[i])) {
            free(ops);
            return NULL;
        }
    }
    return ops;
}

/* ---- parameters that come later ---- */

PyObject *amp_py_Context_add_params(PyObject *self, PyObject *args) {
    amp_py_Context *context = amp_py_live(self);
    PyObject *index, *list;
    if (!context || !PyArg_ParseTuple(args, "OO!:add_params", &index, &PyList_Type, &list)) return NULL;
    struct amp_py_optimizer *optimizer = amp_py_optimizer_at(context, index);
    size_t n = 0;
    amp_param *params = optimizer ? amp_py_read_params(context, list, &n) : NULL;
    if (!params) return NULL;
    const size_t before = optimizer->n;
    amp_status status = AMP_OK;
    int bad = 0;
    for (size_t i = 0; i < n && !bad; i++) bad = append_param(context, optimizer, params[i].tensor);
    if (!bad) {
        status = amp_add_params(&optimizer->amp, params, n);
        amp_py_drop_held(context);
    }
    free(params);
    if (bad || status != AMP_OK) {
        optimizer->n = before;
        return bad ? NULL : amp_py_context_raise(context, status);
    }
    return amp_py_make_masters(context, optimizer, before) ? NULL : Py_NewRef(Py_None);
}
