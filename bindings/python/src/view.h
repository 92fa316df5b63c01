/* SPDX-License-Identifier: Apache-2.0 */
/* What memory a Python object stands for: torch tensors by their attributes, everything else by __dlpack__, and NumPy
 * arrays that DLPack has no words for (read-only ones, bfloat16 of ml_dtypes) by __array_interface__. Nothing is
 * copied. */
#ifndef AMP_PY_VIEW_H
#define AMP_PY_VIEW_H

#include "layout.h"

/* Fills *view, with shape and strides if `shape`. Types that libamp does not compute in are AMP_DTYPE_OTHER. *keep:
 * what must live as long as the view, a new reference or NULL; `tensor` itself must live, too. 0, or -1 with an
 * exception. */
int amp_py_view_get(PyObject *tensor, amp_py_where place, bool shape, amp_py_view *view, PyObject **keep);

/* Ends what was kept. A producer's clean-up may run Python, which must not meet the exception that we are about to
 * raise. */
void amp_py_let_go(PyObject **keep);

/* tensor_view.c: the reader of torch's tensors behind it. 1: it is none, and no exception is set. */
int amp_py_view_torch(PyObject *tensor, amp_py_where place, bool shape, amp_py_view *view);

/* Is it a torch.Tensor? false where torch is not imported: this never does. */
bool amp_py_is_torch(PyObject *object);

/* torch's current stream on a device, as DLPack's table tells it; false: it does not, and an exception may be set. */
bool amp_py_torch_stream(amp_device device, void **stream);

/* Tells autograd that these tensors (a tuple or list, all of torch) were written. */
int amp_py_touch_torch(PyObject *tensors);

#endif /* AMP_PY_VIEW_H */
