/* SPDX-License-Identifier: Apache-2.0 */
/* Devices on which libamp's work is done by torch's own operators (amp_serve.h): those that neither the CPU's kernels
 * nor a plugin reach, and with LIBAMP_TORCH_OPS=1 all of them. The work itself is libamp/torch/_served.py. */
#ifndef AMP_PY_SERVED_H
#define AMP_PY_SERVED_H

#include <stdbool.h>

#include "py.h"

/* Is LIBAMP_TORCH_OPS on? As libamp.torch read it last. */
bool amp_py_torch_ops(void);

/* Is memory of this device, by DLPack's numbers, served? `all`: LIBAMP_TORCH_OPS is on. */
bool amp_py_is_served(amp_device device, bool all);
/* *device, the tensor's by DLPack's numbers, becomes the number under which it is served. -1 with an exception. */
int amp_py_serve(PyObject *tensor, amp_device *device);
/* The same where it is served. */
int amp_py_serve_if(PyObject *tensor, amp_device *device);
/* The other way: DLPack's numbers. */
amp_device amp_py_unserved(amp_device device);
/* torch.device of a served device, borrowed; NULL without an exception: it is not one. */
PyObject *amp_py_served_device(amp_device device);

#endif /* AMP_PY_SERVED_H */
