/* SPDX-License-Identifier: Apache-2.0 */
/* The masters as tensors: the library's blocks get a torch.nn.Parameter and its gradient. */
#include "context.h"

#include <stdlib.h>
#include <string.h>

/* What libamp says of the optimizer's parameters; free() it. */
static amp_master *describe(amp_py_Context *context, struct amp_py_optimizer *optimizer)
{
    size_t n = 0;
    amp_master *masters = calloc(optimizer->n + 1, sizeof *masters);
    if (masters == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    masters[0].struct_size = sizeof *masters;
    const amp_status status = amp_master_params(&optimizer->amp, masters, optimizer->n, &n);
    if (status != AMP_OK) {
        free(masters);
        amp_py_context_raise(context, status);
        return NULL;
    }
    return masters;
}

/* The tensor that owns a block; borrowed. */
static PyObject *owner_of(amp_py_Context *context, const void *data)
{
    PyObject *key = PyLong_FromVoidPtr((void *)(uintptr_t)data);
    PyObject *owner = key ? PyDict_GetItemWithError(context->blocks, key) : NULL;
    Py_XDECREF(key);
    if (owner == NULL && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_RuntimeError, "libamp names a block that no tensor owns");
    }
    return owner;
}

int amp_py_make_masters(amp_py_Context *context, struct amp_py_optimizer *optimizer, size_t from)
{
    amp_master *masters = describe(context, optimizer);
    int bad = masters == NULL;
    for (size_t i = from; i < optimizer->n && !bad; i++) {
        struct amp_py_param *param = optimizer->params[i];
        if (!masters[i].is_master || param->master) {
            continue;
        }
        PyObject *owner = owner_of(context, masters[i].data);
        param->data = masters[i].data;
        param->master = owner ? PyObject_CallMethod(context->storage, "master", "OO", owner, param->tensor) : NULL;
        bad = param->master == NULL;
    }
    free(masters);
    return bad ? -1 : 0;
}

/* Tensors over the blocks of the masters' gradients, which exist from the first bracket on. */
static int make_gradients(amp_py_Context *context, struct amp_py_optimizer *optimizer)
{
    amp_master *masters = describe(context, optimizer);
    int bad = masters == NULL;
    for (size_t i = 0; i < optimizer->n && !bad; i++) {
        struct amp_py_param *param = optimizer->params[i];
        if (param->master == NULL || param->gradient || masters[i].grad == NULL) {
            continue;
        }
        PyObject *owner = owner_of(context, masters[i].grad);
        param->gradient = owner ? PyObject_CallMethod(context->storage, "gradient", "OO", owner, param->master) : NULL;
        bad = param->gradient == NULL;
    }
    free(masters);
    return bad ? -1 : 0;
}

int amp_py_show_gradients(amp_py_Context *context, struct amp_py_optimizer *optimizer)
{
    bool made = false;
    for (size_t i = 0; i < optimizer->n; i++) {
        const struct amp_py_param *param = optimizer->params[i];
        if (param->master == NULL) {
            continue;
        }
        PyObject *fresh = PyObject_GetAttr(param->tensor, amp_py_names.grad);
        if (fresh == NULL) {
            return -1;
        }
        Py_DECREF(fresh);
        if (fresh == Py_None) { /* backward made nothing */
            continue;
        }
        if (param->gradient == NULL && !made) {
            made = true;
            if (make_gradients(context, optimizer)) {
                return -1;
            }
        }
        if (param->gradient && PyObject_SetAttr(param->master, amp_py_names.grad, param->gradient)) {
            return -1;
        }
    }
    return 0;
}

/* No gradients at the masters; and none of backward's at their parameters. */
int amp_py_clear_masters(struct amp_py_optimizer *optimizer, bool params_too)
{
    for (size_t i = 0; i < optimizer->n; i++) {
        const struct amp_py_param *param = optimizer->params[i];
        if (param->master
            && (PyObject_SetAttr(param->master, amp_py_names.grad, Py_None)
                || (params_too && PyObject_SetAttr(param->tensor, amp_py_names.grad, Py_None)))) {
            return -1;
        }
    }
    return 0;
}
