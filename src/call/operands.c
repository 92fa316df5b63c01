/* SPDX-License-Identifier: Apache-2.0 */
#include "amp_raw.h"
#include "call/operands.h"
#include "context/op.h"

static void add_operand(struct amp__operands *operands, const amp_host *host, void *tensor, uint16_t flags) {
    if (!tensor) return;
    operands->tensors++;
    amp__operands_add(operands, amp__operand_of(host, tensor, flags));
}

static void gather(struct amp__operands *operands, const amp_host *host, const struct amp__call *call) {
    for (uint32_t i = 0; i < call->schema->n_args; i++) {
        const struct amp__arg *arg = &call->schema->args[i];
        size_t n = 0;
        void *const *handles = amp__is_operand(arg) ? amp__call_handles(call, i, &n) : NULL;
        for (size_t j = 0; j < n; j++) add_operand(operands, host, handles[j], arg->flags);
    }
}

/* Handles inside structs. */
struct looker {
    struct amp__operands *operands;
    const amp_host *host;
};

static amp_status note_field(void *self, const amp_field *field) {
    const struct looker *looker = self;
    if (!amp__is_work(field)) return AMP_OK;
    looker->operands->has_work = true;
    if (field->tensor && field->role != AMP_ROLE_WRITE)
        add_operand(looker->operands, looker->host, *field->tensor,
                    field->role == AMP_ROLE_UPDATE ? AMP__READ_WRITE : 0);
    return AMP_OK;
}

amp_status amp__operands_gather(struct amp__operands *operands, const struct amp__op *op,
                                const struct amp__call *call) {
    struct looker looker = { operands, op->host };
    amp__operands_clear(operands);
    gather(operands, op->host, call);
    return amp__looks_for_handles(op) ? amp__visit_look(op, call, note_field, &looker) : AMP_OK;
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

/* ---- work ---- */

static amp_status note_work(void *self, const amp_field *field) {
    *(bool *)self |= amp__is_work(field);
    return AMP_OK;
}

amp_status amp__call_has_work(const struct amp__op *op, const struct amp__call *call,
                              const struct amp__operands *operands, bool *found) {
    *found = operands->tensors || operands->has_work;
    for (uint32_t i = 0; i < call->schema->n_args && !*found; i++) *found = amp__is_work_buffer(call, i);
    if (*found || !amp__visits(op) || amp__looks_for_handles(op)) return AMP_OK; /* which was seen then */
    return amp__visit_look(op, call, note_work, found);
}
