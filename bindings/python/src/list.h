/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments that are tensors or lists of tensors, as libamp's list functions take them. */
#ifndef AMP_PY_LIST_H
#define AMP_PY_LIST_H

#include "view.h"

/* What a function does with an argument, and what else may stand there. */
enum {
    AMP_PY_READ = 0,
    AMP_PY_WRITE = 1,    /* read-only memory is refused; autograd hears of it */
    AMP_PY_OPTIONAL = 2, /* None for the whole list or for an element: a span without memory */
};

typedef struct amp_py_list {
    const char *name; /* of the argument */
    int how;          /* AMP_PY_* */
    bool single;      /* it is a tensor, not a list */
    size_t n_torch;   /* how many are torch's */
    PyObject *source; /* the argument, borrowed */
    PyObject *tensors; /* tuple, so that nobody takes one away while the kernel runs; NULL: the argument is None */
    PyObject *keep;    /* list of capsules, or NULL */
    PyObject *layouts; /* dict: index -> bytes, of those dense but not row-major; NULL: there is none */
    amp_span *spans;
    size_t n;
    amp_device device; /* of all; type 0: the list is empty */
} amp_py_list;

/* Reads an argument; twin: a list that was read before, or NULL: where the argument is the same object it is not read
 * again. On error nothing is to be closed. */
int amp_py_list_open(amp_py_list *list, const char *name, PyObject *argument, int how, const amp_py_list *twin);

/* Lets go of everything; a list of zeros is none. */
void amp_py_list_close(amp_py_list *list);

/* Lists that one call walks side by side: of one length, on one device (*device; the CPU if all are empty), the
 * elements of each index in one order. Those that are None do not count. */
int amp_py_lists_agree(amp_py_list *lists, size_t count, amp_device *device);

/* Afterwards: torch's counters of what was written. */
int amp_py_lists_touch(amp_py_list *lists, size_t count);

#endif /* AMP_PY_LIST_H */
