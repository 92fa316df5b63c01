/* SPDX-License-Identifier: Apache-2.0 */
/* Whose policy holds on this thread: a stack of scopes for each. */
#include "context.h"

#include <stdlib.h>

static _Thread_local struct {
    struct scope {
        amp_scope scope;
        amp_py_Context *context; /* NULL: nobody's */
    } *entered;
    size_t n, capacity;
} stack;

/* Entered on this thread already? */
static bool is_entered(const amp_py_Context *context) {
    for (size_t i = 0; i < stack.n; i++) {
        if (stack.entered[i].context == context) return true;
    }
    return false;
}

int amp_py_enter(amp_py_Context *context) {
    if (PyErr_Occurred()) return -1;
    if (stack.n == stack.capacity) {
        const size_t capacity = 2 * stack.capacity + 8;
        struct scope *grown = realloc(stack.entered, capacity * sizeof *grown);
        if (!grown) {
            PyErr_NoMemory();
            return -1;
        }
        stack.entered = grown;
        stack.capacity = capacity;
    }
    struct scope *scope = &stack.entered[stack.n];
    amp_status status = AMP_OK;
    if (context && context->inside > 0 && !is_entered(context)) {
        /* casts of another thread's forward: it may have begun before an edit */
        status = amp_cache_clear(context->amp);
    }
    if (status == AMP_OK) status = amp_scope_enter(context ? context->amp : NULL, &scope->scope);
    if (status != AMP_OK) {
        amp_py_raise(status);
        return -1;
    }
    scope->context = context ? (amp_py_Context *)Py_NewRef((PyObject *)context) : NULL;
    if (context) context->inside++;
    stack.n++;
    return 0;
}

bool amp_py_is_disabled(void) {
    return stack.n > 0 && stack.entered[stack.n - 1].context == NULL;
}

int amp_py_leave(void) {
    if (stack.n == 0) {
        PyErr_SetString(PyExc_RuntimeError, "no scope was entered on this thread");
        return -1;
    }
    struct scope *scope = &stack.entered[--stack.n];
    amp_py_Context *context = scope->context;
    amp_status status = amp_scope_leave(&scope->scope);
    if (context && --context->inside == 0 && context->amp && status == AMP_OK) {
        status = amp_cache_clear(context->amp); /* edits through .data do not show in a version */
    }
    if (stack.n == 0) {
        free(stack.entered);
        stack.entered = NULL;
        stack.capacity = 0;
    }
    Py_XDECREF((PyObject *)context);
    if (status != AMP_OK) {
        amp_py_raise(status);
        return -1;
    }
    return 0;
}

static PyObject *enter_none(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return amp_py_enter(NULL) ? NULL : Py_NewRef(Py_None);
}

static PyObject *leave(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return amp_py_leave() ? NULL : Py_NewRef(Py_None);
}

static PyObject *current_scope(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    if (stack.n == 0) return PyTuple_New(0);
    PyObject *context = (PyObject *)stack.entered[stack.n - 1].context;
    return PyTuple_Pack(1, context ? context : Py_None);
}

int amp_py_add_scopes(PyObject *module) {
    static PyMethodDef functions[] = {
        { "enter_none", enter_none, METH_NOARGS,
          "enter_none()\n--\n\nNobody's policy holds on this thread from here on." },
        { "current_scope", current_scope, METH_NOARGS,
          "current_scope()\n"
          "--\n"
          "\n"
          "The context whose scope was entered last on this thread, in a tuple: (None,) is nobody's, and () means that "
          "no scope was entered." },
        { "leave", leave, METH_NOARGS, "leave()\n--\n\nLeave the scope that was entered last on this thread." },
        { NULL, NULL, 0, NULL },
    };
    return PyModule_AddFunctions(module, functions);
}
