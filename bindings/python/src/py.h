/* SPDX-License-Identifier: Apache-2.0 */
/* Common to all files of the extension. It has one state per process: it is initialised once, and module-wide objects
 * are static pointers, made by amp_py_add_*. */
#ifndef AMP_PY_H
#define AMP_PY_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "amp_all.h"

#include <stdint.h>

/* A function as a slot of a type. */
#define AMP_PY_SLOT(function) ((void *)(uintptr_t)(function))

/* Parts of the module. Each adds its functions and types. They return 0, or -1 with an exception. module.c lists
 * them. */
int amp_py_add_errors(PyObject *module);
int amp_py_add_view(PyObject *module);
int amp_py_add_tensor_view(PyObject *module);
int amp_py_add_dlpack(PyObject *module);
int amp_py_add_served(PyObject *module);
int amp_py_add_kernels(PyObject *module);

/* statistics.c. The tuple for libamp.kernels.Statistics. */
PyObject *amp_py_statistics(const amp_statistics *statistics);

int amp_py_add_context(PyObject *module);
int amp_py_add_patch(PyObject *module);
int amp_py_add_patched(PyObject *module);
int amp_py_add_products(PyObject *module);
int amp_py_add_policy(PyObject *module);

/* Raises libamp.Error or a subclass, with amp_last_error's text, for a status other than AMP_OK. Returns NULL. */
PyObject *amp_py_raise(amp_status status);

/* Returns the library's message with Python's names for arguments, or NULL with an exception. */
PyObject *amp_py_words(const char *text);

/* libamp.ArgumentError, borrowed, for messages of the extension. */
PyObject *amp_py_argument_error(void);

/* An argument for messages, and the index in a list. */
typedef struct amp_py_where {
    const char *name;
    Py_ssize_t index; /* -1: not in a list */
} amp_py_where;

/* The end of a noun after its number, for "%zu byte%s": "" for 1, "s" for all others. */
#define AMP_PY_S(n) (&"s"[(n) == 1])

/* Raises libamp.ArgumentError with the place before the message: "src[3]: is read-only". Returns -1. */
int amp_py_refuse(amp_py_where place, const char *format, ...);

/* For hooks, which may not raise: keeps the present exception, with its message in text, until amp_py_raise handles
 * AMP_ERR_HOST_FAILED. */
void amp_py_keep_for_raise(char *text, size_t size);
void amp_py_forget_kept(void);

/* Returns None for AMP_OK, else amp_py_raise. */
PyObject *amp_py_result(amp_status status);

#endif /* AMP_PY_H */
