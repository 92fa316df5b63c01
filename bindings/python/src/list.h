/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments that are tensors or lists of tensors, as libamp's list functions take them. */
#ifndef AMP_PY_LIST_H
#define AMP_PY_LIST_H

#include "view.h"

/* The use of an argument, and other accepted values. */
enum {
    AMP_PY_READ = 0,
    AMP_PY_WRITE = 1,    /* refuses read-only memory, and reports the write to autograd */
    AMP_PY_OPTIONAL = 2, /* None is accepted for the list or an element: a span without memory */
    AMP_PY_CODES = 4,    /* integers are accepted, as AMP_DTYPE_OTHER */
};

typedef struct amp_py_list {
    const char *name; /* name of the argument */
    int how;          /* AMP_PY_* */
    bool single;      /* a tensor, not a list */
    size_t n_torch;   /* number of torch tensors */
    PyObject *source; /* the argument, borrowed */
    PyObject *tensors; /* tuple, which keeps the tensors alive, NULL: the argument is None */
    PyObject *keep;    /* list of capsules, or NULL */
    PyObject *layouts; /* dict: index -> bytes, for dense tensors that are not row-major, or NULL */
    amp_span *spans;
    size_t n;
    amp_device device; /* of all tensors, type 0: the list is empty */
} amp_py_list;

/* Opens an argument. twin: an open list or NULL. The same object is not read again. After an error nothing must be
 * closed. */
int amp_py_list_open(amp_py_list *list, const char *name, PyObject *argument, int how, const amp_py_list *twin);

/* Closes the list. A list of zeros is valid and empty. */
void amp_py_list_close(amp_py_list *list);

/* Checks lists that one call uses together: equal length, one device (*device, the CPU if all are empty), and equal
 * layouts at each index. Lists that are None are ignored. */
int amp_py_lists_agree(amp_py_list *lists, size_t count, amp_device *device);

/* Increases torch's version counters of written tensors, after the call. */
int amp_py_lists_touch(amp_py_list *lists, size_t count);

#endif /* AMP_PY_LIST_H */
