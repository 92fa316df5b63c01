/* SPDX-License-Identifier: Apache-2.0 */
/* The operands of a call: the handles that the policy may cast, and their types. */
#ifndef AMP_OPERANDS_H
#define AMP_OPERANDS_H

#include "call/call.h"
#include "raw/raw.h"

/* The distinct ones: what the decision depends on, whatever the length of its lists. */
struct amp__operands {
    struct amp__operand distinct[5 * 4];
    size_t n;       /* distinct */
    size_t tensors; /* handles that could be cast */
    bool has_work;  /* the host's visit emitted something to compute with */
};

static inline void amp__operands_clear(struct amp__operands *operands) {
    operands->n = operands->tensors = 0;
    operands->has_work = false;
}

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

static inline struct amp__operand amp__operand_of(const amp_host *host, void *tensor, uint16_t flags) {
    return (struct amp__operand){ amp__host_dtype(host, tensor), (flags & AMP__LIST) != 0,
                                  (flags & AMP__READ_WRITE) != 0 };
}

/* A handle of a direct call, and what it is to the op: AMP_DTYPE_OTHER, where it is no operand. */
struct amp__handle {
    void *tensor;
    struct amp__operand operand;
};

/* Is argument i a raw buffer that the op computes with? */
static inline bool amp__is_work_buffer(const struct amp__call *call, uint32_t i) {
    const struct amp__arg *arg = &call->schema->args[i];
    return arg->kind == AMP__BUFFER && !(arg->flags & (AMP__KEEP | AMP__SEED)) && amp__call_pointer(call, i);
}

/* Handles inside structs are operands too. Hosts of raw buffers alone have no cast, and no handles. */
static inline bool amp__looks_for_handles(const struct amp__op *op) { return op->host->cast && amp__visits(op); }

amp_status amp__operands_gather(struct amp__operands *operands, const struct amp__op *op, const struct amp__call *call);
/* The one floating type of all operands, DEFAULT if there are several or none. */
amp_dtype amp__operands_type(const struct amp__operands *operands);
bool amp__operands_all_fp32(const struct amp__operands *operands);

/* Is there anything to compute with: an operand, a buffer, or what the host's visit emits? */
amp_status amp__call_has_work(const struct amp__op *op, const struct amp__call *call,
                              const struct amp__operands *operands, bool *found);

#endif
