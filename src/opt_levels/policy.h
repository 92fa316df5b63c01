/* SPDX-License-Identifier: Apache-2.0 */
/* The decision: an op's class and its arguments' types in, the type they shall have out. Pure. */
#ifndef AMP_POLICY_H
#define AMP_POLICY_H

#include "opt_levels/levels.h"

/* What kind of argument a dtype came from. */
struct amp__operand {
    amp_dtype dtype;
    bool in_list;    /* from a Tensor[] argument */
    bool read_write; /* updated in place: it keeps its type */
};

/* What must hold for the policy's sake, besides the class. */
struct amp__decision {
    amp_dtype target;    /* AMP_DTYPE_DEFAULT: nothing is cast */
    amp_dtype refused;   /* with a status: the type that it is about */
    amp_status status;   /* AMP_ERR_BANNED, or AMP_ERR_UNSUPPORTED for an in-place op that would need a wider self */
};

/* Does `dtype` change under a cast to the low type or FP32? fp64 only where the list set says so. */
bool amp__policy_casts_fp64(const struct amp__properties *properties);
static inline bool amp__policy_casts(const struct amp__properties *properties, amp_dtype dtype) {
    return dtype == AMP_FLOAT64 ? amp__policy_casts_fp64(properties) : amp__is_floating(dtype);
}

struct amp__decision amp__decide(const struct amp__properties *properties, amp_class op_class,
                                 const struct amp__operand *operands, size_t n);

/* The error of a decision with a status, for op `name`; AMP_OK without one. */
amp_status amp__decision_error(struct amp__decision decision, const char *name);

/* Must this one operand be cast, given the decision? */
static inline bool amp__operand_needs_cast(const struct amp__properties *properties, amp_class op_class,
                                            const struct amp__operand *operand, amp_dtype target) {
    if (target == AMP_DTYPE_DEFAULT || operand->dtype == target || operand->read_write) return false;
    if (op_class == AMP_PROMOTE) return amp__is_floating(operand->dtype);
    if (op_class == AMP_PROMOTE_SEQUENCE) return operand->in_list && amp__is_floating(operand->dtype);
    return amp__policy_casts(properties, operand->dtype);
}

#endif
