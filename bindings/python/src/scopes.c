/* SPDX-License-Identifier: Apache-2.0 */
/* The policy of each thread: a stack of scopes. */
#include "context.h"

#include <stdlib.h>

static _Thread_local struct {
    struct scope {
        amp_scope scope;
        amp_py_Context *context; /* NULL: no policy */
    } *entered;
    size_t n, capacity;
} stack;

/* True if it is entered on this thread. */
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
        /* casts of another thread's forward may precede a write */
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
        status = amp_cache_clear(context->amp); /* writes through .data change no version */
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
          "enter_none()\n--\n\nEnters a scope without a policy on this thread." },
        { "current_scope", current_scope, METH_NOARGS,
          "current_scope()\n"
          "--\n"
          "\n"
          "Returns the context of the innermost scope of this thread in a tuple: (None,) for one without a policy, () "
          "without a scope." },
        { "leave", leave, METH_NOARGS, "leave()\n--\n\nLeaves the innermost scope of this thread." },
        { NULL, NULL, 0, NULL },
    };
    return PyModule_AddFunctions(module, functions);
}
