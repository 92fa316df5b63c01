/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of the module libamp.kernels, added to it as those of py.h are to libamp._core. */
#ifndef AMP_PY_KERNELS_H
#define AMP_PY_KERNELS_H

#include "py.h"

int amp_py_add_matmul(PyObject *kernels);
int amp_py_add_optim(PyObject *kernels);
int amp_py_add_statistics(PyObject *kernels);

#endif /* AMP_PY_KERNELS_H */
