/* SPDX-License-Identifier: Apache-2.0 */
/* Memory, its device and its layout. */
#ifndef AMP_PY_LAYOUT_H
#define AMP_PY_LAYOUT_H

#include <stdbool.h>

#include "amp_kernels.h"
#include "py.h"

enum { AMP_PY_CPU = 1, AMP_PY_CUDA = 2, AMP_PY_SERVED = 12 }; /* amp_device.type */

/* the limit of NumPy and torch */
enum { AMP_PY_DIMS = 64 };

typedef struct amp_py_view {
    amp_span span;
    amp_device device;
    bool is_torch;
    bool read_only;
    bool compact; /* row-major without gaps */
    int dims;     /* number of shape and strides entries, unset for compact tensors unless requested */
    int64_t shape[AMP_PY_DIMS], strides[AMP_PY_DIMS]; /* strides in elements */
} amp_py_view;

#endif /* AMP_PY_LAYOUT_H */
