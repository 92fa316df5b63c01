/* SPDX-License-Identifier: Apache-2.0 */
/* The masters as tensors: each block of the library gets a torch.nn.Parameter and its gradient, and scripts' changes to
 * them are followed. */
#include "context.h"
#include "view.h"

#include <stdlib.h>
#include <string.h>

/* Returns the library's view of the optimizer's parameters. free() it. */
static amp_status read_masters(struct amp_py_optimizer *optimizer, amp_master **masters) {
    size_t n = 0;
    *masters = calloc(optimizer->n + 1, sizeof **masters);
    if (*masters == NULL) return AMP_ERR_NO_MEMORY;
    (*masters)->struct_size = sizeof **masters;
    return amp_master_params(&optimizer->amp, *masters, optimizer->n, &n);
}

static amp_master *masters_or_raise(amp_py_Context *context, struct amp_py_optimizer *optimizer) {
    amp_master *masters;
    const amp_status status = read_masters(optimizer, &masters);
    if (status != AMP_OK) {
        free(masters);
        amp_py_context_raise(context, status);
        return NULL;
    }
    return masters;
}

/* Returns the tensor that owns a block, borrowed. */
static PyObject *owner_of(amp_py_Context *context, const void *data) {
    PyObject *key = PyLong_FromVoidPtr((void *)(uintptr_t)data);
    PyObject *owner = key ? PyDict_GetItemWithError(context->blocks, key) : NULL;
    Py_XDECREF(key);
    if (!owner && !PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "libamp names a block that no tensor owns");
    return owner;
}

int amp_py_make_masters(amp_py_Context *context, struct amp_py_optimizer *optimizer, size_t from) {
    amp_master *masters = masters_or_raise(context, optimizer);
    int bad = masters == NULL;
    for (size_t i = from; i < optimizer->n && !bad; i++) {
        struct amp_py_param *param = optimizer->params[i];
        optimizer->has_masters |= masters[i].is_master != 0;
        if (!masters[i].is_master || param->master) continue;
        PyObject *owner = owner_of(context, masters[i].data);
        param->data = masters[i].data;
        param->master = owner ? PyObject_CallMethod(context->storage, "master", "OO", owner, param->tensor) : NULL;
        bad = param->master == NULL;
        param->seen = bad ? 0 : amp_py_version(param->master);
        param->address = amp_py_address(param->tensor);
        param->frozen = !amp_py_requires_grad(param->tensor);
    }
    free(masters);
    return bad ? -1 : 0;
}

/* Makes tensors over the blocks of the masters' gradients, which exist from the first bracket on. */
static int make_gradients(amp_py_Context *context, struct amp_py_optimizer *optimizer) {
    amp_master *masters = masters_or_raise(context, optimizer);
    int bad = masters == NULL;
    for (size_t i = 0; i < optimizer->n && !bad; i++) {
        struct amp_py_param *param = optimizer->params[i];
        if (!param->master || param->gradient || !masters[i].grad) continue;
        PyObject *owner = owner_of(context, masters[i].grad);
        param->gradient = owner ? PyObject_CallMethod(context->storage, "gradient", "OO", owner, param->master) : NULL;
        bad = param->gradient == NULL;
    }
    free(masters);
    return bad ? -1 : 0;
}

int amp_py_show_gradients(amp_py_Context *context, struct amp_py_optimizer *optimizer) {
    bool made = false;
    for (size_t i = 0; i < optimizer->n && optimizer->has_masters; i++) {
        const struct amp_py_param *param = optimizer->params[i];
        if (!param->master) continue;
        PyObject *fresh = param->held ? Py_NewRef(param->held) : amp_py_grad(param->tensor);
        if (!fresh) return -1;
        Py_DECREF(fresh);
        if (fresh == Py_None) { /* backward made none */
            continue;
        }
        if (!param->gradient && !made) {
            made = true;
            if (make_gradients(context, optimizer)) return -1;
        }
        if (param->gradient && amp_py_set_grad(param->master, param->gradient)) return -1;
    }
    return 0;
}

/* Removes the gradients of the masters, and those of backward at their parameters. */
int amp_py_clear_masters(struct amp_py_optimizer *optimizer, bool params_too) {
    for (size_t i = 0; i < optimizer->n && optimizer->has_masters; i++) {
        const struct amp_py_param *param = optimizer->params[i];
        if (param->master &&
            (amp_py_set_grad(param->master, Py_None) ||
                (params_too && amp_py_set_grad(param->tensor, Py_None))))
            return -1;
    }
    return 0;
}

/* ---- masters that scripts write to ---- */

static int call_storage(const amp_py_Context *context, const char *name, PyObject *first, PyObject *second,
                        PyObject *third) {
    PyObject *done = PyObject_CallMethod(context->storage, name, "OOO", first, second, third);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

static int bring_home(amp_py_Context *context, const struct amp_py_param *param) {
    PyObject *block = owner_of(context, param->data);
    return block ? call_storage(context, "bring_home", block, param->master, param->tensor) : -1;
}

/* Gives the master and the gradients the layout of the parameter. In a bracket, and while gradients are scaled, libamp
 * may have set some aside in the old layout. Then the parameter is changed back. */
static int follow_order(amp_py_Context *context, struct amp_py_param *param, const struct amp_py_order *now) {
    if (param->scaled || context->brackets) {
        PyObject *dtype = amp_py_torch_dtype(amp_py_dtype(param->tensor));
        return dtype ? call_storage(context, "lay_out", param->tensor, param->master, dtype) : -1;
    }
    if (bring_home(context, param)) return -1;
    param->order = *now;
    PyObject *block = param->gradient ? owner_of(context, amp_py_address(param->gradient)) : Py_None;
    PyObject *old = param->gradient ? param->gradient : Py_None;
    PyObject *moved = block ? PyObject_CallMethod(context->storage, "move_gradients", "OOOO", block, old, param->master,
                                                  param->tensor)
                            : NULL;
    if (!moved) return -1;
    Py_XDECREF(param->gradient);
    param->gradient = moved == Py_None ? NULL : Py_NewRef(moved);
    Py_DECREF(moved);
    return 0;
}

/* A changed number of dimensions (sharded parameters) is refused by functions that need the elements. */
static bool was_laid_out(const struct amp_py_order *before, const struct amp_py_order *now) {
    return before->ndim == now->ndim && memcmp(before->of, now->of, sizeof now->of) != 0;
}

static int settle_order(amp_py_Context *context, struct amp_py_param *param) {
    struct amp_py_order now;
    if (amp_py_read_order(param->tensor, &now)) return -1;
    if (was_laid_out(&param->order, &now)) {
        if (!param->master) param->order = now;
        else if (follow_order(context, param, &now)) return -1;
    }
    context->permutes |= param->order.permuted;
    param->moves += param->address != NULL;
    param->address = amp_py_address(param->tensor);
    return 0;
}

int amp_py_settle_masters(amp_py_Context *context, const struct amp_py_optimizer *optimizer) {
    for (size_t i = 0; i < optimizer->n && optimizer->has_masters; i++) {
        const struct amp_py_param *param = optimizer->params[i];
        if (param->master && amp_py_address(param->master) != param->data && bring_home(context, param)) return -1;
    }
    return 0;
}

int amp_py_settle(amp_py_Context *context) {
    for (size_t i = 0; i < context->n_params; i++) {
        struct amp_py_param *param = context->params[i];
        if (amp_py_address(param->tensor) != param->address && settle_order(context, param)) return -1;
        param->frozen = param->master && !amp_py_requires_grad(param->tensor);
    }
    for (size_t i = 0; i < context->n_optimizers; i++) {
        if (amp_py_settle_masters(context, context->optimizers[i])) return -1;
    }
    return 0;
}

int amp_py_settle_types(const amp_py_Context *context) {
    for (size_t i = 0; i < context->n_params; i++) {
        const struct amp_py_param *param = context->params[i];
        if (param->dtype == AMP_DTYPE_DEFAULT || amp_py_dtype(param->tensor) == param->dtype) continue;
        PyObject *dtype = amp_py_torch_dtype(param->dtype);
        if (!dtype ||
            call_storage(context, "lay_out", param->tensor, param->master ? param->master : param->tensor, dtype))
            return -1;
    }
    return 0;
}

void amp_py_masters_seen(struct amp_py_param *const *params, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (params[i]->master) params[i]->seen = amp_py_version(params[i]->master);
    }
}

static bool was_written(const struct amp_py_param *param) {
    return param->master && amp_py_version(param->master) != param->seen;
}

/* Returns a checksum of a master on the CPU, 0 elsewhere. */
static uint64_t sum_of_master(const struct amp_py_param *param) {
    amp_tensor_view view = { 0 };
    uint64_t sum = 1, size = 1;
    if (amp_py_look(param->master, &view) || view.device.type != AMP_PY_CPU) {
        PyErr_Clear();
        return 0;
    }
    for (int32_t i = 0; i < view.ndim; i++) size *= (uint64_t)view.shape[i];
    for (uint64_t i = 0; i < size; i++) {
        uint32_t bits;
        memcpy(&bits, (const char *)param->data + i * sizeof bits, sizeof bits);
        sum = (sum ^ bits) * UINT64_C(0x9e3779b97f4a7c15);
        sum ^= sum >> 29;
    }
    return sum | 1;
}

/* Copies writes to masters to the parameters. `both` receives parameters that were written too, and win. */
static int write_back(amp_py_Context *context, PyObject *both) {
    uint64_t *sums = calloc(context->n_params + 1, sizeof *sums);
    if (!sums) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < context->n_params; i++)
        sums[i] = was_written(context->params[i]) ? sum_of_master(context->params[i]) : 0;
    const amp_status status = amp_masters_write_back(context->amp);
    int bad = status != AMP_OK;
    if (bad) amp_py_context_raise(context, status);
    for (size_t i = 0; i < context->n_params && !bad; i++) {
        if (sums[i] && sums[i] != sum_of_master(context->params[i]))
            bad = PyList_Append(both, context->params[i]->tensor);
    }
    if (!bad) amp_py_masters_seen(context->params, context->n_params);
    free(sums);
    return bad ? -1 : 0;
}

PyObject *amp_py_Context_follow(PyObject *self, PyObject *unused) {
    amp_py_Context *context = amp_py_live(self);
    (void)unused;
    if (!context || amp_py_settle(context)) return NULL;
    bool written = false;
    for (size_t i = 0; i < context->n_params && !written; i++) written = was_written(context->params[i]);
    if (!written) Py_RETURN_NONE;
    PyObject *both = PyList_New(0);
    if (both && write_back(context, both)) Py_CLEAR(both);
    return both;
}

PyObject *amp_py_Context_agree(PyObject *self, PyObject *tensor) {
    amp_py_Context *context = amp_py_live(self);
    struct amp_py_param *param = context ? amp_py_find(context, tensor) : NULL;
    if (param) amp_py_masters_seen(&param, 1);
    return context ? Py_NewRef(Py_None) : NULL;
}

/* Inside a bracket or a step libamp reports no masters. */
PyObject *amp_py_Context_settle(PyObject *self, PyObject *unused) {
    amp_py_Context *context = amp_py_live(self);
    amp_status status = AMP_OK;
    (void)unused;
    if (!context || amp_py_settle(context)) return NULL;
    for (size_t i = 0; i < context->n_optimizers && status == AMP_OK; i++) {
        amp_master *masters = NULL;
        status = context->optimizers[i]->has_masters ? read_masters(context->optimizers[i], &masters) : AMP_OK;
        free(masters);
    }
    if (status == AMP_ERR_WRONG_STATE) status = amp_masters_write_back(context->amp);
    return status == AMP_OK ? Py_NewRef(Py_None) : amp_py_context_raise(context, status);
}
