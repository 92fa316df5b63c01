/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of the module libamp.kernels, added as those of py.h are to libamp._core. */
#ifndef AMP_PY_KERNELS_H
#define AMP_PY_KERNELS_H

#include "py.h"

int amp_py_add_codes(PyObject *kernels);
int amp_py_add_matmul(PyObject *kernels);
int amp_py_add_optim(PyObject *kernels);
int amp_py_add_pack(PyObject *kernels);
int amp_py_add_split(PyObject *kernels);
int amp_py_add_statistics(PyObject *kernels);

/* Returns the memory of each of the lists, checked against the length of its parameter. Free it with PyMem_Free. NULL
 * with an exception. */
struct amp_py_list;
void **amp_py_remainders(const struct amp_py_list *list, const struct amp_py_list *params);
/* The same for the scales of moments in 8 bits, and for a list of n numbers. */
float **amp_py_scales(const struct amp_py_list *list, const struct amp_py_list *params);
uint64_t *amp_py_numbers(PyObject *list, const char *name, size_t n);

#endif /* AMP_PY_KERNELS_H */
