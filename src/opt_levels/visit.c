/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers and handles inside the host's structs, which only the host's hook visit can find. */
#include "opt_levels/raw.h"

#include <string.h>

bool amp__visits(const struct amp__op *op) {
    if (!op->host->visit || !op->schema) return false;
    for (uint32_t i = 0; i < op->schema->n_args; i++)
        if (op->schema->args[i].kind == AMP__STRUCT || op->schema->args[i].kind == AMP__STRUCT_POINTER) return true;
    return false;
}

struct visitor {
    struct amp__raw *raw; /* NULL: handles only */
    amp__take_tensor *take;
    void *user;
};

static amp_status check_field(const amp_field *field) {
    const char *name = field->name ? field->name : "a field";
    AMP_RETURN_IF(field->role < AMP_ROLE_READ || field->role > AMP_ROLE_SEED || field->size < 0 ||
                      (!field->address && !field->tensor),
                  AMP_ERR_INVALID_ARGUMENT, "visit: %s has no address, a negative size or an unknown role %d", name,
                  (int)field->role);
    AMP_RETURN_IF(field->address && field->tensor, AMP_ERR_INVALID_ARGUMENT,
                  "visit: %s is emitted as a buffer and as a tensor: set address or tensor, not both", name);
    AMP_RETURN_IF(field->tensor && (field->role == AMP_ROLE_SCRATCH || field->role == AMP_ROLE_SEED),
                  AMP_ERR_UNSUPPORTED, "visit: %s is a tensor, which cannot be %s", name,
                  field->role == AMP_ROLE_SEED ? "a seed: give the hook scale, and the loss to amp_scale_loss_begin"
                                               : "scratch: only buffers can; do not emit it");
    return AMP_OK;
}

static amp_status take(void *self, const amp_field *given) {
    const struct visitor *visitor = self;
    amp_field field = AMP_FIELD_INIT;
    AMP_TRY(amp__copy_struct(&field, sizeof field, sizeof field, given, given->struct_size, "amp_field"));
    AMP_TRY(check_field(&field));
    if (!field.tensor) return visitor->raw ? amp__raw_field(visitor->raw, &field) : AMP_OK;
    return field.role == AMP_ROLE_KEEP || !*field.tensor ? AMP_OK : visitor->take(visitor->user, &field);
}

amp_status amp__visit_look(const struct amp__op *op, const struct amp__call *call, amp__take_tensor *take_tensor,
                           void *user) {
    struct visitor visitor = { NULL, take_tensor, user };
    return amp__host_visit(op->host, op->name, call->args, take, &visitor);
}

/* Structs by value are copied, so that the caller's own never changes; what they point to is the host's. */
amp_status amp__visit(const struct amp__call *call, void **argv, struct amp__raw *raw, amp__take_tensor *take_tensor,
                      void *user) {
    struct visitor visitor = { raw, take_tensor, user };
    for (uint32_t i = 0; i < call->schema->n_args; i++) {
        if (call->schema->args[i].kind != AMP__STRUCT) continue;
        const size_t size = amp__arg_size(call->schema, &call->schema->args[i]);
        void *copy = amp__casting_memory(raw->casting, size);
        if (!copy) return amp__fail_memory();
        memcpy(copy, argv[i], size);
        argv[i] = copy;
    }
    return amp__host_visit(raw->casting->host, raw->casting->op->name, argv, take, &visitor);
}
