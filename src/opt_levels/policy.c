/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sources: apex/amp/wrap.py for the classes; the whole promotion lattice instead of Apex's {half, float} only.
 * An op that updates an argument in place keeps that argument's type and casts the others to it (Apex: in-place
 * methods), and is never run on a copy of it.
 */
#include "opt_levels/policy.h"
#include "opt_levels/lists.h"

bool amp__policy_casts_fp64(const struct amp__properties *properties) {
    return amp__lists_cast_fp64(properties->lists);
}

/* The type of what the op updates in place; DEFAULT if it updates nothing floating. */
static amp_dtype in_place_type(const struct amp__operand *operands, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (operands[i].read_write && amp__is_floating(operands[i].dtype)) return operands[i].dtype;
    return AMP_DTYPE_DEFAULT;
}

static amp_dtype widest(const struct amp__operand *operands, size_t n, bool lists_only) {
    amp_dtype type = AMP_DTYPE_DEFAULT;
    for (size_t i = 0; i < n; i++)
        if (amp__is_floating(operands[i].dtype) && (operands[i].in_list || !lists_only))
            type = amp__promote(type, operands[i].dtype);
    return type;
}

/* DEFAULT if none is 16-bit. */
static amp_dtype any_low(const struct amp__operand *operands, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (amp__is_low(operands[i].dtype)) return operands[i].dtype;
    return AMP_DTYPE_DEFAULT;
}

static amp_dtype target_of(const struct amp__properties *properties, amp_class op_class,
                           const struct amp__operand *operands, size_t n) {
    switch (op_class) {
    case AMP_LOWER: return properties->low;
    case AMP_FP32: return AMP_FLOAT32;
    case AMP_PROMOTE: return widest(operands, n, false);
    case AMP_PROMOTE_SEQUENCE: return widest(operands, n, true);
    default: return AMP_DTYPE_DEFAULT;
    }
}

struct amp__decision amp__decide(const struct amp__properties *properties, amp_class op_class,
                                 const struct amp__operand *operands, size_t n) {
    struct amp__decision decision = { AMP_DTYPE_DEFAULT, AMP_DTYPE_DEFAULT, AMP_OK };
    if (op_class == AMP_BANNED) {
        decision.refused = any_low(operands, n);
        if (decision.refused) decision.status = AMP_ERR_BANNED;
        return decision;
    }
    const amp_dtype updated = in_place_type(operands, n);
    decision.target = target_of(properties, op_class, operands, n);
    if (updated != AMP_DTYPE_DEFAULT && decision.target != AMP_DTYPE_DEFAULT) {
        if (op_class == AMP_FP32 && amp__is_low(updated)) {
            decision = (struct amp__decision){ AMP_DTYPE_DEFAULT, updated, AMP_ERR_UNSUPPORTED };
            return decision;
        }
        decision.target = updated;
    }
    for (size_t i = 0; i < n; i++)
        if (amp__operand_needs_cast(properties, op_class, &operands[i], decision.target)) return decision;
    decision.target = AMP_DTYPE_DEFAULT; /* all agree already */
    return decision;
}

amp_status amp__decision_error(struct amp__decision decision, const char *name) {
    char base[AMP__OP_NAME_MAX + 1];
    amp__op_base_name(name, base);
    AMP_RETURN_IF(decision.status == AMP_ERR_BANNED, AMP_ERR_BANNED, "op %s is banned with %s arguments: %s", name,
                  amp__dtype_name(decision.refused), amp__banned_advice(base));
    AMP_RETURN_IF(decision.status == AMP_ERR_UNSUPPORTED, AMP_ERR_UNSUPPORTED,
                  "op %s works in place on a %s tensor but belongs to FP32: use the op that returns a new tensor, or "
                  "register it as AMP_LEAVE", name, amp__dtype_name(decision.refused));
    return decision.status;
}
