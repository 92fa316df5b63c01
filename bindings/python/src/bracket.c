/* SPDX-License-Identifier: Apache-2.0 */
/* The bracket around backward, and the step. */
#include "context.h"

#include <stdlib.h>
#include <string.h>

PyTypeObject *amp_py_bracket_type;

typedef struct {
    PyObject_HEAD
    amp_py_Context *context; /* NULL after close */
    struct amp_py_optimizer **optimizers;
    size_t n;
    struct amp_py_param **bare; /* parameters without a gradient when the bracket began */
    size_t n_bare;
    struct view {
        struct amp_py_param *param;
        PyObject *grad;
    } *views; /* gradients that are parts of a larger buffer, while the bracket is open */
    size_t n_views;
    uint32_t flags;
    amp_scaled_loss scaled;
} Bracket;

static PyObject *bracket_scale(PyObject *self, void *unused) {
    const Bracket *bracket = (Bracket *)self;
    (void)unused;
    if (!bracket->context) {
        PyErr_SetString(PyExc_RuntimeError, "the bracket is closed");
        return NULL;
    }
    const float factor = amp_seed_factor(&bracket->scaled);
    if (factor != factor) { /* only the device knows the scale */
        return amp_py_number(bracket->context, bracket->scaled.scale, bracket->scaled.device);
    }
    return PyFloat_FromDouble((double)factor);
}

/* ---- ranks ---- */

PyObject *amp_py_Context_set_ranks(PyObject *self, PyObject *args) {
    amp_py_Context *context = (amp_py_Context *)self;
    PyObject *reduce;
    int tells_of_cancels = 0;
    if (!PyArg_ParseTuple(args, "Op:set_ranks", &reduce, &tells_of_cancels)) return NULL;
    PyObject *before = context->reduce;
    context->reduce = reduce == Py_None ? NULL : Py_NewRef(reduce);
    context->tells_of_cancels = tells_of_cancels;
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

/* ---- begin ---- */

/* As Apex: existing gradients of 16-bit parameters are dropped, because the masters' gradients contain them. */
static int drop_stale(const struct amp_py_optimizer *optimizer) {
    for (size_t i = 0; i < optimizer->n && optimizer->has_masters && !optimizer->delayed; i++) {
        const struct amp_py_param *param = optimizer->params[i];
        if (!param->master) continue;
        PyObject *stale = amp_py_grad(param->tensor);
        if (!stale) return -1;
        Py_DECREF(stale);
        if (stale != Py_None && amp_py_set_grad(param->tensor, Py_None)) return -1;
    }
    return 0;
}

static int list_optimizers(Bracket *bracket, amp_py_Context *context, PyObject *indices) {
    const Py_ssize_t n = PySequence_Size(indices);
    bracket->optimizers = n >= 0 ? calloc((size_t)n + 1, sizeof *bracket->optimizers) : NULL;
    if (!bracket->optimizers) {
        if (n >= 0) PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *index = PySequence_GetItem(indices, i);
        bracket->optimizers[i] = index ? amp_py_optimizer_at(context, index) : NULL;
        Py_XDECREF(index);
        if (!bracket->optimizers[i]) return -1;
    }
    bracket->n = (size_t)n;
    return 0;
}

enum { NOTED = 4 }; /* brackets */

/* At a static scale of 1 without masters the library sets no gradients aside and restores none: existing ones keep the
 * sum with backward's, as without amp. New ones can be removed at no cost. After the first brackets the parameters are
 * not searched for this: zero_grad reports whether there are gradients. */
static int note_bare(Bracket *bracket, amp_py_Context *context) {
    size_t n = 0;
    for (size_t i = 0; i < bracket->n; i++) {
        struct amp_py_optimizer *optimizer = bracket->optimizers[i];
        optimizer->emptied = optimizer->cleared && !optimizer->has_masters;
        optimizer->cleared = false;
    }
    if (context->noted >= NOTED) return 0;
    context->noted++;
    for (size_t i = 0; i < bracket->n; i++) n += bracket->optimizers[i]->has_masters ? 0 : bracket->optimizers[i]->n;
    bracket->bare = malloc((n + 1) * sizeof(struct amp_py_param *));
    if (!bracket->bare) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < bracket->n; i++) {
        struct amp_py_optimizer *optimizer = bracket->optimizers[i];
        for (size_t j = 0; j < optimizer->n && !optimizer->has_masters; j++) {
            PyObject *grad = amp_py_grad(optimizer->params[j]->tensor);
            if (!grad) return -1;
            Py_DECREF(grad);
            if (grad == Py_None) bracket->bare[bracket->n_bare++] = optimizer->params[j];
            optimizer->keeps |= grad != Py_None && optimizer->emptied;
        }
        optimizer->emptied = false; /* what was looked at is known better */
    }
    return 0;
}

static int strip_bare(const Bracket *bracket) {
    for (size_t i = 0; i < bracket->n_bare; i++) {
        if (amp_py_set_grad(bracket->bare[i]->tensor, Py_None)) return -1;
    }
    for (size_t i = 0; i < bracket->n; i++) {
        const struct amp_py_optimizer *optimizer = bracket->optimizers[i];
        for (size_t j = 0; j < optimizer->n && optimizer->emptied && !optimizer->keeps; j++) {
            if (amp_py_set_grad(optimizer->params[j]->tensor, Py_None)) return -1;
        }
    }
    return 0;
}

static int set_view_apart(Bracket *bracket, const amp_py_Context *context, struct amp_py_param *param, PyObject *grad) {
    struct view *grown = realloc(bracket->views, (bracket->n_views + 1) * sizeof *grown);
    if (!grown) {
        PyErr_NoMemory();
        return -1;
    }
    bracket->views = grown;
    PyObject *values = PyObject_CallMethod(context->storage, "values_of", "O", grad);
    if (!values || amp_py_set_grad(param->tensor, values)) {
        Py_XDECREF(values);
        return -1;
    }
    Py_DECREF(values);
    bracket->views[bracket->n_views++] = (struct view){ param, Py_NewRef(grad) };
    return 0;
}

/* A gradient that libamp sets aside must not change, but a view of a flat buffer, or of a DDP bucket, is written by
 * others. Its values are copied. */
static int set_views_apart(Bracket *bracket, const amp_py_Context *context) {
    for (size_t i = 0; i < bracket->n; i++) {
        for (size_t j = 0; j < bracket->optimizers[i]->n; j++) {
            struct amp_py_param *param = bracket->optimizers[i]->params[j];
            if (param->master || param->scaled) continue;
            PyObject *grad = amp_py_grad(param->tensor);
            PyObject *base = grad == NULL || grad == Py_None ? Py_XNewRef(grad)
                : PyObject_GetAttr(grad, amp_py_names.base);
            const int bad = base == NULL || (base != Py_None && set_view_apart(bracket, context, param, grad));
            Py_XDECREF(base);
            Py_XDECREF(grad);
            if (bad) return -1;
        }
    }
    return 0;
}

/* Copies the present gradients to the views. After a failure the others remain as they are. */
static int join_views(Bracket *bracket, const amp_py_Context *context) {
    int bad = 0;
    while (bracket->n_views) {
        const struct view view = bracket->views[--bracket->n_views];
        PyObject *none = bad ? NULL : PyObject_CallMethod(context->storage, "join", "OO", view.param->tensor,
                                                          view.grad);
        bad |= none == NULL;
        Py_XDECREF(none);
        Py_DECREF(view.grad);
    }
    return bad ? -1 : 0;
}

/* The same after an error, which remains the exception. */
static void rejoin_views(Bracket *bracket, const amp_py_Context *context) {
    PyObject *error[3];
    PyErr_Fetch(&error[0], &error[1], &error[2]);
    if (join_views(bracket, context)) PyErr_Clear();
    PyErr_Restore(error[0], error[1], error[2]);
}

static amp_status open_bracket(Bracket *bracket, amp_py_Context *context, uint32_t loss_id) {
    amp_optimizer **optimizers = calloc(bracket->n + 1, sizeof *optimizers);
    if (!optimizers) return AMP_ERR_NO_MEMORY;
    for (size_t i = 0; i < bracket->n; i++) optimizers[i] = &bracket->optimizers[i]->amp;
    const amp_status status =
        amp_scale_loss_begin_many(context->amp, optimizers, bracket->n, loss_id, bracket->flags, NULL,
                                  &bracket->scaled);
    /* the script multiplies its loss by a scale that it read before, or by the scaled loss */
    (void)amp_seed_factor(&bracket->scaled);
    amp_py_drop_held(context);
    free(optimizers);
    return status;
}

PyObject *amp_py_Context_begin(PyObject *self, PyObject *args) {
    amp_py_Context *context = amp_py_live(self);
    PyObject *indices;
    unsigned loss_id = 0;
    int delay_unscale = 0, delay_overflow_check = 0;
    if (!context ||
        !PyArg_ParseTuple(args, "O|Ipp:begin", &indices, &loss_id, &delay_unscale, &delay_overflow_check))
        return NULL;
    Bracket *bracket = (Bracket *)PyType_GenericAlloc(amp_py_bracket_type, 0);
    if (!bracket) return NULL;
    bracket->scaled = (amp_scaled_loss)AMP_SCALED_LOSS_INIT;
    bracket->flags = (delay_unscale ? AMP_DELAY_UNSCALE : 0u) | (delay_overflow_check ? AMP_DELAY_OVERFLOW_CHECK : 0u);
    if (list_optimizers(bracket, context, indices)) {
        Py_DECREF(bracket);
        return NULL;
    }
    for (size_t i = 0; i < bracket->n; i++) {
        if (drop_stale(bracket->optimizers[i])) {
            Py_DECREF(bracket);
            return NULL;
        }
    }
    if (context->scales_by_one ? note_bare(bracket, context) : set_views_apart(bracket, context)) {
        rejoin_views(bracket, context);
        Py_DECREF(bracket);
        return NULL;
    }
    const amp_status status = open_bracket(bracket, context, loss_id);
    if (status != AMP_OK) {
        rejoin_views(bracket, context);
        Py_DECREF(bracket);
        return amp_py_context_raise(context, status);
    }
    bracket->context = (amp_py_Context *)Py_NewRef(self);
    context->brackets++;
    return (PyObject *)bracket;
}

/* ---- end ---- */

static amp_py_Context *open_context(Bracket *bracket) {
    if (!bracket->context || !bracket->context->amp) {
        PyErr_SetString(PyExc_RuntimeError, bracket->context ? "the context was shut down inside the bracket"
                                                             : "the bracket is closed");
        return NULL;
    }
    return bracket->context;
}

static void set_delayed(const amp_py_Context *context, struct amp_py_optimizer *optimizer, bool delayed) {
    const bool changes = optimizer->delayed != delayed || context->n_optimizers > 1;
    optimizer->delayed = delayed;
    for (size_t i = 0; i < optimizer->n && changes; i++) optimizer->params[i]->scaled = delayed;
}

/* A cancel undoes only its own bracket, unless other ranks wanted to step. Then delayed gradients are lost too. */
static bool still_delayed(struct amp_py_optimizer *optimizer) {
    size_t n;
    return optimizer->delayed && amp_master_params(&optimizer->amp, NULL, 0, &n) != AMP_OK;
}

static PyObject *close_bracket(Bracket *bracket, bool cancel) {
    amp_py_Context *context = open_context(bracket);
    if (!context) return NULL;
    context->ending = true;
    context->alone = cancel && !context->tells_of_cancels;
    const amp_status status = cancel ? amp_scale_loss_cancel(&bracket->scaled) : amp_scale_loss_end(&bracket->scaled);
    context->ending = context->alone = false;
    const bool delays = !cancel && status == AMP_OK && (bracket->flags & AMP_DELAY_UNSCALE);
    const bool unscaled = !cancel && !delays && (status == AMP_OK || status == AMP_ERR_TOO_MANY_SKIPS);
    int bad = delays || unscaled ? 0 : strip_bare(bracket);
    bad |= join_views(bracket, context);
    for (size_t i = 0; i < bracket->n; i++) {
        if (!cancel) set_delayed(context, bracket->optimizers[i], delays);
        bad |= unscaled && !bad ? amp_py_show_gradients(context, bracket->optimizers[i]) : 0;
        bracket->optimizers[i]->emptied = false;
    }
    amp_py_drop_held(context);
    bracket->context = NULL;
    context->brackets--;
    PyObject *result = NULL;
    if (!bad && status == AMP_OK) result = PyLong_FromLong(bracket->scaled.action);
    else if (!bad) amp_py_context_raise(context, status);
    for (size_t i = 0; i < bracket->n && cancel; i++) { /* last, because amp_last_error describes the last call */
        set_delayed(context, bracket->optimizers[i], still_delayed(bracket->optimizers[i]));
    }
    Py_DECREF(context);
    return result;
}

static PyObject *bracket_end(PyObject *self, PyObject *unused) {
    (void)unused;
    return close_bracket((Bracket *)self, false);
}

static PyObject *bracket_cancel(PyObject *self, PyObject *unused) {
    (void)unused;
    return close_bracket((Bracket *)self, true);
}

static void bracket_dealloc(PyObject *self) {
    Bracket *bracket = (Bracket *)self;
    PyTypeObject *type = Py_TYPE(self);
    if (bracket->context && bracket->context->amp) {
        PyObject *error[3];
        PyErr_Fetch(&error[0], &error[1], &error[2]);
        Py_XDECREF(close_bracket(bracket, true));
        PyErr_Clear();
        PyErr_Restore(error[0], error[1], error[2]);
    }
    Py_XDECREF((PyObject *)bracket->context);
    free(bracket->optimizers);
    free(bracket->bare);
    while (bracket->n_views) { /* the context was shut down inside the bracket */
        Py_DECREF(bracket->views[--bracket->n_views].grad);
    }
    free(bracket->views);
    PyObject_Free(self);
    Py_DECREF(type);
}

int amp_py_add_bracket(PyObject *module) {
    static PyMethodDef methods[] = {
        { "end", bracket_end, METH_NOARGS,
          "end()\n--\n\nUnscales, checks, decides: 0 step, 1 skip, 2 a device decides." },
        { "cancel", bracket_cancel, METH_NOARGS, "cancel()\n--\n\nRestores the gradients from before backward." },
        { NULL, NULL, 0, NULL },
    };
    static PyGetSetDef getters[] = {
        { "scale", bracket_scale, NULL, "The factor of the loss: a number, or a tensor on a device.", NULL },
        { NULL, NULL, NULL, NULL, NULL },
    };
    static PyType_Slot slots[] = {
        { Py_tp_doc, "An open bracket around backward." }, { Py_tp_dealloc, AMP_PY_SLOT(bracket_dealloc) },
        { Py_tp_methods, methods },                       { Py_tp_getset, getters },
        { 0, NULL },
    };
    static PyType_Spec spec = { "libamp._core.Bracket", sizeof(Bracket), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots };
    amp_py_bracket_type = (PyTypeObject *)PyType_FromSpec(&spec);
    return amp_py_bracket_type ? PyModule_AddObjectRef(module, "Bracket", (PyObject *)amp_py_bracket_type) : -1;
}

/* ---- the step ---- */

PyObject *amp_py_Context_step_begin(PyObject *self, PyObject *args) {
    amp_py_Context *context = amp_py_live(self);
    PyObject *index;
    int settled = 0;
    if (!context || !PyArg_ParseTuple(args, "O|p:step_begin", &index, &settled)) return NULL;
    struct amp_py_optimizer *optimizer = amp_py_optimizer_at(context, index);
    amp_step_info info = AMP_STEP_INFO_INIT;
    if (!optimizer) return NULL;
    if (optimizer->has_masters && !settled && amp_py_settle(context)) return NULL;
    const amp_status status = amp_step_begin(&optimizer->amp, &info);
    amp_py_drop_held(context);
    optimizer->steps = status == AMP_OK && info.action != AMP_SKIP;
    if (status != AMP_OK) return amp_py_context_raise(context, status);
    if (info.action != AMP_STEP_ON_DEVICE) return PyBool_FromLong(info.action == AMP_SKIP);
    PyObject *found_inf = amp_py_number(context, info.found_inf, info.device);
    if (!found_inf && amp_step_end(&optimizer->amp) != AMP_OK) {
        optimizer->steps = false; /* the first failure is raised */
    }
    return found_inf;
}

PyObject *amp_py_Context_step_end(PyObject *self, PyObject *index) {
    amp_py_Context *context = amp_py_live(self);
    struct amp_py_optimizer *optimizer = context ? amp_py_optimizer_at(context, index) : NULL;
    if (!optimizer) return NULL;
    const int bad = optimizer->has_masters && amp_py_settle_masters(context, optimizer);
    if (bad) {
        amp_py_keep_error(context); /* the step ends first */
    }
    const amp_status status = amp_step_end(&optimizer->amp);
    amp_py_drop_held(context);
    if (status != AMP_OK || bad) return amp_py_context_raise(context, status);
    if (optimizer->steps && optimizer->has_masters) amp_py_masters_seen(optimizer->params, optimizer->n);
    return amp_py_clear_masters(optimizer, false) ? NULL : Py_NewRef(Py_None);
}

PyObject *amp_py_Context_zero_grad(PyObject *self, PyObject *index) {
    amp_py_Context *context = amp_py_live(self);
    struct amp_py_optimizer *optimizer = context ? amp_py_optimizer_at(context, index) : NULL;
    if (!optimizer || amp_py_clear_masters(optimizer, true)) return NULL;
    optimizer->cleared = true;
    Py_RETURN_NONE;
}

PyObject *amp_py_Context_masters(PyObject *self, PyObject *index) {
    amp_py_Context *context = amp_py_live(self);
    struct amp_py_optimizer *optimizer = context ? amp_py_optimizer_at(context, index) : NULL;
    PyObject *list = optimizer ? PyList_New(0) : NULL;
    for (size_t i = 0; list && i < optimizer->n; i++) {
        const struct amp_py_param *param = optimizer->params[i];
        PyObject *pair = PyTuple_Pack(2, param->tensor, param->master ? param->master : Py_None);
        if (!pair || PyList_Append(list, pair)) Py_CLEAR(list);
        Py_XDECREF(pair);
    }
    return list;
}
