/* SPDX-License-Identifier: Apache-2.0 */
/* What all files of the extension share. One state a process: the extension is initialised once, and module-wide
 * objects are static pointers, made by amp_py_add_*. */
#ifndef AMP_PY_H
#define AMP_PY_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "amp_all.h"

#include <stdint.h>

/* A function as a slot of a type. */
#define AMP_PY_SLOT(function) ((void *)(uintptr_t)(function))

/* Parts of the module: each adds its functions and types and makes what it needs. 0, or -1 with an exception. Listed in
 * module.c. */
int amp_py_add_errors(PyObject *module);
int amp_py_add_view(PyObject *module);
int amp_py_add_tensor_view(PyObject *module);
int amp_py_add_dlpack(PyObject *module);
int amp_py_add_served(PyObject *module);
int amp_py_add_kernels(PyObject *module);

/* statistics.c: what libamp.kernels.Statistics is made of. */
PyObject *amp_py_statistics(const amp_statistics *statistics);

int amp_py_add_context(PyObject *module);
int amp_py_add_patch(PyObject *module);
int amp_py_add_patched(PyObject *module);
int amp_py_add_policy(PyObject *module);

/* libamp.Error and its kin for a status that is not AMP_OK, with amp_last_error's words. Returns NULL. */
PyObject *amp_py_raise(amp_status status);

/* The library's words with Python's names for what they speak of; NULL with an exception. */
PyObject *amp_py_words(const char *text);

/* libamp.ArgumentError, borrowed, for words of one's own. */
PyObject *amp_py_argument_error(void);

/* For messages: an argument, and where it is a list which of its elements. */
typedef struct amp_py_where {
    const char *name;
    Py_ssize_t index; /* -1: not in a list */
} amp_py_where;

/* libamp.ArgumentError, its words with the place before them: "src[3]: is read-only". Returns -1. */
int amp_py_refuse(amp_py_where place, const char *format, ...);

/* For hooks, which may not raise: keeps the exception that is set, its words in text, until amp_py_raise tells of
 * AMP_ERR_HOST_FAILED. */
void amp_py_keep_for_raise(char *text, size_t size);
void amp_py_forget_kept(void);

/* None for AMP_OK, else amp_py_raise. */
PyObject *amp_py_result(amp_status status);

#endif /* AMP_PY_H */
