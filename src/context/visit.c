/* SPDX-License-Identifier: Apache-2.0 */
#include "context/visit.h"

#include <stddef.h>
#include <stdio.h>

/* A visit. The first fault is reported, even if the hook drops it. */
struct visitor {
    amp__take_field *take;
    void *user;
    amp_status fault;
    char text[512];
};

/* A buffer that memory cannot hold, wherever it lies. */
static bool is_too_large(const amp_field *field) {
    if (!field->address || !*field->address) return false;
    const uintptr_t at = (uintptr_t)*field->address;
    return at > PTRDIFF_MAX || (uint64_t)field->size > (PTRDIFF_MAX - at) / sizeof(float);
}

static amp_status check_field(const amp_field *field) {
    AMP_RETURN_IF(field->role < AMP_ROLE_READ || field->role > AMP_ROLE_SEED, AMP_ERR_INVALID_ARGUMENT,
                  "its role is %d, which is none of AMP_ROLE_*", (int)field->role);
    AMP_RETURN_IF(!field->address && !field->tensor, AMP_ERR_INVALID_ARGUMENT,
                  "it has neither an address nor a tensor: set one of them");
    AMP_RETURN_IF(field->address && field->tensor, AMP_ERR_INVALID_ARGUMENT,
                  "it is emitted as a buffer and as a tensor: set address or tensor, not both");
    AMP_RETURN_IF(field->size < 0 || is_too_large(field), AMP_ERR_INVALID_ARGUMENT,
                  "its size is %lld element%s, which no buffer has", (long long)field->size, AMP__S(field->size));
    AMP_RETURN_IF(field->tensor && (field->role == AMP_ROLE_SCRATCH || field->role == AMP_ROLE_SEED),
                  AMP_ERR_UNSUPPORTED, "it is a tensor, which cannot be %s",
                  field->role == AMP_ROLE_SEED ? "a seed: give the hook scale, and the loss to amp_scale_loss_begin"
                                               : "scratch: only buffers can; do not emit it");
    return AMP_OK;
}

/* Returns true for fields other than KEEP, which need not be emitted, and seeds, which stay FP32 and need no
 * implementation. */
bool amp__is_work(const amp_field *field) {
    const bool there = field->tensor ? *field->tensor != NULL : *field->address && field->size;
    return there && field->role != AMP_ROLE_KEEP && field->role != AMP_ROLE_SEED;
}

static amp_status take_one(struct visitor *visitor, const amp_field *given) {
    amp_field field;
    AMP_RETURN_IF(!given, AMP_ERR_INVALID_ARGUMENT, "emit was given NULL instead of an amp_field");
    AMP_TRY(amp__copy_struct(&field, sizeof field, sizeof field, given, given->struct_size, "amp_field"));
    AMP_TRY(check_field(&field));
    return visitor->take(visitor->user, &field);
}

static amp_status take(void *self, const amp_field *given) {
    struct visitor *visitor = self;
    const amp_status status = take_one(visitor, given);
    if (status == AMP_OK) return AMP_OK;
    const char *name = given && given->struct_size >= offsetof(amp_field, tensor) ? given->name : NULL;
    if (visitor->fault == AMP_OK) {
        (void)amp__fail_prefix(status, "visit: %s", name ? name : "a field without a name");
        snprintf(visitor->text, sizeof visitor->text, "%s", amp_last_error());
        visitor->fault = status;
    }
    return status;
}

/* "op conv#2: visit: weights: ..." */
static amp_status run_hook(const struct amp__op *op, void *const *argv, struct visitor *visitor) {
    char label[160];
    if (op->index) snprintf(label, sizeof label, "op %s#%u", op->name, (unsigned)op->index);
    else snprintf(label, sizeof label, "op %s", op->name);
    const amp_status status = amp__host_visit(op->host, op->name, argv, take, visitor);
    if (visitor->fault != AMP_OK) return amp__fail(visitor->fault, "%s: %s", label, visitor->text);
    return status == AMP_OK ? AMP_OK : amp__fail_prefix(status, "%s", label);
}

amp_status amp__visit(const struct amp__op *op, void *const *args, amp__take_field *take_field, void *user) {
    struct visitor visitor = { .take = take_field, .user = user };
    return run_hook(op, args, &visitor);
}
