/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of const tables with wrappers in them. The slots are looked up by address in the process's registry, not in
 * the context, so that one copy serves every context on the table. */
#include "amp_call.h"
#include "context/op.h"
#include "context/optimizer.h"
#include "context/parts.h"
#include "system/system.h"

static bool lies_in(const struct amp__op *op, const void *table, size_t bytes) {
    const uintptr_t at = (uintptr_t)op->slot, from = (uintptr_t)table;
    return (op->flags & AMP_OP_COPY) && at >= from && at - from <= bytes && bytes - (at - from) >= sizeof(amp_fn);
}

static bool any_lies_in(const struct amp__op *ops, size_t n, const void *table, size_t bytes) {
    for (size_t i = 0; i < n; i++)
        if (lies_in(&ops[i], table, bytes)) return true;
    return false;
}

static bool has_ops_in(const amp_context *context, const void *table, size_t bytes) {
    const struct amp__models *models = amp__models_of(context);
    const struct amp__optimizers *optimizers = amp__optimizers_of(context);
    for (size_t i = 0; i < models->n; i++) {
        const struct amp__model *model = &models->list[i];
        if (any_lies_in(model->ops, model->n_ops, table, bytes)) return true;
        if (model->has_forward && lies_in(&model->forward, table, bytes)) return true;
    }
    for (size_t i = 0; i < optimizers->n; i++) {
        const struct amp__optimizer *optimizer = &optimizers->list[i];
        if (any_lies_in(optimizer->slots.steps, optimizer->slots.n_steps, table, bytes)) return true;
        if (any_lies_in(optimizer->slots.zero_grads, optimizer->slots.n_zero_grads, table, bytes)) return true;
    }
    return false;
}

/* Looked at page by page: nothing is written if one of them does not take it. */
static bool is_writable(const void *copy, size_t bytes) {
    struct amp__mapping known = { 0 };
    for (uintptr_t at = (uintptr_t)copy, end = at + bytes; at < end; at = known.to) {
        const enum amp__access access = amp__access_of((const void *)at, &known);
        if (access == AMP__ACCESS_UNKNOWN) return true;
        if (access != AMP__ACCESS_WRITE) return false;
    }
    return true;
}

AMP_API amp_status amp_wrap_table(amp_context *context, const void *table, size_t bytes, void *copy) {
    const uintptr_t from = (uintptr_t)table, to = (uintptr_t)copy;
    AMP_RETURN_IF(!context || !table || !copy, AMP_ERR_INVALID_ARGUMENT, "amp_wrap_table: %s is NULL",
                  !context ? "context" : !table ? "table" : "copy");
    AMP_RETURN_IF(bytes > UINTPTR_MAX - from || bytes > UINTPTR_MAX - to, AMP_ERR_INVALID_ARGUMENT,
                  "amp_wrap_table: %zu byte%s cannot be", bytes, AMP__S(bytes));
    AMP_RETURN_IF(from < to + bytes && to < from + bytes, AMP_ERR_INVALID_ARGUMENT,
                  "amp_wrap_table: copy and table overlap: the copy needs %zu byte%s of its own", bytes, AMP__S(bytes));
    AMP_RETURN_IF(!has_ops_in(context, table, bytes), AMP_ERR_NOT_FOUND,
                  "amp_wrap_table: no op of this context with AMP_OP_COPY has its slot in the %zu byte%s at %p: "
                  "describe the ops with slots in the const table itself", bytes, AMP__S(bytes),
                  (void *)(uintptr_t)table);
    AMP_RETURN_IF(!is_writable(copy, bytes), AMP_ERR_READ_ONLY,
                  "amp_wrap_table: the copy at %p cannot be written: give %zu byte%s of writable memory", copy, bytes,
                  AMP__S(bytes));
    amp__table_copy(copy, table, bytes);
    return AMP_OK;
}
