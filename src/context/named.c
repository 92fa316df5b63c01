/* SPDX-License-Identifier: Apache-2.0 */
/* The ops of a context by name: a host may ask about thousands, one by one. And names that mean something: batch norm's
 * ops, two parameters with one name. */
#include "common/names.h"
#include "context/build.h"
#include "context/findings.h"
#include "context/op.h"
#include "context/params.h"
#include "context/parts.h"
#include "context/policy.h"
#include "context/wiring.h"

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

static amp_status fill(const amp_context *context, struct amp__names *names) {
    const struct amp__models *models = amp__models_of(context);
    for (size_t i = 0; i < models->n; i++)
        for (size_t j = 0; j < models->list[i].n_ops; j++) AMP_TRY(add_op(names, &models->list[i].ops[j]));
    return amp__names_sort(names);
}

/* Builds the table once, for all look-ups. */
static amp_status need_names(const amp_context *context, struct amp__names *names) {
    pthread_mutex_t *lock = amp__lock_of(context);
    if (atomic_load_explicit(&names->sorted, memory_order_acquire)) return AMP_OK;
    pthread_mutex_lock(lock);
    amp_status status = AMP_OK;
    if (!names->sorted) {
        status = fill(context, names);
        if (status != AMP_OK) amp__names_free(names);
    }
    pthread_mutex_unlock(lock);
    return status;
}

amp_status amp__ops_named(amp_context *context, const char *name, const struct amp__keyed **entries, size_t *n) {
    struct amp__names *names = &amp__wiring_of(context)->op_names;
    AMP_TRY(need_names(context, names));
    *entries = amp__names_find(names, 0, name, n);
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
    struct amp__params *params = amp__params_of(context);
    const struct amp__properties *properties = &amp__policy_of(context)->properties;
    if (!amp__retypes(properties) || !properties->keep_batchnorm_fp32 || !params->n) return false;
    for (size_t i = 0; i < params->n; i++)
        if (params->list[i]->module_kind == AMP_MODULE_BATCH_NORM) return false;
    return true;
}

static bool runs_norm(const struct amp__op *listed) {
    const struct amp__op *op = listed->shares ? listed->shares : listed;
    return op->wrapped && amp__op_is_norm(op) && (amp__op_calls(op) || amp__op_passed(op));
}

void amp__norm_check(amp_context *context) {
    const struct amp__models *models = amp__models_of(context);
    const bool missing = amp__norm_is_missing(context);
    for (size_t i = 0; i < models->n && missing; i++)
        for (size_t j = 0; j < models->list[i].n_ops; j++) {
            const struct amp__op *op = &models->list[i].ops[j];
            if (!runs_norm(op)) continue;
            amp__find(context, AMP__NORM_UNSAID, op->name, "level %s: op %s was called, and none of %zu parameters is "
                      "marked as batch norm's", amp__level_name(amp__policy_of(context)->properties.level), op->name,
                      amp__params_of(context)->n);
            return;
        }
}

/* ---- parameters ---- */

/* The same storage under two handles is one parameter. */
static bool are_two(const struct amp__param *a, const struct amp__param *b) {
    return !strcmp(a->name, b->name) && (!a->address || a->address != b->address);
}

void amp__params_check_names(amp_context *context, size_t first, size_t model) {
    struct amp__params *params = amp__params_of(context);
    enum { NAMED = 3 };
    struct amp__names names = { 0 };
    char list[256] = "", subject[32];
    amp__text text = { list, sizeof list, 0 };
    amp_status status = AMP_OK;
    size_t twice = 0;
    for (size_t i = first; i < params->n && status == AMP_OK; i++)
        status = amp__names_add(&names, 0, params->list[i]->name, params->list[i]);
    if (status == AMP_OK) status = amp__names_sort(&names);
    for (size_t i = 1; i < names.n && status == AMP_OK; i++) {
        const struct amp__param *param = names.entries[i].value, *before = names.entries[i - 1].value;
        if (names.entries[i].key != names.entries[i - 1].key || !are_two(param, before)) continue;
        if (twice++ < NAMED) amp__text_add(&text, twice > 1 ? ", %s" : "%s", param->name);
    }
    amp__names_free(&names);
    snprintf(subject, sizeof subject, "model %zu", model);
    if (twice)
        amp__find(context, AMP__NAMED_TWICE, subject, "%s: %zu parameter%s with the name of another one: %s%s", subject,
                  twice, AMP__S(twice), list, twice > NAMED ? ", ..." : "");
}
