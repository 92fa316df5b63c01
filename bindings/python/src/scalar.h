/* SPDX-License-Identifier: Apache-2.0 */
/* Single numbers as arguments: a Python number, or a tensor of one element, which is not copied. */
#ifndef AMP_PY_SCALAR_H
#define AMP_PY_SCALAR_H

#include "view.h"

typedef struct amp_py_scalar {
    const char *name;
    float *pointer; /* element of a float32 tensor, or NULL */
    float value;    /* the number without a tensor, or a copy of the element of a CPU tensor */
    amp_device device;
    PyObject *tensor, *keep;
} amp_py_scalar;

/* Opens an input number. None leaves scalar->value. */
int amp_py_scalar_in(amp_py_scalar *scalar, const char *name, PyObject *argument);

/* Opens `count` output numbers: None, or a float32 tensor. */
int amp_py_scalar_out(amp_py_scalar *scalar, const char *name, PyObject *argument, uint64_t count);

/* Opens `count` input numbers. */
int amp_py_scalar_vector(amp_py_scalar *scalar, const char *name, PyObject *argument, uint64_t count);

void amp_py_scalar_close(amp_py_scalar *scalar);

/* Checks that a tensor is on the device of the work. */
int amp_py_scalar_on(const amp_py_scalar *scalar, amp_device device);

#endif /* AMP_PY_SCALAR_H */
