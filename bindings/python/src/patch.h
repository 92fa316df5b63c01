/* SPDX-License-Identifier: Apache-2.0 */
/* Patched functions: the replacements of torch's functions and methods at O1 and O4. Each knows its original and its
 * op. The library rules on the class of an op and the type of its arguments, and the answers are cached per context.
 * patch_type.c: the objects. patch.c: the policy of a call, the call. patch_cast.c: arguments. patch_quick.c: small
 * casts. patch_answers.c: cached answers. patch_product.c: products in 16 bits on the CPU. */
#ifndef AMP_PY_PATCH_H
#define AMP_PY_PATCH_H

#include <stdbool.h>

#include "py.h"

typedef PyObject *(*amp_py_vectorcall)(PyObject *, PyObject *const *, size_t, PyObject *);

enum {
    AMP_PY_IN_PLACE = 1, /* writes its first argument, which keeps its type */
    AMP_PY_WIDENS = 2,   /* only widens types, so fp64 stays */
    AMP_PY_WHOLE = 4,    /* one op although written in Python: functions that it calls run without casts */
    AMP_PY_NEVER_NARROWS = 8, /* refuses a dtype= narrower than its argument */
    AMP_PY_TORCH_PROMOTES = 16 /* for two tensors torch's type promotion gives the bits of a cast */
};

typedef struct {
    PyObject_HEAD
    amp_py_vectorcall vectorcall;
    PyObject *original;
    PyObject *in_fp32; /* the same in FP32, for 16-bit arguments on CUDA without a cast, or NULL */
    PyObject *product; /* the same for 16-bit arguments on the CPU, with sums in FP32, or NULL */
    PyObject *place; /* "torch.nn.functional:softmax", for pickle, patched or not */
    PyObject *op;    /* name in the lists, a str */
    const char *op_text;
    amp_class fixed; /* class by a user's registration, AMP_BY_LIST: the list's */
    uint32_t number;
    uint32_t flags;
    PyObject *weakrefs;
} amp_py_patched;

/* A set of floating types has bit amp_dtype - 1 for each. */
enum { AMP_PY_TYPES = 4, AMP_PY_SETS = 1 << AMP_PY_TYPES,
       AMP_PY_LOW = 1 << (AMP_FLOAT16 - 1) | 1 << (AMP_BFLOAT16 - 1) };
static inline uint32_t amp_py_bit(amp_dtype dtype) {
    return dtype >= AMP_FLOAT32 && dtype <= AMP_FLOAT64 ? 1u << (dtype - 1) : 0;
}

/* The policy of a context, for patched functions. */
typedef struct amp_py_policy {
    struct amp_py_policy *older;
    PyObject *context; /* _core.Context */
    amp_context *amp;
    bool allow_banned; /* banned ops run in FP32 */
    PyObject *report;  /* callable(op, from, to) for every cast, or NULL */
    uint8_t *classes;  /* by number of the function, 0: unknown */
    uint32_t n_classes;
    uint8_t targets[AMP_LEAVE + 1][AMP_PY_TYPES + 1][AMP_PY_SETS]; /* by class, written type, set of the other types */
} amp_py_policy;

/* A call in progress. */
struct amp_py_call {
    amp_py_policy *policy;
    const amp_py_patched *function;
    amp_class op_class;
    amp_dtype into;   /* type of the written argument, AMP_DTYPE_DEFAULT: none */
    amp_dtype target; /* type for the other arguments */
    bool scoped;      /* in a scope of the context, so its cache may be used */
    int8_t plain;     /* torch has no modes on this thread, 0: unknown, -1: it has */
};

/* patch_answers.c. Returns the amp_class of a function, or -1 with an exception. */
int amp_py_policy_class(amp_py_policy *policy, const amp_py_patched *function);
/* Returns the type for a set of types, AMP_DTYPE_DEFAULT for no cast, -1 with an exception. */
int amp_py_target(const struct amp_py_call *call, uint32_t set);

/* patch_cast.c. Finds the needed functions of torch. Returns -1 with an exception. */
int amp_py_cast_init(void);
/* Returns the type of a floating tensor that may be cast, else AMP_DTYPE_OTHER. Use amp_py_collect for lists and
 * tuples. */
amp_dtype amp_py_tensor_type(PyObject *object);
/* Adds the types of the floating tensors in `value` to the set. Returns the type of a single tensor, AMP_DTYPE_OTHER if
 * nothing can be cast, AMP_DTYPE_DEFAULT for a list or tuple. */
amp_dtype amp_py_collect(PyObject *value, uint32_t *set);
/* Returns a new reference to `value` with its tensors cast, often `value` itself, or NULL with an exception. type: the
 * result of amp_py_collect. */
PyObject *amp_py_cast_value(struct amp_py_call *call, PyObject *value, amp_dtype type);

/* PyObject_Vectorcall, in the stable ABI from Python 3.12 and in libpython from 3.11. */
extern amp_py_vectorcall amp_py_call_vector;
void amp_py_find_vectorcall(void);
/* The same without casts inside of the call. */
PyObject *amp_py_call_alone(PyObject *function, PyObject *const *args, size_t nargsf, PyObject *kwnames);

/* patch_quick.c. Casts a tensor of torch's own classes without torch, if the difference cannot be seen. Returns a new
 * reference, or NULL without an exception if torch must cast it. */
void amp_py_quick_init(PyObject *torch);
PyObject *amp_py_cast_quick(struct amp_py_call *call, PyObject *tensor, amp_dtype from, amp_dtype to);

/* patch_product.c. Calls the replacement of a function of products, for arguments that are 16-bit or become it by
 * autocast, and for those that the policy lowers. NotImplemented: the original must be called. */
PyObject *amp_py_product_as_given(const amp_py_patched *function, PyObject *const *args, size_t nargsf,
                                  PyObject *names);
PyObject *amp_py_product_lowered(const amp_py_patched *function, amp_dtype low, PyObject *const *args, Py_ssize_t n,
                                 PyObject *names);

/* patch.c. The call of a patched function. */
PyObject *amp_py_patched_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames);

#endif /* AMP_PY_PATCH_H */
