/* SPDX-License-Identifier: Apache-2.0 */
/* A call of a kernel over lists, from arguments to results, on the CPU or on a GPU. What it found goes to tensors where
 * the caller gave some, and nothing waits; else it comes back as Python's numbers. */
#ifndef AMP_PY_CALL_H
#define AMP_PY_CALL_H

#include "amp_device.h"
#include "list.h"
#include "scalar.h"

enum { AMP_PY_LISTS = 7 };

/* What a call gives back, and in which order. */
enum { AMP_PY_NOTHING = 0, AMP_PY_NORM = 1, AMP_PY_NORMS = 2, AMP_PY_FOUND = 4 };

typedef struct amp_py_call {
    const char *function;
    amp_py_list lists[AMP_PY_LISTS];
    size_t count;
    amp_py_scalar a, b;                   /* numbers that are read */
    amp_py_scalar norm, norms, found_inf; /* tensors for what was found */
    PyObject *stream_argument;            /* borrowed */
    int results;                          /* AMP_PY_NORM | ... */
    bool has_no_plan;                     /* on a GPU one list object serves whatever tensors come */

    /* made by amp_py_call_run */
    amp_device device;
    float *to_norm, *to_norms, *to_found; /* where the kernel writes; NULL: nobody asks */
    float *numbers;                       /* norm, found_inf, norms, in the CPU's memory; or */
    PyObject *scratch;                    /* the same as a torch tensor on the device */
    amp_device_list *list;
    void *stream;
    int64_t index; /* for one more result of the kernel's; */
    struct amp_statistics *statistics; /* or for these */
} amp_py_call;

/* An argument: its list's place, its name and how it is used. */
typedef struct amp_py_argument {
    const char *name;
    PyObject *value;
    int how;
} amp_py_argument;

typedef amp_status (*amp_py_kernel)(amp_py_call *call);

/* Reads the lists. On error nothing is to be closed; scalars that were opened before are closed too. */
int amp_py_call_open(amp_py_call *call, const amp_py_argument *arguments, size_t count);

/* Runs one of the two without the GIL; cuda NULL: there is none. 0, or -1 with an exception. */
int amp_py_call_run(amp_py_call *call, amp_py_kernel cpu, amp_py_kernel cuda);

/* What call->results says: None, a value, or a tuple of them; None where all of them went to tensors. */
PyObject *amp_py_call_results(amp_py_call *call);

void amp_py_call_close(amp_py_call *call);

/* All of it. */
PyObject *amp_py_call_all(amp_py_call *call, const amp_py_argument *arguments, size_t count, amp_py_kernel cpu,
                          amp_py_kernel cuda);

/* ---- cuda.c ------------------------------------------------------------------------------------------------------ */

/* The stream that an argument names; None: torch's current one, or the legacy default stream where nothing is
 * torch's. */
int amp_py_cuda_stream(PyObject *argument, bool torch, amp_device device, void **stream);

/* The stream and the list object of this place in the program: function, device, stream, and which tensors. */
int amp_py_cuda_open(amp_py_call *call);

/* A tensor of torch's there, by torch.zeros(argument) or torch.tensor(argument); *data: its memory. Takes the argument,
 * which may be NULL with an exception. */
PyObject *amp_py_cuda_make(const char *factory, PyObject *argument, const char *dtype, amp_device device, void **data);

/* A torch tensor's numbers, which waits for the device. */
int amp_py_cuda_read(PyObject *tensor, float *numbers, size_t count);

#endif /* AMP_PY_CALL_H */
