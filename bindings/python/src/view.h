/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a Python object: torch tensors by their attributes, other objects by __dlpack__, and NumPy arrays that
 * DLPack cannot express (read-only ones, bfloat16 of ml_dtypes) by __array_interface__. Nothing is copied. */
#ifndef AMP_PY_VIEW_H
#define AMP_PY_VIEW_H

#include "layout.h"

/* Fills *view, with shape and strides if `shape`. Unsupported types are AMP_DTYPE_OTHER. *keep: an object that must
 * live as long as the view, a new reference or NULL. `tensor` must live as long too. Returns 0, or -1 with an
 * exception. */
int amp_py_view_get(PyObject *tensor, amp_py_where place, bool shape, amp_py_view *view, PyObject **keep);

/* Releases the view. The producer's clean-up may run Python, so a present exception is set aside. */
void amp_py_let_go(PyObject **keep);

/* tensor_view.c. Reads torch's tensors. Returns 1 without an exception for other objects. */
int amp_py_view_torch(PyObject *tensor, amp_py_where place, bool shape, amp_py_view *view);

/* True for a torch.Tensor. Never imports torch. */
bool amp_py_is_torch(PyObject *object);

/* torch's current stream on a device, from DLPack's table. Returns false if unknown, perhaps with an exception. */
bool amp_py_torch_stream(amp_device device, void **stream);

/* Reports to autograd that these torch tensors (a tuple or list) were written. */
int amp_py_touch_torch(PyObject *tensors);

#endif /* AMP_PY_VIEW_H */
