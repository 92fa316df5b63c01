/* SPDX-License-Identifier: Apache-2.0 */
/* The ruling: an op's class and its arguments' types in, the type they shall have out. Pure. */
#ifndef AMP_POLICY_H
#define AMP_POLICY_H

#include "opt_levels/levels.h"

/* An argument by its type and kind. */
struct amp__operand {
    amp_dtype dtype;
    bool in_list;    /* from a Tensor[] argument */
    bool read_write; /* updated in place: it keeps its type */
};

/* The operands of a call: the distinct ones, on which the ruling depends, whatever the length of its lists. */
struct amp__operands {
    struct amp__operand distinct[5 * 4];
    size_t n;       /* distinct */
    size_t tensors; /* handles that could be cast */
    bool has_work;  /* the host's visit emitted something to compute with */
};

/* One more, unless there is one like it. */
static inline void amp__operands_add(struct amp__operands *operands, struct amp__operand operand) {
    for (size_t i = 0; i < operands->n; i++) {
        const struct amp__operand *known = &operands->distinct[i];
        if (known->dtype == operand.dtype && known->in_list == operand.in_list &&
            known->read_write == operand.read_write)
            return;
    }
    if (operands->n < AMP_COUNT(operands->distinct)) operands->distinct[operands->n++] = operand;
}
/* The one floating type of all operands, DEFAULT if there are several or none. */
amp_dtype amp__operands_type(const struct amp__operands *operands);
bool amp__operands_all_fp32(const struct amp__operands *operands);

/* The operands to cast, and their type. */
struct amp__ruling {
    amp_dtype target;    /* AMP_DTYPE_DEFAULT: nothing is cast */
    uint8_t casts;       /* the types that are cast to it: bits 1 << amp_dtype */
    bool lists_only;     /* and only those in lists */
    amp_dtype refused;   /* with a status: the type that it is about */
    amp_status status;   /* AMP_ERR_BANNED, or AMP_ERR_UNSUPPORTED for an in-place op that would need a wider self */
};

enum {
    AMP__UP_TO_FP32 = 1 << AMP_FLOAT32 | 1 << AMP_FLOAT16 | 1 << AMP_BFLOAT16,
    AMP__FLOATING = AMP__UP_TO_FP32 | 1 << AMP_FLOAT64
};

/* Whatever of these types comes becomes `target`. */
static inline struct amp__ruling amp__ruling_to(amp_dtype target, unsigned types) {
    const unsigned casts = target == AMP_DTYPE_DEFAULT ? 0 : types & ~(1u << target);
    return (struct amp__ruling){ .target = target, .casts = (uint8_t)casts };
}

/* An op of this class with its target given. */
struct amp__ruling amp__ruling_for(const struct amp__properties *properties, amp_class op_class, amp_dtype target);
struct amp__ruling amp__ruling_on(const struct amp__properties *properties, amp_class op_class,
                                  const struct amp__operand *operands, size_t n);

/* The error of a ruling with a status, for op `name`, AMP_OK without one. */
amp_status amp__ruling_error(struct amp__ruling ruling, const char *name);

/* Must this one operand be cast? */
static inline bool amp__needs_cast(const struct amp__ruling *ruling, const struct amp__operand *operand) {
    return amp__is_floating(operand->dtype) && ruling->casts >> operand->dtype & 1 && !operand->read_write &&
           (operand->in_list || !ruling->lists_only);
}

#endif
