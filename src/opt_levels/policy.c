/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sources: apex/amp/wrap.py for the classes; the whole promotion lattice instead of Apex's {half, float} only.
 * An op that updates an argument in place keeps that argument's type and casts the others to it (Apex: in-place
 * methods), and is never run on a copy of it.
 */
#include "opt_levels/policy.h"
#include "opt_levels/lists.h"

/* Returns the type of the operand that the op updates in place, or DEFAULT if there is no floating one. */
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

/* The low type and FP32 take fp64's place only where the list set says so. */
struct amp__ruling amp__ruling_for(const struct amp__properties *properties, amp_class op_class, amp_dtype target) {
    const bool promotes = op_class == AMP_PROMOTE || op_class == AMP_PROMOTE_SEQUENCE;
    const bool casts_fp64 = promotes || amp__lists_cast_fp64(properties->lists);
    struct amp__ruling ruling = amp__ruling_to(target, casts_fp64 ? AMP__FLOATING : AMP__UP_TO_FP32);
    ruling.lists_only = op_class == AMP_PROMOTE_SEQUENCE;
    return ruling;
}

struct amp__ruling amp__ruling_on(const struct amp__properties *properties, amp_class op_class,
                                  const struct amp__operand *operands, size_t n) {
    struct amp__ruling ruling = { .status = AMP_OK };
    if (op_class == AMP_BANNED) {
        ruling.refused = any_low(operands, n);
        if (ruling.refused) ruling.status = AMP_ERR_BANNED;
        return ruling;
    }
    const amp_dtype updated = in_place_type(operands, n);
    amp_dtype target = target_of(properties, op_class, operands, n);
    if (updated != AMP_DTYPE_DEFAULT && target != AMP_DTYPE_DEFAULT) {
        if (op_class == AMP_FP32 && amp__is_low(updated))
            return (struct amp__ruling){ .refused = updated, .status = AMP_ERR_UNSUPPORTED };
        target = updated;
    }
    ruling = amp__ruling_for(properties, op_class, target);
    for (size_t i = 0; i < n; i++)
        if (amp__needs_cast(&ruling, &operands[i])) return ruling;
    return (struct amp__ruling){ .status = AMP_OK }; /* all agree already */
}

amp_status amp__ruling_error(struct amp__ruling ruling, const char *name) {
    char base[AMP__OP_NAME_MAX + 1];
    amp__op_base_name(name, base);
    AMP_RETURN_IF(ruling.status == AMP_ERR_BANNED, AMP_ERR_BANNED, "op %s is banned with %s arguments: %s", name,
                  amp__dtype_name(ruling.refused), amp__banned_advice(base));
    AMP_RETURN_IF(ruling.status == AMP_ERR_UNSUPPORTED, AMP_ERR_UNSUPPORTED,
                  "op %s works in place on a %s tensor but belongs to FP32: use the op that returns a new tensor, or "
                  "register it as AMP_LEAVE", name, amp__dtype_name(ruling.refused));
    return ruling.status;
}

amp_dtype amp__operands_type(const struct amp__operands *operands) {
    amp_dtype type = AMP_DTYPE_DEFAULT;
    for (size_t i = 0; i < operands->n; i++) {
        const amp_dtype dtype = operands->distinct[i].dtype;
        if (!amp__is_floating(dtype)) continue;
        if (type != AMP_DTYPE_DEFAULT && type != dtype) return AMP_DTYPE_DEFAULT;
        type = dtype;
    }
    return type;
}

bool amp__operands_all_fp32(const struct amp__operands *operands) {
    for (size_t i = 0; i < operands->n; i++)
        if (amp__is_floating(operands->distinct[i].dtype) && operands->distinct[i].dtype != AMP_FLOAT32) return false;
    return true;
}
