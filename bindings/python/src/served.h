/* SPDX-License-Identifier: Apache-2.0 */
/* Devices on which torch's own operators do libamp's work (amp_serve.h): those without CPU kernels or plugin, and all
 * with LIBAMP_TORCH_OPS=1. libamp/torch/_served.py does the work. */
#ifndef AMP_PY_SERVED_H
#define AMP_PY_SERVED_H

#include <stdbool.h>

#include "py.h"

/* True if LIBAMP_TORCH_OPS was on when libamp.torch last read it. */
bool amp_py_torch_ops(void);

/* True if memory of this device, in DLPack's numbers, is served. all: LIBAMP_TORCH_OPS is on. */
bool amp_py_is_served(amp_device device, bool all);
/* Replaces *device, the tensor's in DLPack's numbers, by the number of the served device. Returns -1 with an
 * exception. */
int amp_py_serve(PyObject *tensor, amp_device *device);
/* As amp_py_serve, if the device is served. */
int amp_py_serve_if(PyObject *tensor, amp_device *device);
/* The inverse: DLPack's numbers. */
amp_device amp_py_unserved(amp_device device);
/* torch.device of a served device, borrowed, or NULL without an exception. */
PyObject *amp_py_served_device(amp_device device);

#endif /* AMP_PY_SERVED_H */
