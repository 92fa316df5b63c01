/* SPDX-License-Identifier: Apache-2.0 */
/* torch.Tensor in C without torch's headers: attributes by interned names, and elements through DLPack's table of C
 * functions if torch has one (2.10 and later). torch is imported when the first context is made. */
#ifndef AMP_PY_TENSOR_H
#define AMP_PY_TENSOR_H

#include <stdbool.h>

#include "py.h"

/* Names for frequent lookups. */
extern struct amp_py_names {
    PyObject *grad, *dtype, *version, *shape, *stride, *data_ptr, *device, *requires_grad, *layout, *local_tensor,
        *base, *ndim, *is_cuda;
} amp_py_names;

/* Imports torch and finds the needed parts, once. Returns -1 with an exception if there is no torch. */
int amp_py_torch(void);
/* True for a torch.Tensor. Raises nothing. */
bool amp_py_is_tensor(PyObject *object);
/* The type of its elements, AMP_DTYPE_OTHER for types that libamp ignores. Raises nothing. */
amp_dtype amp_py_dtype(PyObject *tensor);
/* torch.float16 and so on, borrowed. NULL for types without one. */
PyObject *amp_py_torch_dtype(amp_dtype dtype);
/* tensor.to(dtype), recorded by autograd: a new reference, or NULL with an exception. */
PyObject *amp_py_to(PyObject *tensor, amp_dtype dtype);
/* True if autograd records operations on it when it is enabled. Raises nothing. */
bool amp_py_requires_grad(PyObject *tensor);
/* True if ops support its layout in 16 bits: strided, or jagged (nested tensors). Raises nothing. */
bool amp_py_has_16_bits(PyObject *tensor);
/* True if strided, with at least one dimension (in vmap: besides the mapped ones). Raises nothing. */
bool amp_py_has_dims(PyObject *tensor);
/* True for a plain tensor (no subclass) on a device that torch calls CUDA. Raises nothing. */
bool amp_py_is_on_cuda(PyObject *tensor);
/* A method of torch.Tensor that is a C function with these METH_ flags, or NULL. Call amp_py_torch before. */
PyCFunction amp_py_method(const char *name, int flags);
/* True if autograd records on this thread. */
bool amp_py_grad_enabled(void);
/* Fills a view for amp_host.view. For a DTensor it has the elements of this rank. shape and strides are valid until the
 * thread's next view. Returns -1 with an exception. */
int amp_py_look(PyObject *tensor, amp_tensor_view *view);
/* `grad`, a new reference, or NULL with an exception. */
PyObject *amp_py_grad(PyObject *tensor);
int amp_py_set_grad(PyObject *tensor, PyObject *grad);
/* `_version`, 0 for tensors without one (inference mode). Raises nothing. */
uint64_t amp_py_version(PyObject *tensor);
/* The address of the first element, or NULL with an exception. */
void *amp_py_data(PyObject *tensor);
/* The address of the first element, for comparison only, or NULL. Faster, and raises nothing. */
const void *amp_py_address(PyObject *tensor);

enum { AMP_PY_MAX_DIMS = 8 };

/* The layout of a tensor in memory: dimensions by falling stride. */
struct amp_py_order {
    int32_t ndim;
    bool permuted; /* not row-major, as channels last */
    int8_t of[AMP_PY_MAX_DIMS];
};

/* Reads the layout. A tensor with more than AMP_PY_MAX_DIMS dimensions gets none. */
int amp_py_read_order(PyObject *tensor, struct amp_py_order *order);

#endif /* AMP_PY_TENSOR_H */
