/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bound call: its arguments, decoded once by call/bind.c, on the handler's stack. The gate, casts, outputs, raw
 * buffers, verify and observe take it, and none of them decodes an argument again.
 */
#ifndef AMP_BOUND_H
#define AMP_BOUND_H

#include "host/host.h"
#include "intercept/intercept.h"
#include "opt_levels/policy.h"

/* A Tensor argument or a raw buffer. */
struct amp__bound_arg {
    const char *name; /* "" for an argument without a name */
    union {
        void **handles; /* the caller's: one, or those of a list or of an out-parameter */
        void *buffer;   /* elements of a raw buffer */
    };
    size_t count;     /* handles, 0 for a NULL list or out-parameter */
    amp_dtype dtype;  /* type of the elements, or of the only handle (AMP_DTYPE_DEFAULT: read for each handle) */
    uint16_t flags;   /* AMP__LIST, AMP__READ_WRITE, ... of the schema */
    uint8_t index;    /* among the call's arguments */
};

struct amp__bound {
    const struct amp__call *call;   /* NULL: a direct call (amp_cast_args) */
    uint32_t n_tensors, n_buffers;
    struct amp__bound_arg *buffers; /* raw buffers that are not NULL; in the same array as the Tensors */
    size_t n_given;                 /* tensors of a direct call */
    struct amp__operands operands;  /* operands with types read from the host */
    bool has_buffers;               /* the op computes with a raw buffer */
    void *argv[AMP__MAX_ARGS];      /* all arguments as the op gets them: at first the caller's */
    struct amp__bound_arg tensors[AMP__MAX_ARGS + 1]; /* of a wrapped call: without keep and seed */
};

/* Is this the handle, or the handles, that the op makes? */
static inline bool amp__is_made(const struct amp__bound_arg *arg) {
    return arg->flags & AMP__OUT_PARAMETER && arg->count;
}

/* The argument's handles as the op gets them; not of out-parameters. */
static inline void *const *amp__bound_shown(const struct amp__bound *bound, const struct amp__bound_arg *arg) {
    void *const shown = bound->argv[arg->index];
    return arg->flags & AMP__LIST ? *(void *const *const *)shown : shown;
}

/* A handle of the argument, of this type, as the policy sees it. */
static inline struct amp__operand amp__operand_of(const struct amp__bound_arg *arg, amp_dtype dtype) {
    return (struct amp__operand){ dtype, (arg->flags & AMP__LIST) != 0, (arg->flags & AMP__READ_WRITE) != 0 };
}

#endif
