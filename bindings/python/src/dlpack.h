/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of DLPack's ABI that are read here, by its specification. They are stable until its next major version. */
#ifndef AMP_PY_DLPACK_H
#define AMP_PY_DLPACK_H

#include "layout.h"

enum { DL_MAJOR = 1, DL_READ_ONLY = 1, DL_IS_COPIED = 2 };

typedef struct dl_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t dims;
    uint8_t code, bits; /* code: 2 IEEE float, 4 bfloat */
    uint16_t lanes;
    int64_t *shape, *strides; /* strides may be NULL for row-major */
    uint64_t byte_offset;
} dl_tensor;

typedef struct dl_managed {
    dl_tensor tensor;
    void *manager;
    void (*deleter)(struct dl_managed *self);
} dl_managed;

typedef struct dl_versioned {
    uint32_t major, minor;
    void *manager;
    void (*deleter)(struct dl_versioned *self);
    uint64_t flags;
    dl_tensor tensor;
} dl_versioned;

/* A table of C functions for a type, in the capsule "dlpack_exchange_api" of its __dlpack_c_exchange_api__. */
typedef struct dl_exchange {
    uint32_t major, minor;
    struct dl_exchange *older;
    void (*unused[2])(void); /* makes managed tensors */
    /* makes an object of the type that owns the tensor */
    int (*adopt)(dl_versioned *tensor, void **object);
    int (*borrow)(void *object, dl_tensor *out); /* may be NULL, valid while the object lives */
    int (*current_stream)(int32_t device_type, int32_t device_id, void **stream);
} dl_exchange;

/* Returns the table of a type, or NULL without an exception. */
const dl_exchange *amp_py_dlpack_exchange(PyObject *type);

/* Returns a capsule, as __dlpack__ does, of memory that outlives its users: one dimension, of `code` and `bits` as in
 * dl_tensor. size 0: a number without dimensions. NULL with an exception. */
PyObject *amp_py_dlpack_block(const void *address, uint64_t size, uint8_t code, uint8_t bits, amp_device device);
/* The same for a float. */
PyObject *amp_py_dlpack_number(const float *address, amp_device device);

int amp_py_dlpack_read(const dl_tensor *tensor, amp_py_where place, amp_py_view *view);
/* Reads objects with __dlpack__, for amp_py_view_get. Returns 1 without an exception if there is none, or an array with
 * __array_interface__ refuses. */
int amp_py_view_dlpack(PyObject *tensor, amp_py_where place, amp_py_view *view, PyObject **keep);

/* Computes span.size and compact from shape and strides. Returns -1 if the size exceeds the memory. */
int amp_py_view_measure(amp_py_view *view, amp_py_where place);

#endif /* AMP_PY_DLPACK_H */
