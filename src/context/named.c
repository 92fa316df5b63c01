/* SPDX-License-Identifier: Apache-2.0 */
/* The ops of a context by name: a host may ask about thousands, one by one. And names that mean something: batch norm's
 * ops, two parameters with one name. */
#include "context/context.h"
#include "context/findings.h"
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
    struct amp__names *names = &context->wiring.op_names;
    for (size_t i = 0; i < context->n_models; i++)
        for (size_t j = 0; j < context->models[i].n_ops; j++) AMP_TRY(add_op(names, &context->models[i].ops[j]));
    return amp__names_sort(names);
}

/* Once, for all that will be asked. */
static amp_status need_names(amp_context *context) {
    if (atomic_load_explicit(&context->wiring.op_names.sorted, memory_order_acquire)) return AMP_OK;
    pthread_mutex_lock(&context->lock);
    amp_status status = AMP_OK;
    if (!context->wiring.op_names.sorted) {
        status = fill(context);
        if (status != AMP_OK) amp__names_free(&context->wiring.op_names);
    }
    pthread_mutex_unlock(&context->lock);
    return status;
}

amp_status amp__ops_named(amp_context *context, const char *name, const struct amp__keyed **entries, size_t *n) {
    AMP_TRY(need_names(context));
    *entries = amp__names_find(&context->wiring.op_names, 0, name, n);
    return AMP_OK;
}

bool amp__op_is_numbered(const struct amp__op *op, const char *name) {
    char text[AMP__OP_NAME_MAX + 16];
    return !strcmp(name, numbered_name(op, text));
}

bool amp__op_is_norm(const struct amp__op *op) {
    return strstr(op->name, "batch_norm") || strstr(op->name, "batchnorm");
}

/* ---- batch norm ---- */

bool amp__norm_is_missing(const amp_context *context) {
    const struct amp__properties *properties = &context->policy.properties;
    if (!amp__retypes(properties) || !properties->keep_batchnorm_fp32 || !context->params.n) return false;
    for (size_t i = 0; i < context->params.n; i++)
        if (context->params.list[i]->module_kind == AMP_MODULE_BATCH_NORM) return false;
    return true;
}

static bool runs_norm(const struct amp__op *listed) {
    const struct amp__op *op = listed->shares ? listed->shares : listed;
    return op->wrapped && amp__op_is_norm(op) && (amp__op_calls(op) || amp__op_passed(op));
}

void amp__norm_check(amp_context *context) {
    const bool missing = amp__norm_is_missing(context);
    for (size_t i = 0; i < context->n_models && missing; i++)
        for (size_t j = 0; j < context->models[i].n_ops; j++) {
            const struct amp__op *op = &context->models[i].ops[j];
            if (!runs_norm(op)) continue;
            amp__find(context, AMP__NORM_UNSAID, op->name, "level %s: op %s was called, and none of %zu parameters is "
                      "said to be batch norm's", amp__level_name(context->policy.properties.level), op->name,
                      context->params.n);
            return;
        }
}

/* ---- parameters ---- */

/* The same storage under two handles is one parameter. */
static bool are_two(const struct amp__param *a, const struct amp__param *b) {
    return !strcmp(a->name, b->name) && (!a->address || a->address != b->address);
}

void amp__params_check_names(amp_context *context, size_t first, size_t model) {
    enum { NAMED = 3 };
    struct amp__names names = { 0 };
    char list[256] = "", subject[32];
    amp__text text = { list, sizeof list, 0 };
    amp_status status = AMP_OK;
    size_t twice = 0;
    for (size_t i = first; i < context->params.n && status == AMP_OK; i++)
        status = amp__names_add(&names, 0, context->params.list[i]->name, context->params.list[i]);
    if (status == AMP_OK) status = amp__names_sort(&names);
    for (size_t i = 1; i < names.n && status == AMP_OK; i++) {
        const struct amp__param *param = names.entries[i].value, *before = names.entries[i - 1].value;
        if (names.entries[i].key != names.entries[i - 1].key || !are_two(param, before)) continue;
        if (twice++ < NAMED) amp__text_add(&text, twice > 1 ? ", %s" : "%s", param->name);
    }
    amp__names_free(&names);
    snprintf(subject, sizeof subject, "model %zu", model);
    if (twice)
        amp__find(context, AMP__NAMED_TWICE, subject, "%s: %zu parameters have the name of another one: %s%s", subject,
                  twice, list, twice > NAMED ? ", ..." : "");
}
