/* SPDX-License-Identifier: Apache-2.0 */
/* Registration: the user's word on an op's class, written into the caller's own descriptors. */
#include "api/api.h"
#include "common/names.h"
#include "context/live.h"
#include "context/op.h"
#include "opt_levels/lists.h"
#include "system/system.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static bool name_is(const char *name, const char *wanted) {
    char a[AMP__OP_NAME_MAX + 1], b[AMP__OP_NAME_MAX + 1];
    if (!strcmp(name, wanted)) return true;
    amp__op_base_name(name, a);
    amp__op_base_name(wanted, b);
    return !strcmp(a, b);
}

static bool next_alias(const char **aliases, char alias[AMP__OP_NAME_MAX + 1]) {
    while (*aliases && **aliases) {
        *aliases += strspn(*aliases, " ,");
        const size_t length = strcspn(*aliases, " ,");
        const char *begin = *aliases;
        *aliases += length;
        if (!length || length > AMP__OP_NAME_MAX) continue;
        memcpy(alias, begin, length);
        alias[length] = '\0';
        return true;
    }
    return false;
}

static bool has_alias(const char *aliases, const char *wanted) {
    char alias[AMP__OP_NAME_MAX + 1];
    while (next_alias(&aliases, alias))
        if (name_is(alias, wanted)) return true;
    return false;
}

static amp_op *nth(const amp_model *model, size_t i) {
    return (amp_op *)(void *)((char *)model->ops + i * model->ops->struct_size);
}

static bool matches(const amp_op *op, const char *wanted) {
    return op->name && (name_is(op->name, wanted) || has_alias(op->aliases, wanted) ||
                        (op->backward_of && name_is(op->backward_of, wanted)));
}

/* ---- large tables ---- */

/*
 * The ops of the model that was registered with last, by name, so that thousands of registrations take time in
 * proportion to them. A model says by a number which table is its own. A table that grew is read again.
 */
enum { SMALL = 64, MISSES = 16, BASE = 0, EXACT = 1 };
static struct {
    pthread_mutex_t mutex;
    struct amp__forkable forkable;
    uint64_t serial;
    const amp_op *ops;
    size_t n_ops, missed; /* names that it does not have: the nearest are looked for a few times */
    struct amp__names names;
} last = { .mutex = PTHREAD_MUTEX_INITIALIZER };

static amp_status add_base(struct amp__names *names, const char *text, amp_op *op) {
    char base[AMP__OP_NAME_MAX + 1];
    amp__op_base_name(text, base);
    return amp__names_add(names, BASE, base, op);
}

static amp_status add_aliases(struct amp__names *names, amp_op *op) {
    char alias[AMP__OP_NAME_MAX + 1];
    for (const char *at = op->aliases; next_alias(&at, alias);) AMP_TRY(add_base(names, alias, op));
    return AMP_OK;
}

static amp_status fill_names(struct amp__names *names, const amp_model *model) {
    for (size_t i = 0; i < model->n_ops; i++) {
        amp_op *op = nth(model, i);
        if (!op->name) continue;
        AMP_TRY(add_base(names, op->name, op));
        AMP_TRY(amp__names_add(names, EXACT, op->name, op));
        AMP_TRY(add_aliases(names, op));
        if (op->backward_of) AMP_TRY(add_base(names, op->backward_of, op));
    }
    return amp__names_sort(names);
}

/* Under the mutex: the table of this model. */
static amp_status need_names(amp_model *model) {
    if (model->registered && model->registered == last.serial && model->ops == last.ops && model->n_ops == last.n_ops)
        return AMP_OK;
    amp__names_free(&last.names);
    last.ops = model->ops;
    last.n_ops = model->n_ops;
    last.missed = 0;
    last.serial = model->registered = amp__new_serial();
    const amp_status status = fill_names(&last.names, model);
    if (status != AMP_OK) model->registered = 0;
    return status;
}

static bool may_be_indexed(const amp_model *model) { return model->struct_size >= sizeof *model; }

void amp__register_over(amp_model *model) {
    if (!may_be_indexed(model) || !model->registered) return;
    pthread_mutex_lock(&last.mutex);
    if (model->registered == last.serial) {
        amp__names_free(&last.names);
        last.serial = 0;
    }
    pthread_mutex_unlock(&last.mutex);
    model->registered = 0;
}

/* ---- similar names ---- */

/* Those that are meant, in the model's order; an op may be there twice. */
struct meant {
    amp_op **ops;
    size_t n, named; /* number of ops with exactly the name, for a name with an index */
    bool misses;     /* too many unknown names: no more suggestions */
};

static amp_status add_meant(struct meant *meant, amp_op *op) {
    if (!(meant->n & (meant->n - 1))) { /* a power of two is full */
        void *grown = amp__grow(meant->ops, meant->n, meant->n ? 2 * meant->n : 1, sizeof *meant->ops);
        if (!grown) return amp__fail_memory();
        meant->ops = grown;
    }
    meant->ops[meant->n++] = op;
    return AMP_OK;
}

/* With `wanted` >= 0 the one of that index among the ops of this very name, as amp_op_stats numbers them. */
static amp_status find_small(const amp_model *model, const char *name, long wanted, struct meant *meant) {
    long index = 0;
    for (size_t i = 0; i < model->n_ops; i++) {
        amp_op *op = nth(model, i);
        if (wanted < 0 ? matches(op, name) : op->name && !strcmp(op->name, name) && index++ == wanted)
            AMP_TRY(add_meant(meant, op));
    }
    meant->named = (size_t)index;
    return AMP_OK;
}

static amp_status find_named(const struct amp__names *names, const char *name, long wanted, struct meant *meant) {
    char base[AMP__OP_NAME_MAX + 1];
    size_t n;
    amp__op_base_name(name, base);
    const struct amp__keyed *entries = amp__names_find(names, wanted < 0 ? BASE : EXACT, wanted < 0 ? base : name, &n);
    if (wanted >= 0) {
        const amp_op *first = n ? entries->value : NULL;
        meant->named = first && !strcmp(first->name, name) ? n : 0;
        return (size_t)wanted < meant->named ? add_meant(meant, entries[wanted].value) : AMP_OK;
    }
    for (size_t i = 0; i < n; i++)
        if (matches(entries[i].value, name)) AMP_TRY(add_meant(meant, entries[i].value));
    return AMP_OK;
}

static amp_status find_large(amp_model *model, const char *name, long wanted, struct meant *meant) {
    AMP_TRY(amp__fork_add(&last.forkable, &last.mutex));
    pthread_mutex_lock(&last.mutex);
    amp_status status = need_names(model);
    if (status == AMP_OK) status = find_named(&last.names, name, wanted, meant);
    meant->misses = status == AMP_OK && !meant->n && last.missed++ >= MISSES;
    pthread_mutex_unlock(&last.mutex);
    return status;
}

static amp_status not_found(const amp_model *model, const struct meant *meant, const char *wanted) {
    char data[256] = "";
    amp__text text = { data, sizeof data, 0 };
    const size_t n_ops = meant->misses ? 0 : model->n_ops;
    const char **names = amp__alloc(n_ops, sizeof *names);
    if (!names) return amp__fail_memory();
    size_t n = 0;
    for (size_t i = 0; i < n_ops; i++)
        if (nth(model, i)->name) names[n++] = nth(model, i)->name;
    amp__nearest_names(&text, wanted, names, n);
    amp__free(names);
    return amp__fail(AMP_ERR_NOT_FOUND, "amp_register: none of the model's %zu ops has the name or alias \"%s\"%s%s%s",
                     model->n_ops, wanted, data[0] ? "; did you mean " : "", data, data[0] ? "?" : "");
}

/* "name#index" -> name, and the index or -1. */
static amp_status split_name(const char *text, char name[AMP__OP_NAME_MAX + 1], long *index) {
    const char *mark = strrchr(text, '#');
    const size_t length = mark ? (size_t)(mark - text) : strlen(text);
    AMP_RETURN_IF(!length || length > AMP__OP_NAME_MAX, AMP_ERR_INVALID_ARGUMENT,
                  "amp_register: \"%.140s\" is not an op name", text);
    memcpy(name, text, length);
    name[length] = '\0';
    *index = -1;
    if (!mark) return AMP_OK;
    int used = 0;
    const int read = sscanf(mark, "#%9ld%n", index, &used);
    AMP_RETURN_IF(read != 1 || mark[used] || *index < 0, AMP_ERR_INVALID_ARGUMENT,
                  "amp_register: \"%.140s\": a number from 0 on must follow the #", text);
    return AMP_OK;
}

static amp_status write_classes(const struct meant *meant, amp_class op_class) {
    for (size_t i = 0; i < meant->n; i++) { /* look before writing */
        const amp_op *op = meant->ops[i];
        AMP_RETURN_IF((op->flags & AMP_OP_REGISTERED) && op->op_class != op_class, AMP_ERR_CONFLICT,
                      "amp_register: op %s is registered as %s already and cannot also be %s", op->name,
                      amp__class_name(op->op_class), amp__class_name(op_class));
    }
    for (size_t i = 0; i < meant->n; i++) {
        meant->ops[i]->op_class = op_class;
        meant->ops[i]->flags |= AMP_OP_REGISTERED;
    }
    return AMP_OK;
}

AMP_API amp_status amp_register(amp_model *model, const char *op, amp_class op_class) {
    char name[AMP__OP_NAME_MAX + 1];
    long wanted;
    AMP_RETURN_IF(!model || !op, AMP_ERR_INVALID_ARGUMENT, "amp_register: %s is NULL", model ? "op" : "model");
    AMP_TRY(amp__check_struct(model->struct_size, sizeof *model, "amp_model"));
    AMP_RETURN_IF(model->amp, AMP_ERR_WRONG_STATE, "amp_register: the model is initialised already: register before");
    AMP_RETURN_IF(op_class <= AMP_BY_LIST || op_class > AMP_LEAVE, AMP_ERR_INVALID_ARGUMENT,
                  "amp_register: class %d does not exist", (int)op_class);
    AMP_RETURN_IF(model->n_ops && !model->ops, AMP_ERR_INVALID_ARGUMENT, "amp_register: model.ops is NULL");
    AMP_TRY(split_name(op, name, &wanted));
    if (model->n_ops) AMP_TRY(amp__check_struct(model->ops->struct_size, sizeof(amp_op), "amp_op"));
    struct meant meant = { NULL, 0, 0, false };
    const bool indexed = model->n_ops > SMALL && may_be_indexed(model);
    amp_status status = indexed ? find_large(model, name, wanted, &meant) : find_small(model, name, wanted, &meant);
    if (status == AMP_OK && meant.n) status = write_classes(&meant, op_class);
    amp__free(meant.ops);
    if (status != AMP_OK || meant.n) return status;
    AMP_RETURN_IF(wanted >= 0 && meant.named, AMP_ERR_NOT_FOUND,
                  "amp_register: \"%.140s\": the model has %zu op%s named %s, numbered from 0", op, meant.named,
                  AMP__S(meant.named), name);
    return not_found(model, &meant, op);
}
