/* SPDX-License-Identifier: Apache-2.0 */
/* The ops of a context by name: a host may ask about thousands, one by one. */
#include "context/context.h"
#include "context/op.h"

#include <stdio.h>
#include <string.h>

static const char *numbered_name(const struct amp__op *op, char text[AMP__OP_NAME_MAX + 16]) {
    snprintf(text, AMP__OP_NAME_MAX + 16, "%s#%u", op->name, (unsigned)op->index);
    return text;
}

static amp_status add_op(struct amp__names *names, struct amp__op *op) {
    char text[AMP__OP_NAME_MAX + 16];
    AMP_TRY(amp__names_add(names, 0, op->name, op));
    return amp__names_add(names, 0, numbered_name(op, text), op);
}

static amp_status fill(amp_context *context) {
    struct amp__names *names = &context->op_names;
    for (size_t i = 0; i < context->n_models; i++)
        for (size_t j = 0; j < context->models[i].n_ops; j++) AMP_TRY(add_op(names, &context->models[i].ops[j]));
    return amp__names_sort(names);
}

/* Once, for all that will be asked. */
static amp_status need_names(amp_context *context) {
    if (atomic_load_explicit(&context->op_names.sorted, memory_order_acquire)) return AMP_OK;
    pthread_mutex_lock(&context->lock);
    amp_status status = AMP_OK;
    if (!context->op_names.sorted) {
        status = fill(context);
        if (status != AMP_OK) amp__names_free(&context->op_names);
    }
    pthread_mutex_unlock(&context->lock);
    return status;
}

amp_status amp__ops_named(amp_context *context, const char *name, const struct amp__keyed **entries, size_t *n) {
    AMP_TRY(need_names(context));
    *entries = amp__names_find(&context->op_names, 0, name, n);
    return AMP_OK;
}

bool amp__op_is_numbered(const struct amp__op *op, const char *name) {
    char text[AMP__OP_NAME_MAX + 16];
    return !strcmp(name, numbered_name(op, text));
}

bool amp__op_is_norm(const struct amp__op *op) {
    return strstr(op->name, "batch_norm") || strstr(op->name, "batchnorm");
}
