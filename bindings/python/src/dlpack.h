/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of DLPack's ABI that are read here, by its specification; the same up to its next major version. */
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
    int64_t *shape, *strides; /* strides may be NULL: row-major */
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

/* A type's own table of C functions, in the capsule "dlpack_exchange_api" at its __dlpack_c_exchange_api__. */
typedef struct dl_exchange {
    uint32_t major, minor;
    struct dl_exchange *older;
    void (*unused[2])(void); /* what makes managed tensors */
    /* an object of the type over a tensor that is its own from then on */
    int (*adopt)(dl_versioned *tensor, void **object);
    int (*borrow)(void *object, dl_tensor *out); /* may be NULL; valid while the object lives */
    int (*current_stream)(int32_t device_type, int32_t device_id, void **stream);
} dl_exchange;

/* The table of a type, or NULL without an exception. */
const dl_exchange *amp_py_dlpack_exchange(PyObject *type);

/* A capsule, as __dlpack__ gives one, of memory that outlives whoever takes it: one dimension, of `code` and `bits` as
 * in dl_tensor; size 0: a number without dimensions. NULL with an exception. */
PyObject *amp_py_dlpack_block(const void *address, uint64_t size, uint8_t code, uint8_t bits, amp_device device);
/* A float there. */
PyObject *amp_py_dlpack_number(const float *address, amp_device device);

int amp_py_dlpack_read(const dl_tensor *tensor, amp_py_where place, amp_py_view *view);
/* The reader of amp_py_view_get for objects with __dlpack__. 1: it has none, or is an array with __array_interface__
 * that refuses; no exception is set. */
int amp_py_view_dlpack(PyObject *tensor, amp_py_where place, amp_py_view *view, PyObject **keep);

/* From shape and strides: span.size and compact. -1 if the size is more than memory has. */
int amp_py_view_measure(amp_py_view *view, amp_py_where place);

#endif /* AMP_PY_DLPACK_H */
