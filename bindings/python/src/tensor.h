/* SPDX-License-Identifier: Apache-2.0 */
/* What a torch.Tensor is, seen from C without torch's headers: attributes by interned names, and elements through
 * DLPack's table of C functions where torch has one (2.10 and later). torch is imported when the first context is
 * made. */
#ifndef AMP_PY_TENSOR_H
#define AMP_PY_TENSOR_H

#include <stdbool.h>

#include "py.h"

/* Names that are looked up often. */
extern struct amp_py_names {
    PyObject *grad, *dtype, *version, *shape, *stride, *data_ptr, *device, *requires_grad, *layout, *local_tensor,
        *base, *ndim, *is_cuda;
} amp_py_names;

/* Imports torch and looks up what is needed of it; again: nothing. -1 with an exception: there is no torch. */
int amp_py_torch(void);
/* Is it a torch.Tensor? No exception. */
bool amp_py_is_tensor(PyObject *object);
/* The type of its elements; AMP_DTYPE_OTHER for those that libamp leaves alone. No exception. */
amp_dtype amp_py_dtype(PyObject *tensor);
/* torch.float16 and so on, borrowed; NULL for types without one. */
PyObject *amp_py_torch_dtype(amp_dtype dtype);
/* tensor.to(dtype), on the tape: a new reference, or NULL with an exception. */
PyObject *amp_py_to(PyObject *tensor, amp_dtype dtype);
/* Does autograd record what is done with it, where it records? No exception. */
bool amp_py_requires_grad(PyObject *tensor);
/* Of a layout that ops know in 16 bits: strided, or jagged (nested tensors)? No exception. */
bool amp_py_has_16_bits(PyObject *tensor);
/* Strided, with one dimension at least (in vmap: beside the mapped ones)? No exception. */
bool amp_py_has_dims(PyObject *tensor);
/* A plain tensor (no subclass) in the memory of a device that torch calls CUDA? No exception. */
bool amp_py_is_on_cuda(PyObject *tensor);
/* A method of torch.Tensor that is a C function with these METH_ flags, or NULL; after amp_py_torch. */
PyCFunction amp_py_method(const char *name, int flags);
/* Does autograd record on this thread? */
bool amp_py_grad_enabled(void);
/* Elements, for amp_host.view, of a DTensor those of this rank; shape and strides hold until the thread's next view. -1
 * with an exception. */
int amp_py_look(PyObject *tensor, amp_tensor_view *view);
/* `grad`, a new reference, or NULL with an exception; and its setter. */
PyObject *amp_py_grad(PyObject *tensor);
int amp_py_set_grad(PyObject *tensor, PyObject *grad);
/* `_version`; 0 for tensors without one (inference mode). No exception. */
uint64_t amp_py_version(PyObject *tensor);
/* The address of the first element, or NULL with an exception. */
void *amp_py_data(PyObject *tensor);
/* The same for comparing, faster; NULL: it has none. No exception. */
const void *amp_py_address(PyObject *tensor);

enum { AMP_PY_MAX_DIMS = 8 };

/* How a tensor's elements lie in memory: dimensions by falling stride. */
struct amp_py_order {
    int32_t ndim;
    bool permuted; /* not row-major: channels last */
    int8_t of[AMP_PY_MAX_DIMS];
};

/* Of a tensor with more dimensions than are kept nothing is told. */
int amp_py_read_order(PyObject *tensor, struct amp_py_order *order);

#endif /* AMP_PY_TENSOR_H */
