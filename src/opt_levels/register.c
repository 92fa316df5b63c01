/* SPDX-License-Identifier: Apache-2.0 */
/* Registration: the user's word on an op's class, written into the caller's own descriptors. No global state. */
#include "opt_levels/lists.h"

#include <stdio.h>
#include <string.h>

static bool name_is(const char *name, const char *wanted) {
    char a[AMP__OP_NAME_MAX + 1], b[AMP__OP_NAME_MAX + 1];
    if (!strcmp(name, wanted)) return true;
    amp__op_base_name(name, a);
    amp__op_base_name(wanted, b);
    return !strcmp(a, b);
}

static bool has_alias(const char *aliases, const char *wanted) {
    while (aliases && *aliases) {
        char alias[AMP__OP_NAME_MAX + 1];
        aliases += strspn(aliases, " ,");
        const size_t length = strcspn(aliases, " ,");
        if (length && length <= AMP__OP_NAME_MAX) {
            memcpy(alias, aliases, length);
            alias[length] = '\0';
            if (name_is(alias, wanted)) return true;
        }
        aliases += length;
    }
    return false;
}

static amp_op *nth(const amp_model *model, size_t i) {
    return (amp_op *)(void *)((char *)model->ops + i * model->ops->struct_size);
}

static bool matches(const amp_op *op, const char *wanted) {
    return op->name && (name_is(op->name, wanted) || has_alias(op->aliases, wanted) ||
                        (op->backward_of && name_is(op->backward_of, wanted)));
}

/* The next op from *from on that is meant; with `wanted` >= 0 the one of that index among the ops of this very name, as
 * amp_op_stats numbers them. */
static bool next_match(const amp_model *model, const char *name, long wanted, size_t *from, size_t *match) {
    long index = 0;
    for (size_t i = 0; i < model->n_ops; i++) {
        const amp_op *op = nth(model, i);
        if (wanted < 0 ? !matches(op, name) : !op->name || strcmp(op->name, name) != 0 || index++ != wanted) continue;
        if (i < *from) continue;
        *match = i;
        *from = i + 1;
        return true;
    }
    return false;
}

static size_t count_named(const amp_model *model, const char *name) {
    size_t n = 0;
    for (size_t i = 0; i < model->n_ops; i++) n += nth(model, i)->name && !strcmp(nth(model, i)->name, name);
    return n;
}

static amp_status not_found(const amp_model *model, const char *wanted) {
    char data[256] = "";
    amp__text text = { data, sizeof data, 0 };
    const char **names = amp__alloc(model->n_ops, sizeof *names);
    if (!names) return amp__fail_memory();
    size_t n = 0;
    for (size_t i = 0; i < model->n_ops; i++)
        if (nth(model, i)->name) names[n++] = nth(model, i)->name;
    amp__nearest_names(&text, wanted, names, n);
    amp__free(names);
    return amp__fail(AMP_ERR_NOT_FOUND, "amp_register: the model's %zu ops have no name or alias \"%s\"%s%s%s", model->n_ops,
                     wanted, data[0] ? "; did you mean " : "", data, data[0] ? "?" : "");
}

/* "name#index" -> name, and the index or -1. */
static amp_status split_name(const char *text, char name[AMP__OP_NAME_MAX + 1], long *index) {
    const char *mark = strrchr(text, '#');
    const size_t length = mark ? (size_t)(mark - text) : strlen(text);
    AMP_RETURN_IF(!length || length > AMP__OP_NAME_MAX, AMP_ERR_INVALID_ARGUMENT, "amp_register: \"%.140s\" is not an op name",
                  text);
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
    bool found = false;
    for (size_t i = 0, from = 0; next_match(model, name, wanted, &from, &i); found = true) { /* look before writing */
        const amp_op *match = nth(model, i);
        AMP_RETURN_IF((match->flags & AMP_OP_REGISTERED) && match->op_class != op_class, AMP_ERR_CONFLICT,
                      "amp_register: op %s is registered as %s already and cannot also be %s", match->name,
                      amp__class_name(match->op_class), amp__class_name(op_class));
    }
    if (!found && wanted >= 0 && count_named(model, name))
        return amp__fail(AMP_ERR_NOT_FOUND, "amp_register: \"%.140s\": the model has %zu ops named %s, numbered from 0", op,
                         count_named(model, name), name);
    if (!found) return not_found(model, op);
    for (size_t i = 0, from = 0; next_match(model, name, wanted, &from, &i);) {
        nth(model, i)->op_class = op_class;
        nth(model, i)->flags |= AMP_OP_REGISTERED;
    }
    return AMP_OK;
}
