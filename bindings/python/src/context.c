/* SPDX-License-Identifier: Apache-2.0 */
/* The type _core.Context: making it from torch's tensors, scopes, and its end. */
#include "context.h"
#include "served.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <structmember.h>

static PyTypeObject *context_type;

amp_context *amp_py_context(PyObject *object) {
    if (!PyObject_TypeCheck(object, context_type)) {
        PyErr_SetString(PyExc_TypeError, "not a libamp context");
        return NULL;
    }
    const amp_py_Context *context = amp_py_live(object);
    return context ? context->amp : NULL;
}

/* ---- making and ending ---- */

static amp_status initialize(amp_py_Context *context, const amp_config *config) {
    amp_model *models[] = { &context->model };
    amp_optimizer **optimizers = calloc(context->n_optimizers + 1, sizeof *optimizers);
    amp_status status = optimizers ? AMP_OK : AMP_ERR_NO_MEMORY;
    for (size_t i = 0; i < context->n_optimizers && status == AMP_OK; i++) {
        optimizers[i] = &context->optimizers[i]->amp;
        optimizers[i]->params = amp_py_handles_of(context->optimizers[i]);
        optimizers[i]->n_params = context->optimizers[i]->n;
        status = optimizers[i]->params ? AMP_OK : AMP_ERR_NO_MEMORY;
    }
    if (status == AMP_OK)
        status = amp_initialize_many(models, 1, optimizers, context->n_optimizers, config, &context->amp);
    for (size_t i = 0; i < context->n_optimizers; i++) {
        free((void *)(uintptr_t)context->optimizers[i]->amp.params);
        context->optimizers[i]->amp.params = NULL;
    }
    free(optimizers);
    return status;
}

static int make_context(amp_py_Context *context, const char *level, PyObject *params, PyObject *optimizers,
                        PyObject *skipping, PyObject *settings, PyObject *ops) {
    amp_config config;
    if (amp_py_torch() || amp_py_config(level, settings, &config)) return -1;
    context->torch_ops = amp_py_torch_ops();
    amp_py_host(context, &context->host);
    context->model = (amp_model)AMP_MODEL_INIT;
    context->model.flags = AMP_MODEL_LOW_PARAMS; /* Python checks which of them are accepted */
    context->model.host = &context->host;
    amp_param *given = amp_py_read_params(context, params, &context->model.n_params);
    amp_op *described = given ? amp_py_read_ops(ops, &context->model.n_ops) : NULL;
    amp_status status = AMP_ERR_HOST_FAILED;
    if (described && !amp_py_read_optimizers(context, optimizers, skipping)) {
        context->model.params = given;
        context->model.ops = described;
        status = initialize(context, &config);
        amp_py_drop_held(context);
        if (status != AMP_OK) amp_py_context_raise(context, status);
    }
    free(given);
    free(described);
    amp_config resolved = AMP_CONFIG_INIT;
    context->scales_by_one = amp_config_resolve(&config, &resolved) == AMP_OK && resolved.loss_scale == 1;
    int bad = status != AMP_OK;
    for (size_t i = 0; i < context->n_optimizers && !bad; i++)
        bad = amp_py_make_masters(context, context->optimizers[i], 0);
    return bad ? -1 : 0;
}

static PyObject *context_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = { "level", "params", "optimizers", "config", "event", "ops", "storage", "skipping",
                             NULL };
    const char *level;
    PyObject *params, *optimizers, *settings, *event = Py_None, *ops = NULL, *storage = Py_None,
             *skipping = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sOOO|OOOO!", names, &level, &params, &optimizers, &settings,
                                     &event, &ops, &storage, &PyList_Type, &skipping))
        return NULL;
    amp_py_Context *context = (amp_py_Context *)PyType_GenericAlloc(type, 0);
    PyObject *no_ops = ops ? Py_NewRef(ops) : PyList_New(0);
    if (!context || !no_ops) {
        Py_XDECREF((PyObject *)context);
        return NULL;
    }
    context->event = event == Py_None ? NULL : Py_NewRef(event);
    context->storage = Py_NewRef(storage);
    context->blocks = PyDict_New();
    if (!context->blocks || make_context(context, level, params, optimizers, skipping, settings, no_ops))
        Py_CLEAR(context);
    Py_DECREF(no_ops);
    return (PyObject *)context;
}

static amp_status shutdown_context(amp_py_Context *context) {
    amp_status status = AMP_OK;
    if (context->amp) {
        context->ending = context->alone = true; /* cancels open brackets: gradients are those of backward */
        status = amp_shutdown(context->amp);
        context->ending = context->alone = false;
        if (status != AMP_ERR_WRONG_STATE) context->amp = NULL;
        amp_py_drop_held(context);
    }
    return status;
}

static PyObject *context_shutdown(PyObject *self, PyObject *unused) {
    amp_py_Context *context = (amp_py_Context *)self;
    (void)unused;
    if (context->amp && (amp_py_settle_types(context) || amp_py_settle(context))) return NULL;
    const amp_status status = shutdown_context(context);
    return status == AMP_OK ? Py_NewRef(Py_None) : amp_py_context_raise(context, status);
}

/* ---- collection ---- */

/* The models are unreachable: nothing is restored to them. */
static void context_finalize(PyObject *self) {
    amp_py_Context *context = (amp_py_Context *)self;
    PyObject *error[3];
    PyErr_Fetch(&error[0], &error[1], &error[2]);
    context->dying = true;
    (void)shutdown_context(context);
    PyErr_Clear();
    PyErr_Restore(error[0], error[1], error[2]);
}

static int context_traverse(PyObject *self, visitproc visit, void *arg) {
    amp_py_Context *context = (amp_py_Context *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(context->event);
    Py_VISIT(context->reduce);
    Py_VISIT(context->storage);
    for (size_t i = 0; i < context->n_params; i++) {
        Py_VISIT(context->params[i]->tensor);
        Py_VISIT(context->params[i]->master);
        Py_VISIT(context->params[i]->gradient);
        Py_VISIT(context->params[i]->held);
    }
    return 0;
}

static int context_clear(PyObject *self) {
    amp_py_Context *context = (amp_py_Context *)self;
    if (context->amp) { /* finalize comes first. Running code keeps its tensors */
        return 0;
    }
    Py_CLEAR(context->event);
    Py_CLEAR(context->reduce);
    Py_CLEAR(context->storage);
    for (size_t i = 0; i < context->n_params; i++) {
        Py_CLEAR(context->params[i]->master);
        Py_CLEAR(context->params[i]->gradient);
        Py_CLEAR(context->params[i]->held);
    }
    for (size_t i = 0; i < 3; i++) Py_CLEAR(context->error[i]);
    return 0;
}

static void context_dealloc(PyObject *self) {
    amp_py_Context *context = (amp_py_Context *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    context_finalize(self);
    if (context->weakrefs) PyObject_ClearWeakRefs(self);
    (void)context_clear(self);
    for (size_t i = 0; i < context->n_params; i++) {
        Py_DECREF(context->params[i]->tensor);
        free(context->params[i]);
    }
    for (size_t i = 0; i < context->n_optimizers; i++) {
        free(context->optimizers[i]->params);
        free(context->optimizers[i]);
    }
    Py_CLEAR(context->blocks);
    free(context->params);
    free(context->optimizers);
    free(context->table);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

/* ---- the type ---- */

static PyObject *context_enter(PyObject *self, PyObject *unused) {
    (void)unused;
    return amp_py_enter(amp_py_live(self)) ? NULL : Py_NewRef(Py_None);
}

static PyObject *context_enter_forward(PyObject *self, PyObject *unused) {
    amp_py_Context *context = amp_py_live(self);
    (void)unused;
    if (!context) return NULL;
    return amp_py_enter(amp_py_is_disabled() ? NULL : context) ? NULL : Py_NewRef(Py_None);
}

static PyObject *context_leave(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
    return amp_py_leave() ? NULL : Py_NewRef(Py_None);
}

static PyObject *context_handle(PyObject *self, PyObject *unused) {
    const amp_py_Context *context = amp_py_live(self);
    (void)unused;
    return context ? PyLong_FromVoidPtr(context->amp) : NULL;
}

static PyObject *context_cache_clear(PyObject *self, PyObject *unused) {
    const amp_py_Context *context = amp_py_live(self);
    (void)unused;
    return context ? amp_py_result(amp_cache_clear(context->amp)) : NULL;
}

static PyObject *context_alive(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(((amp_py_Context *)self)->amp != NULL);
}

static PyMethodDef methods[] = {
    { "handle", context_handle, METH_NOARGS, "handle()\n--\n\nReturns the address of the amp_context." },
    { "enter", context_enter, METH_NOARGS, "enter()\n--\n\nEnters this context's scope on this thread." },
    { "enter_forward", context_enter_forward, METH_NOARGS,
      "enter_forward()\n--\n\nenter() for a model's forward. In a scope without a policy it enters another such." },
    { "leave", context_leave, METH_NOARGS, "leave()\n--\n\nLeaves the innermost scope of this thread." },
    { "begin", amp_py_Context_begin, METH_VARARGS, "begin(optimizers, loss_id, delay_unscale, delay_overflow_check)" },
    { "set_ranks", amp_py_Context_set_ranks, METH_VARARGS,
      "set_ranks(reduce, tells_of_cancels): reduce(reduction, values) is called at each end, None: this rank decides "
      "alone." },
    { "step_begin", amp_py_Context_step_begin, METH_VARARGS,
      "step_begin(optimizer, settled=False): returns False to step, True to skip, or a tensor on the device (0: step). "
      "settled: follow() was just called." },
    { "step_end", amp_py_Context_step_end, METH_O, "step_end(optimizer): copies the masters to the parameters." },
    { "zero_grad", amp_py_Context_zero_grad, METH_O,
      "zero_grad(optimizer): removes gradients of masters and their parameters." },
    { "masters", amp_py_Context_masters, METH_O, "masters(optimizer): a list of (parameter, master or None)." },
    { "add_params", amp_py_Context_add_params, METH_VARARGS, "add_params(optimizer, [(tensor, name, is_batch_norm)])" },
    { "scale", amp_py_Context_scale, METH_O, "scale(loss_id): the present loss scale." },
    { "record", amp_py_Context_record, METH_O, "record(loss_id): the last bracket, as a dict." },
    { "check", amp_py_Context_check, METH_NOARGS, "check(): raises after too many skips by a device." },
    { "unscale", amp_py_Context_unscale, METH_VARARGS,
      "unscale(loss_id, tensors): in place, True if one was not finite." },
    { "follow", amp_py_Context_follow, METH_NOARGS,
      "follow(): copies writes to masters since the last step to their parameters. Returns None, or a list of "
      "parameters that were written too: the masters took their values." },
    { "agree", amp_py_Context_agree, METH_O, "agree(parameter): marks a parameter as its rounded master." },
    { "settle", amp_py_Context_settle, METH_NOARGS,
      "settle(): copies writes to parameters to their masters, however written." },
    { "reconcile", amp_py_Context_reconcile, METH_NOARGS, "reconcile(): masters follow parameters that were changed." },
    { "save", amp_py_Context_save, METH_VARARGS, "save(path or None, format): bytes where path is None." },
    { "load", amp_py_Context_load, METH_O, "load(path or bytes)" },
    { "op_target", amp_py_Context_op_target, METH_VARARGS, "op_target(name, dtypes): a torch.dtype or None." },
    { "explain", amp_py_Context_explain, METH_VARARGS, "explain(op=None): text for people." },
    { "health", amp_py_Context_health, METH_NOARGS,
      "health(): a report; its last line is \"sound\", or \"N findings\"." },
    { "findings", amp_py_Context_findings, METH_NOARGS, "findings(): a list of (code, subject, message, times)." },
    { "op_stats", amp_py_Context_op_stats, METH_NOARGS, "op_stats(): a list of dicts." },
    { "observe", amp_py_Context_observe, METH_VARARGS,
      "observe(what, every, first, after_skip, names, max_bytes, sample=1)" },
    { "observe_stop", amp_py_Context_observe_stop, METH_NOARGS, "observe_stop(): stops and deletes the records." },
    { "observing", amp_py_Context_observing, METH_NOARGS, "observing(): True if this iteration is observed." },
    { "observe_call", amp_py_Context_observe_call, METH_VARARGS,
      "observe_call(op, where, in_backward, [(name, tensor, is_output)], is_cast=False, line=None)" },
    { "observe_loss", amp_py_Context_observe_loss, METH_VARARGS, "observe_loss(loss_id, loss): for the trace." },
    { "observe_remark", amp_py_Context_observe_remark, METH_VARARGS, "observe_remark(about, text): for the trace." },
    { "observations", amp_py_Context_observations, METH_NOARGS, "observations(): a list of tuples." },
    { "culprit", amp_py_Context_culprit, METH_NOARGS, "culprit(): a tuple, or None." },
    { "observe_moments", amp_py_Context_observe_moments, METH_VARARGS,
      "observe_moments(moments, moments_8bit): bytes that memory adds." },
    { "memory", amp_py_Context_memory, METH_VARARGS, "memory(level=None): a tuple; now, or as predicted." },
    { "survey", amp_py_Context_survey, METH_NOARGS, "survey(): a tuple." },
    { "cache_clear", context_cache_clear, METH_NOARGS, "cache_clear()\n--\n\nDeletes all cached casts." },
    { "shutdown", context_shutdown, METH_NOARGS, "shutdown()\n--\n\nRestores the parameters and ends the context." },
    { NULL, NULL, 0, NULL },
};

int amp_py_add_context(PyObject *module) {
    static PyGetSetDef getters[] = {
        { "alive", context_alive, NULL, "False after shutdown.", NULL },
        { NULL, NULL, NULL, NULL, NULL },
    };
    static PyMemberDef members[] = {
        { "__weaklistoffset__", T_PYSSIZET, offsetof(amp_py_Context, weakrefs), READONLY, NULL },
        { NULL, 0, 0, 0, NULL },
    };
    static PyType_Slot slots[] = {
        { Py_tp_doc, "An amp_context over torch tensors: models' parameters, optimizers and a level." },
        { Py_tp_new, AMP_PY_SLOT(context_new) },
        { Py_tp_dealloc, AMP_PY_SLOT(context_dealloc) },
        { Py_tp_traverse, AMP_PY_SLOT(context_traverse) },
        { Py_tp_clear, AMP_PY_SLOT(context_clear) },
        { Py_tp_finalize, AMP_PY_SLOT(context_finalize) },
        { Py_tp_methods, methods },
        { Py_tp_getset, getters },            { Py_tp_members, members },         { 0, NULL },
    };
    static PyType_Spec spec = { "libamp._core.Context", sizeof(amp_py_Context), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots };
    context_type = (PyTypeObject *)PyType_FromSpec(&spec);
    if (!context_type || amp_py_add_bracket(module) || amp_py_add_scopes(module) ||
        amp_py_add_config(module))
        return -1;
    return PyModule_AddObjectRef(module, "Context", (PyObject *)context_type);
}
