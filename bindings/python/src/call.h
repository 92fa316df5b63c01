/* SPDX-License-Identifier: Apache-2.0 */
/* A call of a kernel over lists, from arguments to results, on the CPU or a GPU. Results go to tensors of the caller,
 * without waiting, or are returned as Python numbers. */
#ifndef AMP_PY_CALL_H
#define AMP_PY_CALL_H

#include "amp_device.h"
#include "list.h"
#include "scalar.h"

enum { AMP_PY_LISTS = 9 };

/* The results of a call, in this order. */
enum { AMP_PY_NOTHING = 0, AMP_PY_NORM = 1, AMP_PY_NORMS = 2, AMP_PY_FOUND = 4 };

typedef struct amp_py_call {
    const char *function;
    amp_py_list lists[AMP_PY_LISTS];
    size_t count;
    amp_py_scalar a, b;                   /* input numbers */
    amp_py_scalar norm, norms, found_inf; /* tensors for results */
    PyObject *stream_argument;            /* borrowed */
    int results;                          /* AMP_PY_NORM | ... */
    bool has_no_plan;                     /* on a GPU one list object serves all tensors */

    /* made by amp_py_call_run */
    amp_device device;
    float *to_norm, *to_norms, *to_found; /* memory for the kernel's results, NULL: not wanted */
    float *numbers;                       /* norm, found_inf, norms in the CPU's memory */
    PyObject *scratch;                    /* the same as a torch tensor on the device */
    amp_device_list *list;
    void *stream;
    int64_t index; /* another result of the kernel */
    struct amp_statistics *statistics; /* another result of the kernel */
} amp_py_call;

/* An argument: its name, its value and its use (AMP_PY_WRITE ...). */
typedef struct amp_py_argument {
    const char *name;
    PyObject *value;
    int how;
} amp_py_argument;

typedef amp_status (*amp_py_kernel)(amp_py_call *call);

/* Opens the lists. After an error nothing must be closed. Scalars opened before are closed too. */
int amp_py_call_open(amp_py_call *call, const amp_py_argument *arguments, size_t count);

/* Runs the kernel for the device without the GIL. cuda may be NULL: none. Returns 0, or -1 with an exception. */
int amp_py_call_run(amp_py_call *call, amp_py_kernel cpu, amp_py_kernel cuda);

/* Returns the results of call->results: None, a value or a tuple. None if all went to tensors. */
PyObject *amp_py_call_results(amp_py_call *call);

void amp_py_call_close(amp_py_call *call);

/* Opens, runs, returns the results and closes. */
PyObject *amp_py_call_all(amp_py_call *call, const amp_py_argument *arguments, size_t count, amp_py_kernel cpu,
                          amp_py_kernel cuda);

/* ---- cuda.c ------------------------------------------------------------------------------------------------------ */

/* The stream of an argument. None: torch's current one, or without torch tensors the legacy default stream. */
int amp_py_cuda_stream(PyObject *argument, bool torch, amp_device device, void **stream);

/* Finds the stream, and the list object of this place in the program: function, device, stream and tensors. */
int amp_py_cuda_open(amp_py_call *call);

/* Makes a tensor on the device with torch.zeros(argument) or torch.tensor(argument). *data: its memory. Steals the
 * argument, which may be NULL with an exception. */
PyObject *amp_py_cuda_make(const char *factory, PyObject *argument, const char *dtype, amp_device device, void **data);

/* Reads the numbers of a torch tensor. Waits for the device. */
int amp_py_cuda_read(PyObject *tensor, float *numbers, size_t count);

#endif /* AMP_PY_CALL_H */
