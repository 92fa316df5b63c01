/* SPDX-License-Identifier: Apache-2.0 */
/* The extents of a raw buffer in one call. Sizes come from the host's integers: every step is checked. */
#include "intercept/intercept.h"

#include <string.h>

/* Returns NULL, or the fault. */
static const char *apply(uint8_t code, int64_t a, int64_t b, int64_t *result) {
    static const char overflow[] = "it overflows 64 bits";
    switch (code) {
    case AMP__OP_MULTIPLY: return __builtin_mul_overflow(a, b, result) ? overflow : NULL;
    case AMP__OP_ADD: return __builtin_add_overflow(a, b, result) ? overflow : NULL;
    case AMP__OP_SUBTRACT: return __builtin_sub_overflow(a, b, result) ? overflow : NULL;
    case AMP__OP_DIVIDE:
    case AMP__OP_REMAINDER:
        if (b == 0) return "it divides by zero";
        if (b == -1 && a == INT64_MIN) return overflow;
        *result = code == AMP__OP_DIVIDE ? a / b : a % b;
        return NULL;
    case AMP__OP_LESS: *result = a < b; return NULL;
    case AMP__OP_LESS_EQUAL: *result = a <= b; return NULL;
    case AMP__OP_GREATER: *result = a > b; return NULL;
    case AMP__OP_GREATER_EQUAL: *result = a >= b; return NULL;
    case AMP__OP_EQUAL: *result = a == b; return NULL;
    default: *result = a != b; return NULL;
    }
}

static const char *load(const struct amp__call *call, uint32_t arg, int64_t *result) {
    *result = amp__call_integer(call, arg);
    /* The helper saturates: an unsigned argument of exactly that value is refused too, and is no extent either. */
    if (call->schema->args[arg].kind == AMP__UINT64 && *result == INT64_MAX) return "an argument overflows 64 bits";
    return NULL;
}

/* Read when the extent is needed: the struct or integer is the host's, or the copy that the op was passed. */
static const char *load_field(const struct amp__call *call, struct amp__member field, int64_t *result) {
    const char *base = call->args[field.argument];
    if (call->schema->args[field.argument].kind != AMP__STRUCT) memcpy(&base, (const void *)base, sizeof base);
    if (!base) return "its pointer is NULL";
    *result = amp__integer_at(field.kind, base + field.offset);
    if (field.kind == AMP__UINT64 && *result == INT64_MAX) return "a member overflows 64 bits";
    return NULL;
}

/* Returns NULL, or the fault. The compiler balances the stack and jumps forward only, so neither is checked here. */
static const char *run(const struct amp__call *call, const struct amp__expression *expression, int64_t *result) {
    int64_t stack[AMP__MAX_OPERATIONS], *top = stack; /* one above the last */
    for (uint32_t i = 0; i < expression->n; i++) {
        const struct amp__operation *op = &expression->operations[i];
        const char *wrong = NULL;
        switch (op->code) {
        case AMP__OP_CONSTANT: *top++ = op->value; break;
        case AMP__OP_ARGUMENT: wrong = load(call, (uint32_t)op->value, top++); break;
        case AMP__OP_FIELD: wrong = load_field(call, amp__member_unpack(op->value), top++); break;
        case AMP__OP_NEGATE: wrong = apply(AMP__OP_SUBTRACT, 0, top[-1], &top[-1]); break;
        case AMP__OP_NOT: top[-1] = !top[-1]; break;
        case AMP__OP_BOOLEAN: top[-1] = top[-1] != 0; break;
        case AMP__OP_AND:
            if (top[-1] == 0) i = (uint32_t)op->value - 1;
            else top--;
            break;
        case AMP__OP_OR:
            if (top[-1] != 0) {
                top[-1] = 1;
                i = (uint32_t)op->value - 1;
            } else top--;
            break;
        case AMP__OP_BRANCH:
            if (*--top == 0) i = (uint32_t)op->value - 1;
            break;
        case AMP__OP_JUMP: i = (uint32_t)op->value - 1; break;
        default:
            top--;
            wrong = apply(op->code, top[-1], top[0], &top[-1]);
        }
        if (wrong) return wrong;
    }
    *result = stack[0];
    return NULL;
}

static amp_status fault(const struct amp__call *call, const struct amp__arg *arg,
                        const struct amp__expression *expression, const char *wrong) {
    return amp__fail(AMP_ERR_INVALID_ARGUMENT, "op %.128s: %.64s: extent %.*s: %s", call->schema->name, arg->name,
                     expression->length < 128 ? (int)expression->length : 128, expression->text, wrong);
}

static amp_status evaluate(const struct amp__call *call, const struct amp__arg *arg,
                           const struct amp__expression *expression, int64_t *result) {
    const char *wrong = run(call, expression, result);
    if (wrong) return fault(call, arg, expression, wrong);
    AMP_RETURN_IF(*result < 0, AMP_ERR_INVALID_ARGUMENT, "op %.128s: %.64s: extent %.*s: it is negative (%lld)",
                  call->schema->name, arg->name, expression->length < 128 ? (int)expression->length : 128,
                  expression->text, (long long)*result);
    return AMP_OK;
}

/* Returns NULL, or the fault. All rows, those of outer dimensions included, are one row stride apart. */
static const char *measure(struct amp__extents *extents, size_t element) {
    static const char overflow[] = "together with the others it overflows 64 bits";
    const int32_t last = extents->ndim - 1;
    int64_t rows = 1, bytes;
    for (int32_t i = 0; i <= last; i++)
        if (extents->shape[i] == 0) return NULL; /* nothing overflows or overlaps where there is nothing */
    for (int32_t i = 0; i < last; i++)
        if (__builtin_mul_overflow(rows, extents->shape[i], &rows)) return overflow;
    if (rows > 1 && extents->row_stride < extents->shape[last])
        return "the row stride is less than a row: rows would overlap";
    if (__builtin_mul_overflow(rows, extents->shape[last], &extents->count)
        || __builtin_mul_overflow(rows - 1, extents->row_stride, &extents->span)
        || __builtin_add_overflow(extents->span, extents->shape[last], &extents->span)
        || __builtin_mul_overflow(extents->span, (int64_t)element, &bytes)) /* the span is no less than the count */
        return overflow;
    return NULL;
}

amp_status amp__buffer_extents(const struct amp__call *call, uint32_t number, struct amp__extents *out) {
    const struct amp__arg *arg = &call->schema->args[number];
    const struct amp__expression *expressions = call->schema->expressions + arg->first_extent;
    struct amp__extents extents = { .ndim = arg->ndim };
    AMP_RETURN_IF(arg->kind != AMP__BUFFER || !arg->ndim, AMP_ERR_INVALID_ARGUMENT,
                  "op %.128s: %.64s: the schema does not say its extents", call->schema->name, arg->name);
    for (uint32_t i = 0; i < arg->ndim; i++) AMP_TRY(evaluate(call, arg, &expressions[i], &extents.shape[i]));
    extents.row_stride = extents.shape[arg->ndim - 1];
    /* The stride is behind the extents. Without one the fault is shown at the last extent. */
    const struct amp__expression *last = &expressions[arg->ndim - 1];
    if (arg->flags & AMP__STRIDED) AMP_TRY(evaluate(call, arg, ++last, &extents.row_stride));
    const char *wrong = measure(&extents, amp__dtype_size(arg->dtype));
    if (wrong) return fault(call, arg, last, wrong);
    *out = extents;
    return AMP_OK;
}
