/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Patched functions: what O1 and O4 put in the place of torch's functions and methods. Each knows its original and its
 * op; the class of an op and the type for its arguments are the library's answers, remembered per context.
 *
 * patch_type.c: the objects. patch.c: whose policy, the call. patch_cast.c: arguments. patch_quick.c: small casts.
 * patch_answers.c: the answers.
 */
#ifndef AMP_PY_PATCH_H
#define AMP_PY_PATCH_H

#include <stdbool.h>

#include "py.h"

typedef PyObject *(*amp_py_vectorcall)(PyObject *, PyObject *const *, size_t, PyObject *);

enum {
    AMP_PY_IN_PLACE = 1, /* writes its first argument, which keeps its type */
    AMP_PY_WIDENS = 2,   /* only makes types wider: fp64 stays */
    AMP_PY_WHOLE = 4,    /* one op though written in Python: what it calls runs as it comes */
    AMP_PY_NEVER_NARROWS = 8, /* refuses a dtype= that is narrower than its argument */
    AMP_PY_TORCH_PROMOTES = 16 /* of two tensors torch's own type promotion makes the bits that a cast makes */
};

typedef struct {
    PyObject_HEAD
    amp_py_vectorcall vectorcall;
    PyObject *original;
    PyObject *in_fp32; /* the same in FP32, from 16 bits on CUDA, without a cast before it; or NULL */
    PyObject *place; /* "torch.nn.functional:softmax": where pickle finds it, patched or not */
    PyObject *op;    /* the name that the lists know, as a str */
    const char *op_text;
    amp_class fixed; /* of the user's own functions; AMP_BY_LIST: the lists say */
    uint32_t number;
    uint32_t flags;
    PyObject *weakrefs;
} amp_py_patched;

/* Sets of floating types: bit amp_dtype - 1. */
enum { AMP_PY_TYPES = 4, AMP_PY_SETS = 1 << AMP_PY_TYPES,
       AMP_PY_LOW = 1 << (AMP_FLOAT16 - 1) | 1 << (AMP_BFLOAT16 - 1) };
static inline uint32_t amp_py_bit(amp_dtype dtype) {
    return dtype >= AMP_FLOAT32 && dtype <= AMP_FLOAT64 ? 1u << (dtype - 1) : 0;
}

/* A context whose policy the patched functions ask. */
typedef struct amp_py_policy {
    struct amp_py_policy *older;
    PyObject *context; /* _core.Context */
    amp_context *amp;
    bool allow_banned; /* banned ops run in FP32 */
    PyObject *report;  /* callable(op, from, to) for every cast, or NULL */
    uint8_t *classes;  /* by a function's number; 0: not asked yet */
    uint32_t n_classes;
    uint8_t targets[AMP_LEAVE + 1][AMP_PY_TYPES + 1][AMP_PY_SETS]; /* class, type written to, set of the others */
} amp_py_policy;

/* One call under way. */
struct amp_py_call {
    amp_py_policy *policy;
    const amp_py_patched *function;
    amp_class op_class;
    amp_dtype into;   /* type of what the call writes; AMP_DTYPE_DEFAULT: nothing */
    amp_dtype target; /* what the others become */
    bool scoped;      /* a scope of the context is entered: its cache may be used */
    int8_t plain;     /* does torch run without modes on this thread? 0: not asked, -1: no */
};

/* patch_answers.c: the amp_class of a function; -1 with an exception. */
int amp_py_policy_class(amp_py_policy *policy, const amp_py_patched *function);
/* The type that a set of types gets: AMP_DTYPE_DEFAULT for none; -1 with an exception. */
int amp_py_target(const struct amp_py_call *call, uint32_t set);

/* patch_cast.c. Looks up what is needed of torch; -1 with an exception. */
int amp_py_cast_init(void);
/* The type if it is a floating tensor that may be cast, else AMP_DTYPE_OTHER; for lists and tuples use
 * amp_py_collect. */
amp_dtype amp_py_tensor_type(PyObject *object);
/* Adds the types of the floating tensors in `value` to the set. Returns the type if it is a tensor by itself,
 * AMP_DTYPE_OTHER if nothing in it can be cast, AMP_DTYPE_DEFAULT for a list or tuple. */
amp_dtype amp_py_collect(PyObject *value, uint32_t *set);
/* `value`, of which amp_py_collect said `type`, with its tensors cast: a new reference, often to `value` itself; NULL
 * with an exception. */
PyObject *amp_py_cast_value(struct amp_py_call *call, PyObject *value, amp_dtype type);

/* PyObject_Vectorcall, which the stable ABI has from Python 3.12 on and libpython from 3.11 on. */
extern amp_py_vectorcall amp_py_call_vector;
void amp_py_find_vectorcall(void);

/* patch_quick.c: a cast past torch, where nobody can tell: a new reference, or NULL without an exception: torch is to
 * make it. For tensors of torch's own classes. */
void amp_py_quick_init(PyObject *torch);
PyObject *amp_py_cast_quick(struct amp_py_call *call, PyObject *tensor, amp_dtype from, amp_dtype to);

/* patch.c: the stub itself. */
PyObject *amp_py_patched_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames);

#endif /* AMP_PY_PATCH_H */
