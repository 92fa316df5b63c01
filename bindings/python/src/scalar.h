/* SPDX-License-Identifier: Apache-2.0 */
/* Single numbers as arguments: a Python number, or a tensor of one element, which stays where it is. */
#ifndef AMP_PY_SCALAR_H
#define AMP_PY_SCALAR_H

#include "view.h"

typedef struct amp_py_scalar {
    const char *name;
    float *pointer; /* a float32 tensor's element; NULL: there is none */
    float value;    /* the number where there is no tensor; of a tensor in the CPU's memory the element as it was */
    amp_device device;
    PyObject *tensor, *keep;
} amp_py_scalar;

/* A number to be read: None leaves what scalar->value holds. */
int amp_py_scalar_in(amp_py_scalar *scalar, const char *name, PyObject *argument);

/* `count` numbers to be written: None, or a float32 tensor. */
int amp_py_scalar_out(amp_py_scalar *scalar, const char *name, PyObject *argument, uint64_t count);

/* The same to be read. */
int amp_py_scalar_vector(amp_py_scalar *scalar, const char *name, PyObject *argument, uint64_t count);

void amp_py_scalar_close(amp_py_scalar *scalar);

/* A tensor's memory must be where the work is done. */
int amp_py_scalar_on(const amp_py_scalar *scalar, amp_device device);

#endif /* AMP_PY_SCALAR_H */
